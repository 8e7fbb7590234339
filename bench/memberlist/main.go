// Command memberlist runs a group of memberlist nodes on loopback and measures it as bench/swim_group.py measures ours:
// the same scenario, the same definitions, one process for all nodes, JSON on standard output.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	settle       = 3 * time.Second      // after each change
	patient      = 60 * time.Second     // for anything to be known by all
	look         = 5 * time.Millisecond // between looks at what is known
	portAttempts = 10
	suspect      = "[INFO] memberlist: Suspect " // how the library reports a suspicion of its own
)

var (
	datagrams, octets, streams, suspicions atomic.Int64
	lossPermille                           atomic.Int64
)

// counted counts what a node sends and loses a share of it, datagrams and connections alike.
type counted struct{ *memberlist.NetTransport }

func lost() bool { return rand.Int64N(1000) < lossPermille.Load() }

func (t *counted) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	datagrams.Add(1)
	octets.Add(int64(len(b)))
	if lost() {
		return time.Now(), nil
	}
	return t.NetTransport.WriteToAddress(b, a)
}

func (t *counted) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

func (t *counted) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if lost() {
		return nil, fmt.Errorf("lost")
	}
	connection, err := t.NetTransport.DialAddressTimeout(a, timeout)
	if err != nil {
		return nil, err
	}
	return &stream{connection}, nil
}

func (t *counted) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

type stream struct{ net.Conn }

func (s *stream) Write(b []byte) (int, error) {
	streams.Add(int64(len(b)))
	return s.Conn.Write(b)
}

// watcher counts the library's own reports of suspicions.
type watcher struct{}

func (watcher) Write(line []byte) (int, error) {
	if strings.Contains(string(line), suspect) {
		suspicions.Add(1)
	}
	return len(line), nil
}

// node is one member and what it sees.
type node struct {
	name string
	list *memberlist.Memberlist
	lock sync.Mutex
	sees map[string]bool
	dead map[string]bool
}

func (n *node) NotifyJoin(other *memberlist.Node) {
	n.lock.Lock()
	defer n.lock.Unlock()
	n.sees[other.Name] = true
}

func (n *node) NotifyLeave(other *memberlist.Node) {
	n.lock.Lock()
	defer n.lock.Unlock()
	delete(n.sees, other.Name)
	n.dead[other.Name] = true
}

func (n *node) NotifyUpdate(*memberlist.Node) {}

func (n *node) knows(name string) bool {
	n.lock.Lock()
	defer n.lock.Unlock()
	return n.sees[name]
}

type group struct {
	streamPings bool
	nodes       []*node
	started     int
}

// listen takes a port that is free for streams, and for datagrams too at one of the attempts.
func listen() (transport *memberlist.NetTransport, err error) {
	for attempt := 0; attempt < portAttempts; attempt++ {
		transport, err = memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{"127.0.0.1"}, BindPort: 0, Logger: log.New(io.Discard, "", 0),
		})
		if err == nil {
			break
		}
	}
	return transport, err
}

func (g *group) start() *node {
	g.started++
	one := &node{name: fmt.Sprintf("n%d", g.started), sees: map[string]bool{}, dead: map[string]bool{}}
	config := memberlist.DefaultLANConfig()
	config.Name, config.BindAddr, config.BindPort, config.AdvertisePort = one.name, "127.0.0.1", 0, 0
	config.DisableTcpPings = !g.streamPings
	config.Events, config.Logger = one, log.New(watcher{}, "", 0)
	transport, err := listen()
	check(err)
	config.Transport = &counted{transport}
	config.BindPort = transport.GetAutoBindPort()
	config.AdvertisePort = config.BindPort
	one.list, err = memberlist.Create(config)
	check(err)
	if len(g.nodes) > 0 {
		_, err = one.list.Join([]string{fmt.Sprintf("127.0.0.1:%d", g.nodes[0].list.LocalNode().Port)})
		check(err)
	}
	g.nodes = append(g.nodes, one)
	return one
}

