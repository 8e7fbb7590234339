"""The lock of a local cluster's folder, seen from any process (docs/specs/operator.md 6.9)."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from pavane.runtime import locks


class FolderInUse(Exception):
    """Another local cluster runs in the folder; the text names its process."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, with our pid in it. Raises FolderInUse."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)  # it holds keys, tokens and what users wrote
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            text = f"a local cluster runs in {folder} already (pid {holder(folder)}); stop it with `pavane down`"
            raise FolderInUse(text) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
        file.truncate(0)


def holder(folder: Path) -> int | None:
    """The pid of the process that runs the local cluster of a folder, or None."""
    return locks.holder(folder / "lock")
