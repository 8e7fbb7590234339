"""Streams of the committed log for learners of ours, with the snapshot in front if need be (docs/specs/raft.md 8.3)."""

from collections import deque
from dataclasses import dataclass, field

from pavane.raft.core.barrier import Barriers
from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Corrupt, Route
from pavane.raft.errors import Code, DropReason
from pavane.raft.state.commands import SnapshotSource
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import encode_blob
from pavane.raft.wire.frames import Frame
from pavane.raft.wire.msgpack import Value
from pavane.raft.wire.pv import FOLLOW_CHUNK, FOLLOW_ENTRIES, FOLLOW_NOT_LEADER, PvFollow, PvFollowReply

STREAMS_MAX = 32
WINDOW_MESSAGES = 8  # sent and not acknowledged
MESSAGE_BYTES = 512 * 1024
MESSAGE_ENTRIES = 8192
COMMIT_S = 0.1  # between two messages: the commit index is told so often
SILENCE_MAX_S = 5.0  # without an acknowledgement


@dataclass(slots=True, eq=False)
class _Stream:
    """One learner's stream; ``unacknowledged`` holds the last index, or the offset behind a chunk, of each message."""

    route: Route
    id: bytes
    peer: str
    next: int
    deadline: float
    tell_at: float
    snapshot: SnapshotSource | None = None
    offset: int = 0
    unacknowledged: deque[int] = field(default_factory=deque)


class LearnerStreams:
    """All streams, by connection and request id."""

    def __init__(self, node: Node, barriers: Barriers) -> None:
        self._node = node
        self._barriers = barriers
        self._streams: dict[tuple[Route, bytes], _Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def peers(self) -> set[str]:
        """The peers that the streams are for."""
        return {stream.peer for stream in self._streams.values()}

    def request(self, route: Route, request_id: Frame, message: PvFollow) -> None:
        """Handle ``pv.follow``: a new stream, or an acknowledgement."""
        node = self._node
        key = (route, bytes(request_id))
        if node.role != Role.LEADER:
            self._refuse(*key)
            return
        stream = self._streams.get(key)
        if stream is None or not self._acknowledged(stream, message):
            self._end(key)
            if len(self._streams) >= STREAMS_MAX or self._barriers.full:
                node.drop(DropReason.OVERLOAD)
                return
            term = node.log.term_at(message.previous_index)
            if message.previous_index > node.log.last or term not in {None, message.previous_term}:
                # The log that is wrong may be ours, if another leads by now: the barrier tells.
                self._barriers.wait(lambda ok: self._fork(*key, message.previous_index) if ok else self._refuse(*key))
                return
            now = node.now.mono
            stream = self._streams[key] = _Stream(
                *key, message.peer, message.previous_index + 1, now + SILENCE_MAX_S, now
            )
            if message.previous_index < node.log.first - 1 or term is None:
                self._begin_snapshot(stream, message.snapshot_offset or 0)
        self._pump(stream)

    def progress(self) -> None:
        """Send what was committed."""
        for stream in list(self._streams.values()):
            self._pump(stream)

    def deposed(self) -> None:
        """End every stream: the next leader goes on."""
        for key in list(self._streams):
            self._refuse(*key)
            self._end(key)

    def next_timer(self) -> float | None:
        """Return when a commit index has to be told, or a stream may be given up."""
        return min((min(stream.tell_at, stream.deadline) for stream in self._streams.values()), default=None)

    def timer(self) -> None:
        """Do that."""
        now = self._node.now.mono
        for key, stream in list(self._streams.items()):
            if stream.deadline <= now:
                self._end(key)
            elif stream.tell_at <= now:
                stream.tell_at = now + COMMIT_S
                if len(stream.unacknowledged) < WINDOW_MESSAGES and stream.snapshot is None:
                    self._send(stream, FOLLOW_ENTRIES, stream.next - 1, b"")

    def _acknowledged(self, stream: _Stream, message: PvFollow) -> bool:
        """Take an acknowledgement; false for a message that begins the stream anew."""
        place = message.previous_index if stream.snapshot is None else message.snapshot_offset
        if place is None or place not in stream.unacknowledged:
            return False
        while stream.unacknowledged and stream.unacknowledged[0] <= place:
            stream.unacknowledged.popleft()
        stream.deadline = self._node.now.mono + SILENCE_MAX_S
        return True

    def _begin_snapshot(self, stream: _Stream, offset: int) -> None:
        node = self._node
        if node.snapshot is None:
            return
        try:
            stream.snapshot = node.log.open_snapshot(node.snapshot.index)
        except OSError:
            node.halt(Corrupt(node.snapshot.index))
            return
        stream.offset = offset if offset < stream.snapshot.head.total else 0

    def _pump(self, stream: _Stream) -> None:
        node = self._node
        while stream.snapshot is not None or stream.next < node.log.first:
            if stream.snapshot is None:
                if stream.unacknowledged:
                    return  # they are of entries; chunks are acknowledged in another way
                self._begin_snapshot(stream, 0)  # the log was cut meanwhile
            if stream.snapshot is None or not self._pump_snapshot(stream, stream.snapshot):
                return
        while stream.next <= node.commit and len(stream.unacknowledged) < WINDOW_MESSAGES:
            entries = node.read(stream.next, node.commit, MESSAGE_BYTES, MESSAGE_ENTRIES)
            if not entries:
                return
            stream.next += len(entries)
            self._send(stream, FOLLOW_ENTRIES, stream.next - 1, encode_blob(entries))

    def _pump_snapshot(self, stream: _Stream, source: SnapshotSource) -> bool:
        """Send chunks as the window allows; return whether the learner has them all."""
        head = source.head
        while stream.offset < head.total and len(stream.unacknowledged) < WINDOW_MESSAGES:
            at = stream.offset
            try:
                chunk = source.read(at, min(MESSAGE_BYTES, head.total - at))
            except OSError:
                self._node.halt(Corrupt(head.index))
                return False
            stream.offset += len(chunk)
            self._send(stream, FOLLOW_CHUNK, head.index, chunk, stream.offset, (at, head.total))
        if stream.unacknowledged:
            return False
        stream.next = head.index + 1
        stream.snapshot = None
        source.close()
        return True

    def _send(
        self,
        stream: _Stream,
        kind: int,
        index: int,
        data: bytes,
        place: int | None = None,
        part: tuple[int, ...] = (),
    ) -> None:
        stream.unacknowledged.append(index if place is None else place)
        stream.tell_at = self._node.now.mono + COMMIT_S
        self._node.answer(stream.route, stream.id, PvFollowReply(kind, [*self._items(), *part], index, data))

    def _items(self) -> list[Value]:
        return [self._node.commit, self._node.term, self._node.log.first]

    def _fork(self, route: Route, request_id: bytes, index: int) -> None:
        self._node.answer(route, request_id, PvFollowReply(Code.FORK, self._items(), index, b""))

    def _refuse(self, route: Route, request_id: bytes) -> None:
        reply = PvFollowReply(FOLLOW_NOT_LEADER, [self._node.leader, *self._items()], 0, b"")
        self._node.answer(route, request_id, reply)

    def _end(self, key: tuple[Route, bytes]) -> None:
        stream = self._streams.pop(key, None)
        if stream is not None and stream.snapshot is not None:
            stream.snapshot.close()