// until waits for all nodes but gone to see name, or not to see it, and returns how long that took.
func (g *group) until(name string, seen bool) float64 {
	began := time.Now()
	for time.Since(began) < patient {
		all := true
		for _, one := range g.nodes {
			if one.name != name && one.knows(name) != seen {
				all = false
				break
			}
		}
		if all {
			return time.Since(began).Seconds()
		}
		time.Sleep(look)
	}
	return patient.Seconds()
}

func (g *group) remove(one *node) {
	for at, other := range g.nodes {
		if other == one {
			g.nodes = append(g.nodes[:at:at], g.nodes[at+1:]...)
			return
		}
	}
}

func (g *group) falselyDead() int {
	there, dead := map[string]bool{}, map[string]bool{}
	for _, one := range g.nodes {
		there[one.name] = true
	}
	for _, one := range g.nodes {
		one.lock.Lock()
		for name := range one.dead {
			if there[name] {
				dead[name] = true
			}
		}
		one.lock.Unlock()
	}
	return len(dead)
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(usage.Utime) + seconds(usage.Stime)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	size := flag.Int("size", 50, "nodes")
	changes := flag.Int("changes", 5, "joins, leaves and crashes, each")
	quiet := flag.Duration("settle", 100*time.Second, "from boot to the window without any change")
	idle := flag.Duration("idle", 20*time.Second, "window without any change")
	lossy := flag.Duration("lossy", 60*time.Second, "window with loss")
	permille := flag.Int64("loss", 100, "share that is lost in it, in thousandths")
	streamPings := flag.Bool("stream-pings", true, "fall back to TCP pings")
	flag.Parse()

	g := &group{streamPings: *streamPings}
	for range *size {
		g.start()
	}
	result := map[string]any{}
	began := time.Now()
	for _, one := range g.nodes {
		g.until(one.name, true)
	}
	result["boot_s"] = time.Since(began).Seconds()
	window := func(length time.Duration) map[string]float64 {
		for _, one := range g.nodes {
			one.lock.Lock()
			one.dead = map[string]bool{}
			one.lock.Unlock()
		}
		datagrams.Store(0)
		octets.Store(0)
		streams.Store(0)
		suspicions.Store(0)
		cpu := cpuSeconds()
		time.Sleep(length)
		per := float64(len(g.nodes)) * length.Seconds()
		return map[string]float64{
			"datagrams": float64(datagrams.Load()) / per, "bytes": float64(octets.Load()) / per,
			"stream_bytes": float64(streams.Load()) / per, "cpu_ms": (cpuSeconds() - cpu) * 1000 / per,
			"suspicions": float64(suspicions.Load()) / per * 60, "falsely_dead": float64(g.falselyDead()),
		}
	}
	time.Sleep(*quiet)
	result["idle"] = window(*idle)

	joins, leaves, crashes := []float64{}, []float64{}, []float64{}
	for range *changes {
		began := time.Now()
		one := g.start()
		g.until(one.name, true)
		joins = append(joins, time.Since(began).Seconds())
		time.Sleep(settle)
		began = time.Now()
		go one.list.Leave(patient)
		g.until(one.name, false)
		leaves = append(leaves, time.Since(began).Seconds())
		g.remove(one)
		time.Sleep(settle)
		check(one.list.Shutdown())
	}
	for range *changes {
		victim := g.nodes[1+rand.IntN(len(g.nodes)-1)]
		check(victim.list.Shutdown())
		crashes = append(crashes, g.until(victim.name, false))
		g.remove(victim)
		g.start()
		time.Sleep(settle)
	}
	result["join_s"], result["leave_s"], result["crash_s"] = joins, leaves, crashes

	lossPermille.Store(*permille)
	result["lossy"] = window(*lossy)
	check(json.NewEncoder(os.Stdout).Encode(result))
}
