// Command runc starts the machine's runc on behalf of a root user that was not given CAP_SYS_RESOURCE.
//
// Such a root cannot pass that capability on, cannot set resource limits above its own and cannot make a process less
// likely to be killed for memory than itself; runc gives up when a container asks for one of the three. This program
// removes those wishes from the file that runc will read and becomes runc. Nothing else in the file changes.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const (
	realRunc = "/usr/sbin/runc" // where Debian installs it, on the machine and in a node
	withheld = "CAP_SYS_RESOURCE"
)

type object = map[string]any

func main() {
	err := rewriteInput(os.Args[1:])
	if err == nil {
		err = syscall.Exec(realRunc, append([]string{"runc"}, os.Args[1:]...), os.Environ())
	}
	fmt.Fprintln(os.Stderr, "runc without CAP_SYS_RESOURCE:", err)
	os.Exit(1)
}

// rewriteInput finds the file that describes the process which the command line is going to start, if it starts one.
func rewriteInput(arguments []string) error {
	for position, argument := range arguments {
		rest := arguments[position+1:]
		switch argument {
		case "create", "run", "restore":
			config := filepath.Join(valueOf(rest, "-b", "--bundle"), "config.json")
			return rewrite(config, func(whole object) object {
				process, _ := whole["process"].(object)
				return process
			})
		case "exec":
			if file := valueOf(rest, "-p", "--process"); file != "" {
				return rewrite(file, func(whole object) object { return whole })
			}
			return nil
		}
	}
	return nil
}

// valueOf returns what follows a flag, as `--flag value` or `--flag=value`; empty if the flag is not there.
func valueOf(arguments []string, names ...string) string {
	for position, argument := range arguments {
		name, value, joined := strings.Cut(argument, "=")
		if !slices.Contains(names, name) {
			continue
		}
		if joined {
			return value
		}
		if position+1 < len(arguments) {
			return arguments[position+1]
		}
	}
	return ""
}

// rewrite removes from the process that find returns what only CAP_SYS_RESOURCE could grant. Numbers stay literally
// as they are: some do not fit a float.
func rewrite(file string, find func(object) object) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	var whole object
	if err := decoder.Decode(&whole); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if process := find(whole); process != nil {
		withoutPrivilege(process)
	}
	if content, err = json.Marshal(whole); err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o600)
}

func withoutPrivilege(process object) {
	delete(process, "rlimits")
	if score, ok := process["oomScoreAdj"].(json.Number); ok && strings.HasPrefix(string(score), "-") {
		delete(process, "oomScoreAdj")
	}
	sets, _ := process["capabilities"].(object)
	for name, set := range sets {
		listed, _ := set.([]any)
		sets[name] = slices.DeleteFunc(listed, func(each any) bool { return each == withheld })
	}
}
