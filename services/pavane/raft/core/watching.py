"""Streams of events for watchers, from any peer (docs/specs/raft.md 12.6)."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice

from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Route
from pavane.raft.errors import Code
from pavane.raft.machines.commands import Failed
from pavane.raft.machines.history import Cursor, Event, message_parts
from pavane.raft.machines.interests import Interests
from pavane.raft.machines.keyvalue import KeyValue
from pavane.raft.state.roles import Role
from pavane.raft.wire.frames import Frame
from pavane.raft.wire.pv import PvWatch, PvWatchAcknowledge, PvWatchReply

WATCHES_MAX = 10_000
WINDOW_MESSAGES = 16  # not yet acknowledged
SILENCE_MAX_S = 10.0  # after a message that is not acknowledged
PROGRESS_S = 0.5  # between two looks at a stream; a watcher that wants progress hears within two of them
LOOK_STREAMS = 100  # at once: signs of life to all of thousands would hold up heartbeats
ALONE_REVISIONS = 20  # that are looked at for one stream; who has more to read is read for together with others
GROUP_STREAMS = 1000
GROUP_REVISIONS = 2000  # that are looked at for a group at once: some milliseconds
GROUP_PAUSE_S = 0.01  # then others have their turn
BUSY_MS = 1000


class _Reads(Enum):
    """How a stream gets to what it has not read."""

    ALONE = auto()  # its window is full: it goes on when the watcher acknowledges
    BEHIND = auto()  # together with others that are behind
    WAITING = auto()  # it has read all there is, and is woken by what interests it


@dataclass(slots=True, eq=False)
class _Stream:
    """One watch: where it reads, and the revisions of the messages that are not acknowledged."""

    route: Route
    id: bytes
    cursor: Cursor
    deadline: float = 0.0
    silent: bool = True
    told: int = 0  # the next message names it as the one before: a full route loses messages, and the watcher sees that
    unacknowledged: deque[int] = field(default_factory=deque)
    reads: _Reads = _Reads.ALONE


class _Behind:
    """Streams that are behind: one walk through the history reads for a group of them.

    After a change of leader thousands of watchers come at once, and each has to learn that it missed nothing.
    """

    def __init__(self) -> None:
        self._arrived: dict[_Stream, None] = {}
        self._interests = Interests[_Stream]()
        self.group: dict[_Stream, None] = {}

    def __bool__(self) -> bool:
        return bool(self._arrived or self.group)

    def add(self, stream: _Stream) -> None:
        """Let it go with the next group."""
        self._arrived[stream] = None

    def remove(self, stream: _Stream) -> None:
        """Let it go with none."""
        if stream in self.group:
            del self.group[stream]
            self._interests.remove(stream.cursor.watch, stream)
        else:
            del self._arrived[stream]

    def gather(self) -> None:
        """Form a group if there is none."""
        if self.group:
            return
        for stream in list(islice(self._arrived, GROUP_STREAMS)):
            del self._arrived[stream]
            self.group[stream] = None
            self._interests.add(stream.cursor.watch, stream)

    def interested(self, revision: int, events: Sequence[Event]) -> list[_Stream]:
        """Return who in the group may want ``events`` and has not read them."""
        found = {stream: None for event in events for stream in self._interests.of(event)}
        return [stream for stream in found if stream.cursor.next <= revision]


class Watching:
    """All streams, by connection and request id. A stream reads the machine's history and holds no events itself."""

    def __init__(self, node: Node, machine: KeyValue) -> None:
        self._node = node
        self._machine = machine
        self._streams: dict[tuple[Route, bytes], _Stream] = {}
        self._interests = Interests[_Stream]()
        self._seen = 0  # of the revisions up to here all waiting streams were told what interests them
        self._behind = _Behind()
        self._catch_up_at = 0.0
        self._look_at = 0.0
        self._unlooked: list[_Stream] = []  # of this round, the last one first
        self._pause_s = PROGRESS_S  # between two parts of it

    def __len__(self) -> int:
        return len(self._streams)

    def watch(self, route: Route, request_id: Frame, message: PvWatch) -> None:
        """Begin a watch; one with the same id is replaced."""
        key = (route, bytes(request_id))
        self._forget(key)
        if len(self._streams) >= WATCHES_MAX:
            self._refuse(key, Failed(Code.BUSY, BUSY_MS))
            return
        if self._node.role == Role.REMOVED:
            self._refuse(key, Failed(Code.NOT_LEADER, self._node.leader))
            return
        try:
            cursor = self._machine.watch(message.query, self._node.applied)
        except Failed as failed:
            self._refuse(key, failed)
            return
        if not self._streams:
            self._look_at = self._node.now.mono + PROGRESS_S
        stream = self._streams[key] = _Stream(*key, cursor)
        if cursor.from_now:
            self._send(stream, Code.OK, self._node.applied, ())
        self._read(stream)

    def acknowledge(self, route: Route, request_id: Frame, message: PvWatchAcknowledge) -> None:
        """Go on with a stream, or end it."""
        key = (route, bytes(request_id))
        stream = self._streams.get(key)
        if stream is None:
            return
        if not message.proceed:
            self._forget(key)
            return
        while stream.unacknowledged and stream.unacknowledged[0] <= message.revision:
            stream.unacknowledged.popleft()
        stream.deadline = self._node.now.mono + SILENCE_MAX_S
        if stream.reads == _Reads.ALONE:
            self._read(stream)

    def applied(self) -> None:
        """Send what has happened to those who watch it."""
        history, first = self._machine.state.history, self._seen + 1
        self._seen = self._node.applied
        if not self._streams:
            return
        if history.floor > first:  # a snapshot took the place of what they waited for
            woken = {stream: None for stream in self._streams.values() if stream.reads == _Reads.WAITING}
        else:
            new = (event for _, events in history.since(first) for event in events)
            woken = {stream: None for event in new for stream in self._interests.of(event)}
        for stream in woken:
            stream.cursor.next = max(stream.cursor.next, first)
            self._read(stream)

    def next_timer(self) -> float | None:
        """Return when streams have to be looked at, or read for."""
        if not self._streams:
            return None
        return min(self._look_at, self._catch_up_at) if self._behind else self._look_at

    def timer(self) -> None:
        """Read for streams that are behind; give up streams that are not acknowledged, tell others that nothing
        happened.

        A peer that was removed ends them, one without a leader is silent: so their watchers go elsewhere.
        """
        now = self._node.now.mono
        if self._behind and self._catch_up_at <= now:
            self._catch_up()
            self._catch_up_at = now + GROUP_PAUSE_S
        if self._streams and self._look_at <= now:
            self._look_at_some(now)

    def _look_at_some(self, now: float) -> None:
        if not self._unlooked:
            self._unlooked = list(reversed(self._streams.values()))
            self._pause_s = PROGRESS_S / -(-len(self._unlooked) // LOOK_STREAMS)
        self._look_at = now + self._pause_s
        for stream in self._unlooked[: -LOOK_STREAMS - 1 : -1]:
            if self._streams.get((stream.route, stream.id)) is stream:
                self._look(stream, now)
        del self._unlooked[-LOOK_STREAMS:]

    def _look(self, stream: _Stream, now: float) -> None:
        node, key = self._node, (stream.route, stream.id)
        if node.role == Role.REMOVED:
            self._refuse(key, Failed(Code.NOT_LEADER, node.leader))
        elif stream.unacknowledged and stream.deadline <= now:
            self._forget(key)
        elif node.leader is None:
            return
        elif stream.cursor.progress and stream.silent and len(stream.unacknowledged) < WINDOW_MESSAGES:
            reached = stream.cursor.next - 1
            if stream.reads == _Reads.WAITING:
                reached = max(reached, self._seen)
            # Who has seen more than this peer has is told so: it lags, or goes on from an older copy of its data.
            self._send(stream, Code.OK, min(reached, node.applied), ())
        else:
            stream.silent = True

    def _read(self, stream: _Stream) -> None:
        """Send a stream what it has not read, as far as that is found soon and the window goes."""
        while len(stream.unacknowledged) < WINDOW_MESSAGES:
            try:
                found = stream.cursor.take(self._machine.state.history, self._node.applied, ALONE_REVISIONS)
            except Failed as failed:
                self._refuse((stream.route, stream.id), failed)
                return
            if found is None:
                self._let(stream, _Reads.WAITING if stream.cursor.next > self._node.applied else _Reads.BEHIND)
                return
            self._tell(stream, *found)
        self._let(stream, _Reads.ALONE)

    def _catch_up(self) -> None:
        """Read on for the group of those that are behind."""
        behind, history = self._behind, self._machine.state.history
        behind.gather()
        for stream in [stream for stream in behind.group if stream.cursor.next < history.floor]:
            self._refuse((stream.route, stream.id), Failed(Code.COMPACTED, history.floor))
        read_to = min((stream.cursor.next for stream in behind.group), default=1) - 1
        looked = 0
        for revision, events in islice(history.since(read_to + 1), GROUP_REVISIONS):
            looked, read_to = looked + 1, revision
            for stream in behind.interested(revision, events):
                wanted = stream.cursor.wanted(events)
                if wanted and len(stream.unacknowledged) >= WINDOW_MESSAGES:
                    stream.cursor.next = revision
                    self._let(stream, _Reads.ALONE)
                elif wanted:
                    self._tell(stream, revision, wanted)
        if looked < GROUP_REVISIONS:
            read_to = self._node.applied
        for stream in list(behind.group):
            stream.cursor.next = max(stream.cursor.next, read_to + 1)
            if stream.cursor.next > self._node.applied:
                self._let(stream, _Reads.WAITING)

    def _tell(self, stream: _Stream, revision: int, events: Sequence[Event]) -> None:
        parts = list(message_parts(events))
        for part in parts[:-1]:
            self._send(stream, Code.PENDING, revision, part)
        self._send(stream, Code.OK, revision, parts[-1])

    def _let(self, stream: _Stream, reads: _Reads) -> None:
        """Change how a stream reads."""
        if stream.reads == reads:
            return
        if stream.reads == _Reads.WAITING:
            self._interests.remove(stream.cursor.watch, stream)
        elif stream.reads == _Reads.BEHIND:
            self._behind.remove(stream)
        stream.reads = reads
        if reads == _Reads.WAITING:
            self._interests.add(stream.cursor.watch, stream)
        elif reads == _Reads.BEHIND:
            self._behind.add(stream)

    def _forget(self, key: tuple[Route, bytes]) -> None:
        stream = self._streams.pop(key, None)
        if stream is not None:
            self._let(stream, _Reads.ALONE)

    def _send(self, stream: _Stream, code: Code, revision: int, events: Sequence[Event]) -> None:
        if not stream.unacknowledged:
            stream.deadline = self._node.now.mono + SILENCE_MAX_S
        stream.unacknowledged.append(revision)
        stream.silent = False
        reply = PvWatchReply(code, revision, [list(event) for event in events], stream.told)
        if code == Code.OK:
            stream.told = revision
        else:  # the next part says by this how many events of the revision lie before it
            stream.told = max(stream.told, revision) + len(events)
        self._node.answer(stream.route, stream.id, reply)

    def _refuse(self, key: tuple[Route, bytes], failed: Failed) -> None:
        """End a watch; of a compacted history the revision is the first that is still there."""
        self._forget(key)
        route, request_id = key
        revision = failed.argument if failed.code == Code.COMPACTED and isinstance(failed.argument, int) else 0
        self._node.answer(route, request_id, PvWatchReply(failed.code, revision, [failed.argument]))
