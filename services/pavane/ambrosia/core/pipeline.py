"""Inputs become records: collect, seal, log, and only then acknowledge and deliver (docs/specs/ambrosia.md 10)."""

from collections.abc import Callable

from pavane.ambrosia.effects import Append, Effect
from pavane.ambrosia.state import Progress
from pavane.ambrosia.wire.limits import HEADER_BYTES, RECORD_BYTES
from pavane.ambrosia.wire.records import LogRecord, Trims, Watermarks


class Pipeline:
    """The pending record and the one that is being logged.

    ``emit`` takes effects. While ``held`` nothing is sealed: a checkpoint is on its way.
    """

    def __init__(self, progress: Progress, emit: Callable[[Effect], None]) -> None:
        self.progress = progress
        self.durable: Watermarks = {}  # of the inputs: what the log or a checkpoint holds
        self.held = True
        self.inputs: Watermarks = {}  # with the pending record
        self.pending = bytearray()
        self.pending_inputs: Watermarks = {}
        self.pending_trims: Trims = {}
        self._emit = emit
        self._logging: LogRecord | None = None
        self._calls = 0  # in the pending record
        self._logging_calls = 0

    @property
    def logging(self) -> bool:
        """Whether an append has not been answered yet."""
        return self._logging is not None

    def room(self, size: int) -> bool:
        """Whether a message of ``size`` bytes may be added: it fits, or it is beyond every record and goes alone."""
        taken = HEADER_BYTES + len(self.pending)
        if taken + size <= RECORD_BYTES:
            return True
        return size > RECORD_BYTES - HEADER_BYTES and taken <= RECORD_BYTES

    def add(self, source: str, raw: bytes, calls: int, replayable: int) -> None:
        """Add a message or batch together with its numbers (N8)."""
        last, last_replayable = self.inputs.get(source, (0, 0))
        self.inputs[source] = self.pending_inputs[source] = (last + calls, last_replayable + replayable)
        self.pending += raw
        self._calls += calls

    def acknowledged(self, peer: str, replayable: int) -> None:
        """Note for the next record what ``peer`` acknowledged; it may go down only after a loss, so the highest."""
        self.pending_trims[peer] = max(replayable, self.pending_trims.get(peer, -1))

    def seal(self) -> None:
        """Log the pending record if there is one and nothing else is being logged."""
        if self.held or self._logging is not None or not self.pending:
            return
        record = LogRecord(
            self.progress.committer,
            self.progress.next_seq,
            bytes(self.pending),
            dict(self.pending_inputs),
            dict(self.pending_trims),
        )
        self._logging_calls = self._calls
        self.clear_pending()
        self._logging = record
        self._emit(Append(record, record.parts()))

    def logged(self) -> int:
        """The record that was being logged is durable; return how many messages it holds."""
        record = self._logging
        if record is None:
            raise AssertionError("nothing was being logged")
        self._logging = None
        self.progress.advance(record)
        self.durable.update(record.inputs)
        return self._logging_calls

    def clear_pending(self) -> None:
        """Begin an empty record."""
        self.pending = bytearray()
        self.pending_inputs = {}
        self.pending_trims = {}
        self._calls = 0
