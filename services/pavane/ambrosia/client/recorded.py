"""The files of an instance, replayed beside its class (docs/specs/ambrosia.md 18.7, `pavane ambrosia replay`)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pavane.ambrosia.client.errors import ImmortalError
from pavane.ambrosia.client.replay import Recorded, replay_all
from pavane.ambrosia.client.upgrading import Kinds
from pavane.ambrosia.state import Progress
from pavane.ambrosia.storage import CHECKPOINT, LOG, CheckpointReader, Replay
from pavane.ambrosia.wire.records import LogRecord
from pavane.wal.files import DiskFolder


@dataclass(frozen=True, slots=True)
class Report:
    """What a replay did: records handled, and checkpoints whose state was found again."""

    name: str
    records: int
    compared: int
    uncompared: int
    """Records behind the last checkpoint: handled, but there is nothing to hold them against."""
    version: int
    """Of the application, at the end."""


def replay_folder(kinds: Kinds, folder: Path, version: int | None = None) -> Report:
    """Replay all that ``folder`` holds and compare it with what was recorded; at its end upgrade to ``version``.

    Raises ``Diverged`` that names method and record, ``ImmortalError`` for an upgrade that fails, and ``FatalError``
    for files that are damaged or missing.
    """
    name = folder.name.rpartition("_")[0]
    if not folder.is_dir():
        raise ImmortalError(
            f"{folder} is not there: name the folder that holds {LOG}1, such as .pavane/ambrosia/alice_0"
        )
    files = DiskFolder(folder)
    checkpoints = [_checkpoint(files, number) for number in _numbers(files, CHECKPOINT)]
    if not checkpoints:
        raise ImmortalError(f"{folder} holds no {CHECKPOINT}1: {name} has not finished its first start")
    count = 0

    def counted() -> Iterator[LogRecord]:
        nonlocal count
        for record in _records(files, checkpoints[0].number):
            count += 1
            yield record

    run = replay_all(kinds, name, checkpoints, counted())
    if version is not None and version > run.engine.app_version:
        run.upgrade(version)
    last = max(each.next_seq for each in checkpoints)
    compared = len(checkpoints) - 1
    return Report(name, count, compared, max(0, run.engine.seq + 1 - last), run.engine.app_version)


def _numbers(files: DiskFolder, kind: str) -> list[int]:
    return sorted(int(name[len(kind) :]) for name in files.names() if re.fullmatch(rf"{kind}\d+", name))


def _checkpoint(files: DiskFolder, number: int) -> Recorded:
    reader = CheckpointReader(files, number)
    try:
        return Recorded(number, reader.head.next_seq, reader.head.committer, b"".join(reader.blob()))
    finally:
        reader.close()


def _records(files: DiskFolder, number: int) -> Iterator[LogRecord]:
    reader = CheckpointReader(files, number)
    head = reader.head
    reader.close()
    logs = _numbers(files, LOG)
    replay = Replay(files, number, max(logs, default=number), Progress.restored(head))
    try:
        while (record := replay.next()) is not None:
            yield record
    finally:
        replay.close()
