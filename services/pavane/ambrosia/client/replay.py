"""A recorded life again, held against what was recorded (docs/specs/ambrosia.md 18.7)."""

import random
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from pavane.ambrosia.client.definition import place
from pavane.ambrosia.client.engine import Engine
from pavane.ambrosia.client.errors import Diverged
from pavane.ambrosia.client.guard import Guard
from pavane.ambrosia.client.snapshot import ImmortalSnapshot
from pavane.ambrosia.client.upgrading import Kinds, kind_of
from pavane.ambrosia.wire.batches import split_calls
from pavane.ambrosia.wire.messages import MessageBuffer, Type, checkpoint
from pavane.ambrosia.wire.records import LogRecord, checkpoint_record

REMEDY = (
    "undo the change, or raise the version of the application and keep the old code for what was logged with it: a "
    "branch on self.app_version, or the new class as an upgrade of the old one"
)


@dataclass(frozen=True, slots=True)
class Handled:
    """One message of a replay: who handled it, in which record, and the mark of what it did."""

    title: str
    seq: int
    mark: int


class Replay:
    """An application beside a log: no coordinator, nothing leaves. ``outputs`` are the calls that it made, by peer."""

    def __init__(
        self, kinds: Kinds, name: str, committer: int, blob: bytes, shuffle: random.Random | None = None
    ) -> None:
        self._kinds = kinds
        version = ImmortalSnapshot.read(blob).version
        kind = kind_of(kinds, version)
        self.engine = Engine(kind, name, guard=Guard(strict=True), version=version, shuffle=shuffle, any_code=True)
        self.handled: list[Handled] = []
        self.outputs: dict[str, list[bytes]] = {}
        self.engine.observer = lambda *each: self.handled.append(Handled(*each))
        self._sent = MessageBuffer()
        self.engine.feed(checkpoint_record(committer, checkpoint(len(blob))) + blob)
        self._run()

    def deliver(self, record: LogRecord) -> None:
        """Handle a record of the log; raises what the application's code does against the rules."""
        self.engine.feed(record.delivered())
        self._run()

    def upgrade(self, version: int) -> None:
        """Change over to ``version``, as message 10 does; raises ``ImmortalError``."""
        self.engine.upgrade(version, kind_of(self._kinds, version))

    def _run(self) -> None:
        while self.engine.step():
            pass
        self.engine.effects.clear()
        self._sent.feed(self.engine.take())
        while (message := self._sent.next()) is not None:
            for to, raw, _ in split_calls(message) if message.type != Type.ATTACH_TO else ():
                self.outputs.setdefault(to, []).append(raw)

    def compare(self, recorded: ImmortalSnapshot) -> None:
        """Hold what was replayed against the checkpoint that the recorded life took here; raises ``Diverged``.

        Where it is the one of an upgrade, the replay upgrades, too.
        """
        if recorded.version > self.engine.app_version:
            self._compare_marks(recorded)
            self.upgrade(recorded.version)
        self._compare_marks(recorded)
        found = self.engine.snapshot()
        if differ := found.differences(recorded):
            since = self.engine.loaded.seq + 1 if self.engine.loaded is not None else 0
            raise Diverged(
                f"the state of {self.engine.name} after record {recorded.seq} differs in {', '.join(differ)}: "
                f"a handler of the records from {since} on changes it in another way",
                where=_place(self.engine, ""),
                remedy=REMEDY,
            )
        self.handled.clear()
        self.engine.marks = array("I")

    def _compare_marks(self, recorded: ImmortalSnapshot) -> None:
        marks = array("I")
        marks.frombytes(recorded.marks)
        for before, now in zip(marks, self.handled, strict=False):
            if before != now.mark:
                raise Diverged(
                    f"{now.title} handles record {now.seq} of {self.engine.name} in another way than it was recorded",
                    where=_place(self.engine, now.title),
                    remedy=REMEDY,
                )


def _place(engine: Engine, title: str) -> str:
    for method in engine.definition.methods.values():
        if method.title == title:
            return place(method.function)
    return f"{engine.kind.__module__}:{engine.kind.__qualname__}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A checkpoint as it was taken."""

    number: int
    next_seq: int
    committer: int
    blob: bytes


def replay_all(
    kinds: Kinds,
    name: str,
    checkpoints: list[Recorded],
    records: Iterable[LogRecord],
    shuffle: random.Random | None = None,
) -> Replay:
    """Replay from the first of ``checkpoints`` to the end, comparing at each later one; raises ``Diverged``.

    ``records`` are those behind the first one.
    """
    first, *later = checkpoints
    run = Replay(kinds, name, first.committer, first.blob, shuffle)
    due = [ImmortalSnapshot.read(each.blob) for each in later]
    for record in records:
        while due and due[0].seq < record.seq:
            run.compare(due.pop(0))
        run.deliver(record)
    for recorded in due:
        if recorded.seq == run.engine.seq:
            run.compare(recorded)
    return run
