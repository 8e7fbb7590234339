"""The folder of a local cluster, seen from any process (docs/specs/operator.md 6.9)."""

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from pavane_local.kubelet.spawn import PROCESS_FILE, recorded


class FolderInUse(Exception):
    """Another local cluster runs in the folder; the text names its process."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, with our pid in it. Raises FolderInUse."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = holder(folder)
            raise FolderInUse(
                f"a local cluster runs in {folder} already (pid {pid}); stop it with `pavane down`"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
        file.truncate(0)


def holder(folder: Path) -> int | None:
    """The pid of the process that runs the local cluster of a folder, or None."""
    try:
        with (folder / "lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return int(file.read() or 0) or None
    except FileNotFoundError:
        pass
    return None


def signal_pod(folder: Path, namespace: str, name: str, number: signal.Signals) -> int:
    """Send a signal to all processes of a pod (6.8.11); returns how many containers got it."""
    pids = [recorded(record) for record in folder.joinpath("pods", namespace, name).glob(f"*/*/{PROCESS_FILE}")]
    for pid in pids:
        if pid is not None:
            os.killpg(pid, number)
    return sum(pid is not None for pid in pids)
