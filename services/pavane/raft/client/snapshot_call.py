"""Reading the snapshot in front of a log by ``<`` (docs/specs/raft.md 10.4, 11.1)."""

from dataclasses import dataclass

from pavane.raft.client.calls import Done, Elsewhere, Failed, Pending, StreamCall, Verdict
from pavane.raft.errors import Code, Refused
from pavane.raft.wire.frames import Frame
from pavane.raft.wire.replies import EntriesStatus, RequestEntriesReply
from pavane.raft.wire.requests import RequestEntries

SNAPSHOT_BYTES_MAX = 1 << 30  # it is returned as one piece


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What stands for every entry up to ``index``, which had ``term``.

    ``data`` are the application's own bytes in a cluster of machine Broadcast, else those of docs/specs/raft.md 12.9.
    """

    index: int
    term: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes of the snapshot that have come, and the stream that brought them."""

    offset: int
    stream: int


class SnapshotCall(StreamCall[Progress]):
    """Asks for the entries behind 0, one of them: for that count a whole snapshot is one."""

    answer = RequestEntriesReply

    def __init__(self, call_id: bytes, timeout_s: float) -> None:
        super().__init__(call_id, timeout_s)
        self.found: Snapshot | None = None
        self._parts: list[bytes] = []
        self._offset = 0
        self._of = (0, 0, 0)  # index, term and bytes of the snapshot that the parts belong to
        self._stream = 0

    def frames(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the request; it begins anew, for another leader may have another snapshot."""
        self._stream += 1
        self._parts, self._offset = [], 0
        return RequestEntries(0, 1).encode(ident)

    def acknowledgement(self, batch: Progress, ident: bytes) -> tuple[Frame, ...] | None:
        """Return the frames that ask for the next chunk."""
        return RequestEntries(0, 1, batch.offset).encode(ident) if batch.stream == self._stream else None

    def stop(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the frames that end the stream at the server."""
        return RequestEntries(0, 0).encode(ident)

    def take(self, reply: RequestEntriesReply) -> Verdict[None]:
        """Take one message: a chunk, or an entry, which says that there is no snapshot."""
        if reply.status == EntriesStatus.NOT_LEADER:
            return Elsewhere(reply.leader)
        part = reply.part
        if part is None:
            return Done(None)
        if part.total > SNAPSHOT_BYTES_MAX:
            return Failed(
                Refused(Code.TOO_LARGE, f"the snapshot has {part.total} bytes; copy it by `pavane raft backup`")
            )
        found = reply.index, part.term, part.total
        if part.offset != self._offset or (part.offset and found != self._of):
            return Pending(repeat_after_s=0.0)
        self._of = found
        self._parts.append(bytes(reply.entries[0]))
        self._offset += len(self._parts[-1])
        if self._offset == part.total:
            self.found = Snapshot(reply.index, part.term, b"".join(self._parts))
            return Done(None)
        self.batches.append(Progress(self._offset, self._stream))
        return Pending()
