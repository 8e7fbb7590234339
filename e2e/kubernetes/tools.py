"""The programs of a real cluster: found where they are, else built once from the modules beside this file.

    python -m e2e.kubernetes.tools [PROGRAM …]

A program is looked for in `PAVANE_ENVTEST_ASSETS`, in PATH, then where this builds: `pavane/tools` in the user's cache
folder. Only the Go module proxy is asked, and only on the first build.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
VERSION_MODULE = "k8s.io/component-base/version"
GO_FOLDER = "/usr/local/go/bin"
"""Where Go's own installer puts it, often outside PATH."""
OLDEST_MINOR = 29
"""Oldest Kubernetes that Pavane supports (docs/specs/operator.md 7.2)."""
NEWEST_MINOR = 36
"""Newest one whose programs take the flags that `control_plane` gives."""


class ToolError(Exception):
    """A program is missing, of an unsuitable version, or cannot be built; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Program:
    """Where a program comes from: Go module (folder beside this file) and package in it."""

    module: str
    package: str
    default: bool = True
    """Whether tests need it; the others are parts of a node image."""


PROGRAMS = {
    "kubectl": Program("kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    "kube-apiserver": Program("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": Program("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": Program("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "etcd": Program("etcd", "go.etcd.io/etcd/server/v3"),
    "helm": Program("helm", "helm.sh/helm/v4/cmd/helm"),
    "kind": Program("kind", "sigs.k8s.io/kind"),
    "versitygw": Program("versitygw", "github.com/versity/versitygw/cmd/versitygw"),
    "kubelet": Program("kubernetes", "k8s.io/kubernetes/cmd/kubelet", default=False),
    "kubeadm": Program("kubernetes", "k8s.io/kubernetes/cmd/kubeadm", default=False),
    "kube-proxy": Program("kubernetes", "k8s.io/kubernetes/cmd/kube-proxy", default=False),
    "coredns": Program("node/coredns", ".", default=False),
    "local-path-provisioner": Program(
        "node/local-path-provisioner", "github.com/rancher/local-path-provisioner", default=False
    ),
    "pause": Program("node/pause", ".", default=False),
    "runc": Program("node/runc", ".", default=False),
}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


def cache() -> Path:
    """Folder of the programs that were built."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pavane" / "tools"


def find(name: str) -> Path | None:
    """Return the path of a program, or None. Raises ToolError for a Kubernetes of an unsuitable version."""
    assets = os.environ.get("PAVANE_ENVTEST_ASSETS")
    for folder in (assets, os.environ.get("PATH", ""), str(cache())):
        if folder and (found := shutil.which(name, path=folder)):
            path = Path(found)
            if path.parent != cache() and name.startswith("kube-"):
                _check_version(path)
            return path
    return None


def _check_version(path: Path) -> None:
    said = subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout
    version = re.search(r"v1\.(\d+)\.", said)
    if version is None or not OLDEST_MINOR <= int(version[1]) <= NEWEST_MINOR:
        raise ToolError(
            f"{path} says {said.strip()!r}: 1.{OLDEST_MINOR} to 1.{NEWEST_MINOR} can be used; take it out of PATH and "
            "PAVANE_ENVTEST_ASSETS, then `make e2e-tools` builds a suitable one"
        )


def go() -> str | None:
    """Return the path of the Go command, of PATH or where its installer puts it."""
    return shutil.which("go", path=os.pathsep.join((os.environ.get("PATH", ""), GO_FOLDER)))


def build(names: Iterable[str]) -> None:
    """Build what is missing or older than its module's pins, one after the other. Raises ToolError."""
    stale = [name for name in names if _stamp(name).read_text() != _pins(name)]
    if not stale:
        return
    program = go()
    if program is None:
        raise ToolError(f"{', '.join(stale)}: no Go to build them with: install Go 1.26 or newer (https://go.dev/dl/)")
    for number, name in enumerate(stale, start=1):
        _say(f"building {name} ({number} of {len(stale)}; Kubernetes takes minutes the first time) …")
        began = time.monotonic()
        _build(program, name)
        _say(f"  {name}: {time.monotonic() - began:.0f} s")


def _build(go: str, name: str) -> None:
    program, folder = PROGRAMS[name], HERE / PROGRAMS[name].module
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-trimpath", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    target = cache() / name
    scratch = target.with_name(f".{name}.{os.getpid()}")
    command = [go, "build", "-C", str(folder), "-ldflags", _link_flags(program), "-o", str(scratch), program.package]
    if subprocess.run(command, env=environment, check=False).returncode:
        raise ToolError(f"{name} could not be built; in {folder}, `go build {program.package}` shows why")
    scratch.replace(target)
    _stamp(name).write_text(_pins(name))


def _link_flags(program: Program) -> str:
    """Kubernetes reads its own version from variables set by the linker and stops without them."""
    flags = "-s -w"
    if program.module != "kubernetes":
        return flags
    version = _kubernetes_version()
    minor = version.split(".")[1]
    named = {"gitVersion": version, "gitMajor": "1", "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join([flags, *(f"-X {VERSION_MODULE}.{key}={value}" for key, value in named.items())])


def _kubernetes_version() -> str:
    pinned = re.search(r"^\s*k8s\.io/kubernetes (v\S+)", (HERE / "kubernetes" / "go.mod").read_text(), re.MULTILINE)
    if pinned is None:
        raise ToolError("e2e/kubernetes/kubernetes/go.mod names no version of k8s.io/kubernetes")
    return pinned[1]


def _pins(name: str) -> str:
    """A digest of all that decides what is built: another one means to build again."""
    folder = HERE / PROGRAMS[name].module
    files = sorted(path for path in folder.iterdir() if path.suffix in {".mod", ".sum", ".go"})
    digest = hashlib.sha256(_link_flags(PROGRAMS[name]).encode())
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _stamp(name: str) -> Path:
    """The file beside a built program that says from which pins; empty while there is no program."""
    cache().mkdir(parents=True, exist_ok=True)
    stamp = cache() / f".{name}.pins"
    if not stamp.exists() or not (cache() / name).exists():
        stamp.write_text("")
    return stamp


def _say(text: str) -> None:
    sys.stderr.write(f"e2e-tools: {text}\n")
    sys.stderr.flush()


def main() -> int:
    """Build the named programs (default: those that tests need and that are not found elsewhere)."""
    parser = argparse.ArgumentParser(description="Build the programs of a real Kubernetes cluster for tests.")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"some of: {', '.join(PROGRAMS)}")
    names = parser.parse_args().programs
    if unknown := set(names) - PROGRAMS.keys():
        parser.error(f"there is no {', '.join(sorted(unknown))}; known: {', '.join(PROGRAMS)}")
    try:
        if not names:
            wanted = [name for name, program in PROGRAMS.items() if program.default]
            names = [name for name in wanted if (found := find(name)) is None or found.parent == cache()]
        build(names)
    except ToolError as error:
        _say(str(error))
        return 1
    _say(f"up to date in {cache()}" if names else "all programs are in PATH or PAVANE_ENVTEST_ASSETS")
    return 0


if __name__ == "__main__":
    sys.exit(main())
