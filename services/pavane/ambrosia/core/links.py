"""Streams between coordinators, the one to oneself included (docs/specs/ambrosia.md 11)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pavane.ambrosia.core.pipeline import Pipeline
from pavane.ambrosia.effects import (
    COMMIT_COALESCE_MESSAGES,
    COMMIT_COALESCE_S,
    LINK_DIVERGED_S,
    Attach,
    CloseStream,
    Effect,
    Say,
    Timer,
    ToStream,
)
from pavane.ambrosia.errors import Fatal, FatalError, Reason
from pavane.ambrosia.state import OURSELVES, STREAM_TABLE, Diverged, End, Output
from pavane.ambrosia.wire.batches import count_calls
from pavane.ambrosia.wire.limits import (
    BATCH_BYTES,
    INPUT_BYTES_MIN,
    INPUT_TOTAL_BYTES,
    LINK_SEND_BYTES,
    PEERS_MAX,
)
from pavane.ambrosia.wire.links import Answer, Channel, Code, Hello, Token
from pavane.ambrosia.wire.messages import (
    BATCH_TYPES,
    Commit,
    Frame,
    MessageBuffer,
    ReplayFrom,
    Type,
    batch,
    read_batch,
    read_trim_to,
    trim_to,
)
from pavane.ambrosia.wire.primitives import Buffer
from pavane.wire import RemoteProtocolError

MALFORMED_IN_A_ROW_MAX = 3  # then the peer is refused for a while
COMMITS = "commits"  # the timer


@dataclass(slots=True)
class Stream:
    """One connection; ``greeted`` once its first message came or went."""

    number: int
    peer: str
    end: End
    greeted: bool = False
    blocked: bool = False  # the pending record has no room for what came
    unwritten: int = 0  # bytes handed out and not yet taken by the socket
    since: int = 0  # when it began to keep INPUT_BYTES_MIN or more, by a count; 0 = it keeps less
    incoming: MessageBuffer = field(default_factory=MessageBuffer)


_ENDS = {
    (Channel.DATA, True): End.DATA_SENDER,
    (Channel.DATA, False): End.DATA_RECEIVER,
    (Channel.CONTROL, True): End.COMMIT_SENDER,
    (Channel.CONTROL, False): End.COMMIT_RECEIVER,
}


class Links:
    """All streams of a coordinator; none before ``open`` (N10).

    ``grown`` is called with a new name, before it is attached, ``meets`` with that of a peer that goes on with an
    instance made from a backup.
    """

    def __init__(
        self,
        name: str,
        pipeline: Pipeline,
        emit: Callable[[Effect], None],
        grown: Callable[[str], None],
        meets: Callable[[str], None],
    ) -> None:
        self.outputs: dict[str, Output] = {}
        self.attached: set[str] = set()
        self.live = False
        self.complete = True  # False after a promotion until a checkpoint: the application may be handling old records
        self.faults: dict[str, int] = {}
        self._name = name
        self._pipeline = pipeline
        self._emit = emit
        self._grown = grown
        self._streams: dict[int, Stream] = {}
        self._by_end: dict[tuple[str, End], Stream] = {}
        self._committed: dict[str, tuple[int, int]] = {}  # last Commit per stream of ours
        self._timer_set = False
        self._uncommitted = 0
        self._tokens: dict[str, Token] = {}
        self._diverged: dict[str, str] = {}
        self._malformed: dict[str, int] = {}
        self._counted = 0
        self._greeted: set[tuple[str, End]] = set()
        self._restored: set[str] = set()
        self.made: Mapping[str, int] | None = None  # calls that a backup leads to; None: not made from one (N12)
        self.met: set[str] = set()  # peers that were compared with it
        self._meets = meets

    def restored(self, names: set[str]) -> None:
        """Note which peers came out of a checkpoint, for the lines that others read."""
        self._restored |= names

    def output(self, name: str) -> Output:
        """Return the output to ``name``, made if it is new."""
        found = self.outputs.get(name)
        if found is None:
            found = self.outputs[name] = Output()
        return found

    @property
    def output_bytes(self) -> int:
        """Bytes in all outputs."""
        return sum(output.bytes for output in self.outputs.values())

    def attach(self, name: str) -> None:
        """Talk to ``name`` from now on; again is no news. Raises ``RemoteProtocolError`` beyond ``PEERS_MAX``."""
        if name in (OURSELVES, self._name) or name in self.attached:
            return
        if len(self.attached) >= PEERS_MAX:
            raise RemoteProtocolError(Reason.SIZE, f"{name} would be more than PEERS_MAX ({PEERS_MAX}) peers")
        self.attached.add(name)
        self._grown(name)
        if self.live:
            self._dial(name)

    def open(self) -> None:
        """Go live: the stream to oneself at once, then all others."""
        self.live = True
        self._say_opened(OURSELVES, End.DATA_SENDER, End.DATA_RECEIVER, End.COMMIT_SENDER, End.COMMIT_RECEIVER)
        last, replayable = self._pipeline.inputs.get(OURSELVES, (0, 0))
        self.output(OURSELVES).replay_from(ReplayFrom(last + 1, replayable + 1), complete=self.complete)
        self._commit_to_ourselves()
        for name in sorted(self.attached):
            self._dial(name)
        self.pump()

    def _dial(self, name: str) -> None:
        self._emit(Say(f"Attaching to {name}"))
        self._emit(Attach(name))

    def accept(self, number: int, hello: Hello) -> Answer:
        """Decide about a stream that a peer dialled; with code 0 it is open once the answer is written (``begin``)."""
        known = self._tokens.get(hello.source, (0, 0))
        if hello.target != self._name:
            return Answer(Code.UNKNOWN, text=f"this is {self._name}, not {hello.target}")
        if not self.live:
            return Answer(Code.NOT_LIVE, text=f"{self._name} is not live yet")
        if hello.token < known:
            return Answer(Code.OLD_TOKEN, known, "a newer process of this name has been here")
        if hello.source in self._diverged:
            return Answer(Code.DIVERGED, known, self._diverged[hello.source])
        try:
            self.attach(hello.source)
        except RemoteProtocolError as error:
            return Answer(Code.UNKNOWN, text=str(error))
        self._tokens[hello.source] = hello.token
        self._add(number, hello.source, _ENDS[hello.channel, False])
        return Answer(Code.SUCCESS, hello.token)

    def begin(self, number: int) -> None:
        """Speak first on an accepted stream (11.2, 11.3)."""
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.greeted = True
        if stream.end is End.DATA_RECEIVER:
            last, replayable = self._pipeline.inputs.get(stream.peer, (0, 0))
            self._write(stream, ReplayFrom(last + 1, replayable + 1).encode())
        else:
            self._write(stream, trim_to(self.output(stream.peer).trim))

    def dialled(self, number: int, peer: str, channel: Channel) -> None:
        """A stream that we dialled is open; the peer speaks first."""
        if self.live:
            self._add(number, peer, _ENDS[channel, True])

    def _add(self, number: int, peer: str, end: End) -> None:
        old = self._by_end.get((peer, end))
        if old is not None:  # the newest wins; what it left unread comes again (N7)
            self._close(old, "a newer stream took its place")
        stream = Stream(number, peer, end)
        self._streams[number] = self._by_end[peer, end] = stream
        self._say_opened(peer, end)

    def _say_opened(self, peer: str, *ends: End) -> None:
        for end in ends:
            verb = "restoring" if (peer, end) in self._greeted or peer in self._restored else "Adding"
            self._greeted.add((peer, end))
            side = "output" if end in (End.DATA_SENDER, End.COMMIT_SENDER) else "input"
            self._emit(Say(f"{verb} {side}:{peer}"))

    def closed(self, number: int) -> None:
        """A stream has ended."""
        stream = self._streams.pop(number, None)
        if stream is None:
            return
        self._by_end.pop((stream.peer, stream.end), None)
        if stream.end is End.DATA_SENDER:
            self.output(stream.peer).stop()

    def received(self, number: int, data: Buffer) -> None:
        """Take bytes of a stream; what does not fit the pending record waits here."""
        stream = self._streams.get(number)
        if stream is not None:
            stream.incoming.feed(data)
            self._read(stream)
            if len(stream.incoming) < INPUT_BYTES_MIN:
                stream.since = 0
                return
            self._counted += 1
            stream.since = stream.since or self._counted
            self._make_room()

    def _make_room(self) -> None:
        """End the streams that keep something for longest, while all together keep too much."""
        keeping = [each for each in self._streams.values() if len(each.incoming) >= INPUT_BYTES_MIN]
        keeping.sort(key=lambda each: each.since)
        kept = sum(len(each.incoming) for each in keeping)
        while kept > INPUT_TOTAL_BYTES:
            oldest = keeping.pop(0)
            kept -= len(oldest.incoming)
            text = f"{len(oldest.incoming)} bytes of it make no message, and all links together keep too many of these"
            self._emit(Say(f"Error on the link of {oldest.peer} to {self._name}: {text}", error=True))
            self._close(oldest, text)

    def blocked(self, number: int) -> bool:
        """Whether bytes of the stream wait for room; its reader waits too then."""
        stream = self._streams.get(number)
        return stream is not None and stream.blocked

    def greeted(self, number: int) -> bool:
        """Whether the peer has said its first message on a stream, or owes none."""
        stream = self._streams.get(number)
        return stream is None or stream.greeted

    def peer(self, number: int) -> str:
        """Return who is at the other end of a stream, "" if it is closed."""
        stream = self._streams.get(number)
        return stream.peer if stream is not None else ""

    def wrote(self, number: int, size: int) -> None:
        """The socket took bytes of a stream."""
        stream = self._streams.get(number)
        if stream is not None:
            stream.unwritten -= size
            self._send(stream)

    def pump(self) -> None:
        """Go on wherever something waited: messages to oneself, streams with more to say, inputs without room."""
        if not self.live:
            return
        for name, output in self.outputs.items():
            if not output.waits:
                continue
            if name == OURSELVES:
                self._pump_ourselves()
            elif (stream := self._by_end.get((name, End.DATA_SENDER))) is not None:
                self._send(stream)

    def resume(self) -> None:
        """Read on where the pending record had no room."""
        if self.live:
            for stream in [stream for stream in self._streams.values() if stream.blocked]:
                self._read(stream)

    def _read(self, stream: Stream) -> None:
        stream.blocked = False
        try:
            while self._streams.get(stream.number) is stream:
                message = stream.incoming.next()
                if message is None:
                    return
                if stream.end is End.DATA_RECEIVER and not self._pipeline.room(len(message.raw)):
                    stream.incoming.put_back(message)
                    stream.blocked = True
                    return
                self._take(stream, message)
        except Diverged as error:
            self._diverge(stream.peer, str(error))
        except RemoteProtocolError as error:
            self._refuse(stream, error)

    def _take(self, stream: Stream, message: Frame) -> None:
        if message.type not in STREAM_TABLE[stream.end, stream.greeted]:
            raise RemoteProtocolError(Reason.TYPE, f"type {message.type} has no place on the stream {stream.end.value}")
        if message.type == Type.REPLAY_FROM:
            wanted = ReplayFrom.decode(message.data)
            self._compare(stream.peer, wanted.next_replayable - 1)
            self.output(stream.peer).replay_from(wanted, complete=self.complete)
            if self.made is not None and stream.peer not in self.met:
                self.met.add(stream.peer)
                self._meets(stream.peer)
            stream.greeted = True
            self._send(stream)
        elif message.type == Type.TRIM_TO:
            read_trim_to(message.data)
            stream.greeted = True
            self._committed.pop(stream.peer, None)
            self._commit(stream)
        elif message.type == Type.COMMIT:
            output = self.output(stream.peer)
            if output.commit(Commit.decode(message.data), complete=self.complete):
                self._pipeline.acknowledged(stream.peer, output.replayable_trim)
        else:
            calls, replayable = count_calls(message)
            raw = message.raw
            if message.type in BATCH_TYPES and calls == 1:
                raw = read_batch(message)[0].raw  # readers trip over batches of one
            if calls:
                self._pipeline.add(stream.peer, raw, calls, replayable)
        self._malformed.pop(stream.peer, None)

    def _compare(self, peer: str, held: int) -> None:
        """Raise ``Diverged`` for a peer that has calls made behind the backup: new ones have their numbers."""
        if self.made is None or peer in self.met:
            return
        leads = self.made.get(peer, 0)
        if held > leads:
            text = f"it has {held} calls of {self._name}, which was restored from a backup that leads to {leads}"
            raise Diverged(f"{text}: the others were made and lost since")

    def _refuse(self, stream: Stream, error: RemoteProtocolError) -> None:
        self.faults[error.reason] = self.faults.get(error.reason, 0) + 1
        again = self._malformed[stream.peer] = self._malformed.get(stream.peer, 0) + 1
        hold = LINK_DIVERGED_S if again >= MALFORMED_IN_A_ROW_MAX else 0.0
        self._emit(Say(f"Error on the link of {stream.peer} to {self._name}: {error}", error=True))
        self._close(stream, str(error), hold)

    def _diverge(self, peer: str, text: str) -> None:
        text = f"{self._name} and {peer} contradict each other: {peer}: {text}; nothing is skipped, retry later"
        self._diverged[peer] = text
        self._emit(Say(text, error=True))
        self._emit(Timer(f"diverged {peer}", LINK_DIVERGED_S))
        for end in (End.DATA_SENDER, End.DATA_RECEIVER):
            stream = self._by_end.get((peer, end))
            if stream is not None:
                self._close(stream, text, LINK_DIVERGED_S)

    def timer(self, name: str) -> None:
        """A timer of ours has rung."""
        if name == COMMITS:
            self._timer_set = False
            self._commit_all()
        else:
            self._diverged.pop(name.removeprefix("diverged "), None)

    def _close(self, stream: Stream, text: str, hold: float = 0.0) -> None:
        self.closed(stream.number)
        self._emit(CloseStream(stream.number, text, hold))

    def durable(self, messages: int) -> None:
        """More inputs are durable: acknowledge them soon."""
        self._commit_to_ourselves()
        self._uncommitted += messages
        if self._uncommitted >= COMMIT_COALESCE_MESSAGES:
            self._commit_all()
        elif not self._timer_set and self._uncommitted:
            self._timer_set = True
            self._emit(Timer(COMMITS, COMMIT_COALESCE_S))

    def _commit_all(self) -> None:
        self._uncommitted = 0
        for stream in list(self._streams.values()):
            if stream.end is End.COMMIT_SENDER and stream.greeted:
                self._commit(stream)

    def _commit(self, stream: Stream) -> None:
        held = self._pipeline.durable.get(stream.peer, (0, 0))
        if held[0] > 0 and self._committed.get(stream.peer) != held:
            self._committed[stream.peer] = held
            self._write(stream, Commit(*held).encode())

    def _commit_to_ourselves(self) -> None:
        held = self._pipeline.durable.get(OURSELVES, (0, 0))
        output = self.output(OURSELVES)
        try:
            grown = held[0] > 0 and output.commit(Commit(*held), complete=self.complete)
        except Diverged as error:
            raise FatalError(Fatal.LOG, f"{self._name} contradicts its own log: {error}") from error
        if grown:
            self._pipeline.acknowledged(OURSELVES, output.replayable_trim)

    def _pump_ourselves(self) -> None:
        output = self.output(OURSELVES)
        while True:
            taken = output.take(1)
            if not taken:
                return
            message = taken[0]
            if not self._pipeline.room(len(message.raw)):
                output.put_back(taken)
                return
            self._pipeline.add(OURSELVES, message.raw, 1, int(not message.impulse))

    def _send(self, stream: Stream) -> None:
        if stream.end is not End.DATA_SENDER or not stream.greeted:
            return
        output = self.outputs[stream.peer]
        while stream.unwritten < LINK_SEND_BYTES:
            taken = output.take(BATCH_BYTES)
            if not taken:
                return
            impulses = sum([message.impulse for message in taken])
            self._write(stream, batch([message.raw for message in taken], impulses=impulses))

    def _write(self, stream: Stream, data: bytes) -> None:
        stream.unwritten += len(data)
        self._emit(ToStream(stream.number, data))

    def states(self) -> dict[str, str]:
        """Say per peer how its link is."""
        return {name: self._state(name) for name in sorted(self.attached)}

    def _state(self, name: str) -> str:
        if name in self._diverged:
            return "diverged"
        return "connected" if (name, End.DATA_SENDER) in self._by_end else "unreachable"
