"""Target `local`: `pavane up`, the embedded API server with pods as processes."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from e2e.targets.base import Capability, Target
from pavane_cli.access import HOSTS_FOLDER

CAPABILITIES = frozenset({Capability.EMBEDDED, Capability.DIRECT, Capability.CEL, Capability.GROWTH, Capability.SPARK})
VERBS = {signal.SIGKILL: "kill", signal.SIGSTOP: "pause", signal.SIGCONT: "unpause"}
LOG_SHOWN_CHARS = 2000


class ProcessTarget(Target):
    """A target whose pods are processes of this machine, in ``folder``/.pavane."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, folder / ".pavane" / "kubeconfig")

    @contextlib.contextmanager
    def naming(self, namespace: str, pods: Mapping[str, Sequence[str]], port: int) -> Iterator[Path]:
        """The cluster's own file: its pods have addresses of this machine."""
        yield self.kubeconfig.parent / HOSTS_FOLDER / namespace

    def signal(self, pod: str, namespace: str, number: signal.Signals) -> bool:
        return self.run(VERBS[number], pod, "-n", namespace, check=False).returncode == 0


class LocalTarget(ProcessTarget):
    """A process of `pavane up`."""

    name: ClassVar[str] = "local"
    capabilities: ClassVar[frozenset[Capability]] = CAPABILITIES

    def __init__(self, folder: Path, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(folder)
        self.process = process

    def ended(self) -> str | None:
        return None if self.process.poll() is None else (self.folder / "up.log").read_text()[-LOG_SHOWN_CHARS:]


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Target]:
    """Run `pavane up` with operator and control plane, ready."""
    with started(folder, "--fast") as target:
        asyncio.run(target.until_ready())
        yield target


@contextlib.contextmanager
def started(folder: Path, *arguments: str) -> Iterator[LocalTarget]:
    """Run `pavane up` in ``folder``; at the end it must stop by itself and leave no process behind."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "up.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pavane_cli.main", "up", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield LocalTarget(folder, process)
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()
    assert children_in(folder) == [], "processes were left behind"


def children_in(folder: Path) -> list[str]:
    """Return the command lines of processes that run in the cluster's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if f"PAVANE_ROOT={folder.resolve()}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found
