"""Folders that are whole or not there, and a store that is written without a peer."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pavane.raft.state.commands import StoreCommand
from pavane.raft.storage import Identity, RaftStorage, StoreError
from pavane.wal import Appender, DiskFolder


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Give a folder beside ``target`` to fill, which takes its name at the end; after an error nothing is left of it.

    Raises ``StoreError`` if there is something at ``target`` already.
    """
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise StoreError(f"{target} is not empty; name a folder that does not exist")
    unfinished = target.with_name(f".{target.name}.unfinished")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir(parents=True, mode=0o700)
    try:
        yield unfinished
        for folder, _, _ in os.walk(unfinished):
            _sync(Path(folder))
        unfinished.replace(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    _sync(target.parent)


class StoreWriter:
    """Our store in ``path``, for commands that are durable when ``execute`` returns; use as a context manager.

    Opening mends what a start of the peer would mend. Raises as ``RaftStorage``.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self.storage = RaftStorage(DiskFolder(path), identity)
        self._appender = Appender(self.storage.log_folder)

    def execute(self, commands: Sequence[StoreCommand]) -> None:
        """Write ``commands`` and sync."""
        self.storage.execute(commands)
        batch = self.storage.take()
        if batch is not None:
            self._appender.execute([batch])
            self.storage.completed([batch])

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._appender.close()
        self.storage.close()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
