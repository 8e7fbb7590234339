"""The log against a plain list, through crashes that lose what was not synced."""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pavane.wal import Appender, DiskFolder, Folder, Log, NewRecord, Record
from tests.services.memory_disk import MemoryDisk

STORE = b"0123456789abcdef"
SEGMENT_BYTES = 200
PAYLOADS = st.binary(max_size=80)


class LogMachine(RuleBasedStateMachine):
    """``model`` holds what was appended and may still be there, ``durable`` how much of it must be."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = self.make_folder()
        self.log = Log.create(self.folder, STORE, self.nothing, SEGMENT_BYTES)
        self.appender = Appender(self.folder)
        self.model: list[tuple[int, bytes]] = []
        self.positions: list[int] = []
        self.durable = 0
        self.flush()

    def make_folder(self) -> Folder:
        raise NotImplementedError

    @staticmethod
    def nothing() -> Sequence[NewRecord]:
        return ()

    @rule(payloads=st.lists(PAYLOADS, min_size=1, max_size=5), sync=st.booleans())
    def append(self, payloads: list[bytes], sync: bool) -> None:
        for payload in payloads:
            kind = 1 + len(payload) % 4
            self.positions.append(self.log.append(kind, [payload[:3], payload[3:]], sync=sync))
            self.model.append((kind, payload))

    @rule()
    def flush(self) -> None:
        batch = self.log.take()
        if batch is not None:
            self.appender.execute([batch])
            self.log.completed(batch)
            if batch.sync:
                self.durable = len(self.model)

    @rule()
    def mark(self) -> None:
        self.log.mark()

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        if self.model:
            index = data.draw(st.integers(0, len(self.model) - 1))
            record = self.log.read(self.positions[index])
            assert (record.kind, bytes(record.payload)) == self.model[index]

    @rule()
    def restart(self) -> None:
        """The process is killed; the machine lives on, so that everything written is still there."""
        self.close()
        self.recover()

    def close(self) -> None:
        self.log.close()
        self.appender.close()

    def recover(self) -> None:
        found: list[tuple[int, bytes]] = []
        positions: list[int] = []

        def visit(record: Record) -> None:
            found.append((record.kind, bytes(record.payload)))
            positions.append(record.position)

        self.log, scanned = Log.open(self.folder, STORE, visit, self.nothing, self.nothing, SEGMENT_BYTES)
        self.appender = Appender(self.folder)
        assert not scanned.corrupt
        assert found == self.model[: len(found)]
        assert len(found) >= self.durable
        self.model = found
        self.positions = positions
        self.durable = len(found)

    @invariant()
    def sequences_never_fall(self) -> None:
        assert self.log.last_sequence >= len(self.model)

    def teardown(self) -> None:
        self.close()


class MemoryLogMachine(LogMachine):
    """With power cuts."""

    def make_folder(self) -> Folder:
        self.disk = MemoryDisk()
        return self.disk.folder("log")

    @rule(seed=st.integers(0, 1 << 32))
    def power_cut(self, seed: int) -> None:
        self.close()
        self.disk.crash(random.Random(seed))
        self.recover()


class DiskLogMachine(LogMachine):
    """The same on real files."""

    def make_folder(self) -> Folder:
        self.temporary = tempfile.TemporaryDirectory()
        return DiskFolder(Path(self.temporary.name) / "log")

    def teardown(self) -> None:
        super().teardown()
        self.temporary.cleanup()


TestMemoryLog = MemoryLogMachine.TestCase
TestMemoryLog.settings = settings(max_examples=150, stateful_step_count=30)
TestDiskLog = DiskLogMachine.TestCase
TestDiskLog.settings = settings(max_examples=25, stateful_step_count=20)
