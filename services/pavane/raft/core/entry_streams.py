"""Streams of committed entries for clients and learners (docs/specs/raft.md 10.4)."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from pavane.raft.core.barrier import Barriers
from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Corrupt, Route
from pavane.raft.errors import DropReason
from pavane.raft.state.commands import SnapshotSource
from pavane.raft.state.roles import Role
from pavane.raft.wire.frames import Frame
from pavane.raft.wire.replies import EntriesStatus, RequestEntriesReply, SnapshotPart
from pavane.raft.wire.requests import RequestEntries

STREAMS_MAX = 8000
MESSAGE_BYTES = 64 * 1024
MESSAGE_ENTRIES = 4096
CHUNK_BYTES = 64 * 1024  # of a snapshot
WINDOW_CHUNKS = 2
WINDOW_MESSAGES = 5  # not yet acknowledged; a message beyond MESSAGE_BYTES (one great entry) stands alone


@dataclass(slots=True, eq=False)
class _Stream:
    """One request and what was sent for it. ``end`` is 0 until the barrier has passed."""

    route: Route
    id: bytes
    next: int
    left: int | None
    deadline: float
    offset: int = 0  # of the next chunk, while ``snapshot`` is being sent
    snapshot: SnapshotSource | None = None
    end: int = 0
    unacknowledged: deque[int] = field(default_factory=deque)  # last index of each message; of a chunk, what was asked
    asked: int = 0
    begun: bool = False  # of a snapshot at least one chunk was sent; an empty one has one, too
    great: bool = False  # the last message was larger than MESSAGE_BYTES
    finished: bool = False  # all was sent; what comes now are acknowledgements of the messages before the last


class EntryStreams:
    """All streams, by connection and request id."""

    def __init__(self, node: Node, barriers: Barriers) -> None:
        self._node = node
        self._barriers = barriers
        self._streams: dict[tuple[Route, bytes], _Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def request(self, route: Route, request_id: Frame, message: RequestEntries) -> None:
        """Handle ``<``: a new request, an acknowledgement, or the end of a stream."""
        node = self._node
        key = (route, bytes(request_id))
        stream = self._streams.get(key)
        if stream is not None and self._acknowledged(stream, message):
            self._pump(stream)
            return
        self._end(key)
        if message.count == 0:
            return
        if node.role != Role.LEADER:
            self._refuse(route, key[1])
        elif len(self._streams) >= STREAMS_MAX or self._barriers.full:
            node.drop(DropReason.OVERLOAD)
        else:
            offset = message.snapshot_offset or 0
            opened = _Stream(route, key[1], message.previous_index + 1, message.count, self._until(), offset)
            self._streams[key] = opened
            self._barriers.wait(lambda ok: self._open(opened, ok))

    def deposed(self) -> None:
        """End every stream: the next leader serves what is missing."""
        for key, stream in list(self._streams.items()):
            if not stream.finished:
                self._refuse(*key)
            self._end(key)

    def next_timer(self) -> float | None:
        """Return when the next stream may have to be given up. Deadlines only grow, so the first is near enough."""
        return next((stream.deadline for stream in self._streams.values()), None)

    def timer(self) -> None:
        """Give up streams that nobody acknowledges."""
        now = self._node.now.mono
        while self._streams:
            key, stream = next(iter(self._streams.items()))
            if stream.deadline > now:
                break
            self._end(key)

    def _acknowledged(self, stream: _Stream, message: RequestEntries) -> bool:
        if message.count == 0 or not stream.unacknowledged or message.previous_index != stream.unacknowledged[0]:
            return False
        stream.unacknowledged.popleft()
        stream.deadline = self._until()
        key = (stream.route, stream.id)
        self._streams[key] = self._streams.pop(key)  # keeps the table in the order of deadlines
        return True

    def _open(self, stream: _Stream, ok: bool) -> None:
        """The barrier has passed, or we stopped leading (then ``deposed`` answers)."""
        node = self._node
        if not ok or self._streams.get((stream.route, stream.id)) is not stream:
            return
        stream.end = node.applied
        if stream.next < node.log.first:
            self._begin_snapshot(stream)
        elif stream.left is not None:
            stream.end = min(stream.end, stream.next + stream.left - 1)
        self._pump(stream)

    def _begin_snapshot(self, stream: _Stream) -> None:
        """Send the snapshot first; of a count it is one."""
        node = self._node
        snapshot = node.snapshot
        if snapshot is None:
            return
        try:
            stream.snapshot = node.log.open_snapshot(snapshot.index)
        except OSError:
            node.halt(Corrupt(snapshot.index))
            return
        stream.begun = False
        stream.asked = stream.next - 1
        stream.next = snapshot.index + 1
        if stream.left is not None:
            stream.end = min(stream.end, snapshot.index + stream.left - 1)
        if stream.offset >= max(1, snapshot.data_bytes):
            stream.offset = 0

    def _pump(self, stream: _Stream) -> None:
        """Send as many messages as the window allows; the last one is not acknowledged.

        The stream stays until those before are: without it their acknowledgements would be new requests.
        """
        while stream.snapshot is not None or stream.next < min(self._node.log.first, stream.end + 1):
            if stream.snapshot is None:
                stream.offset = 0
                self._begin_snapshot(stream)  # the log was cut meanwhile
            if stream.snapshot is None or not self._pump_snapshot(stream, stream.snapshot):
                return
        if stream.next > stream.end and not stream.unacknowledged and not stream.finished:
            self._finish(stream, ())
        while stream.next <= stream.end:
            window = 1 if stream.great else WINDOW_MESSAGES
            if len(stream.unacknowledged) >= window:
                return
            entries = self._node.read(stream.next, stream.end, MESSAGE_BYTES, MESSAGE_ENTRIES)
            if not entries:
                return
            self._node.tally.entries_read += len(entries)
            last = stream.next + len(entries) - 1
            stream.great = len(entries) == 1 and len(entries[0]) > MESSAGE_BYTES
            stream.next = last + 1
            if last == stream.end:
                self._finish(stream, entries)
            else:
                stream.unacknowledged.append(last)
                self._send(stream, EntriesStatus.MORE, last, entries)
        if stream.finished and not stream.unacknowledged:
            self._end((stream.route, stream.id))

    def _finish(self, stream: _Stream, entries: Sequence[Frame]) -> None:
        stream.finished = True
        self._send(stream, EntriesStatus.LAST, stream.end, entries)

    def _pump_snapshot(self, stream: _Stream, source: SnapshotSource) -> bool:
        """Send chunks as the window allows; return whether all were sent and acknowledged."""
        node, head = self._node, source.head
        while len(stream.unacknowledged) < WINDOW_CHUNKS and (stream.offset < head.data_bytes or not stream.begun):
            size = min(CHUNK_BYTES, head.data_bytes - stream.offset)
            try:
                chunk = source.read(head.data_offset + stream.offset, size)
            except OSError:
                node.halt(Corrupt(head.index))
                return False
            part = SnapshotPart(stream.offset, head.data_bytes, head.term)
            reply = RequestEntriesReply(EntriesStatus.SNAPSHOT, head.index, (chunk,), part=part)
            stream.begun = True
            stream.offset += size
            stream.unacknowledged.append(stream.asked)
            node.answer(stream.route, stream.id, reply)
        if stream.unacknowledged or stream.offset < head.data_bytes:
            return False
        source.close()
        stream.snapshot = None
        return True

    def _end(self, key: tuple[Route, bytes]) -> None:
        stream = self._streams.pop(key, None)
        if stream is not None and stream.snapshot is not None:
            stream.snapshot.close()
            stream.snapshot = None

    def _send(self, stream: _Stream, status: EntriesStatus, index: int, entries: Sequence[Frame]) -> None:
        self._node.answer(stream.route, stream.id, RequestEntriesReply(status, index, tuple(entries)))

    def _refuse(self, route: Route, request_id: bytes) -> None:
        self._node.answer(route, request_id, RequestEntriesReply(EntriesStatus.NOT_LEADER, leader=self._node.leader))

    def _until(self) -> float:
        return self._node.now.mono + self._node.config.request_entries_ttl / 1000
