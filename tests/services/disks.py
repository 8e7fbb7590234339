"""A disk without room, without a disk: no file of a process may grow beyond a size."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def no_file_beyond(size: int, pid: int = 0) -> Iterator[None]:
    """Let every write beyond ``size`` bytes into a file fail while the block runs; ``pid`` 0 is this process.

    What the process starts meanwhile keeps that limit. Python ignores the signal that comes with it.
    """
    former = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, former[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, former)
