"""Locks that are files with the pid of their holder in it, seen from another process."""

import contextlib
import fcntl
import os
from io import TextIOWrapper
from pathlib import Path


def holder(file: Path) -> int | None:
    """The pid of the process that holds a lock; None while nobody does.

    What the file says counts only if that process has the file open: anybody may have written a number into it.
    """
    with contextlib.suppress(OSError), file.open() as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            with contextlib.suppress(ValueError):
                pid = int(opened.read())
                return pid if _has_open(pid, opened) else None
    return None


def _has_open(pid: int, file: TextIOWrapper) -> bool:
    wanted = os.fstat(file.fileno())
    for descriptor in Path("/proc", str(pid), "fd").iterdir():
        with contextlib.suppress(OSError):
            if os.path.samestat(descriptor.stat(), wanted):
                return True
    return False
