"""A controller of replicas without I/O: what runs, what is readable, who waits (docs/specs/compute.md 10).

Duties of whoever drives it: carry out the effects of each call in order; hand in what a replica says with the
connection it came from; begin a connection with ``connect`` and send what ``opened`` returns before anything else. Rows
are bytes: of an ``Updates`` the receiver ships those with times from ``at_least`` on.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from pavane.compute.core.collections import BrokenReplica, Collection, Seen
from pavane.compute.core.replica import EXIT_BROKEN, EXIT_ENGINE, RESULT_BYTES_MAX
from pavane.compute.state.history import History
from pavane.compute.wire.commands import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    Command,
    CreateDataflow,
    DataflowDescription,
    Finishing,
    InitializationComplete,
    MaterializedView,
    Peek,
    Schedule,
    Subscribe,
    UpdateConfiguration,
)
from pavane.compute.wire.common import CLOSED, Epoch, Failure, Relation, Rows, Token
from pavane.compute.wire.responses import (
    Batch,
    Canceled,
    CopyToResponse,
    Frontiers,
    PeekResponse,
    Response,
    RowsPart,
    StageReport,
    Stashed,
    SubscribeResponse,
)
from pavane.wire import LocalProtocolError

EXITS_MAX = 3  # of replicas on account of one dataflow, within this time
EXITS_SECONDS = 120.0


class SinceAdvanced(Exception):
    """The contents at this tick can no longer be read exactly."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``command`` on this connection of ``replica``."""

    replica: str
    connection: Epoch
    command: Command


@dataclass(frozen=True, slots=True)
class Hang:
    """The replica broke the protocol: end this connection and dial again."""

    replica: str
    connection: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class Answered:
    """A peek is over: rows at ``tick``, or an error."""

    uuid: bytes
    tick: int
    result: tuple[Rows, ...] | Failure


@dataclass(frozen=True, slots=True)
class Updates:
    """Of ``rows`` those with times from ``at_least`` on are news for a subscriber; below ``upper`` all is told."""

    id: str
    at_least: int
    upper: int
    rows: Rows


@dataclass(frozen=True, slots=True)
class Ended:
    """A subscribe cannot go on."""

    id: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A dataflow was dropped because replicas kept exiting after it was created."""

    exports: tuple[str, ...]
    reason: str


Effect = Send | Hang | Answered | Updates | Ended | Quarantined


@dataclass(slots=True)
class _Replica:
    connections: int = 0
    connection: Epoch | None = None
    open: bool = False
    report: StageReport | None = None
    parts: dict[bytes, list[Rows]] = field(default_factory=dict)
    uppers: dict[str, int] = field(default_factory=dict)  # of the batches of each subscribe on this connection


@dataclass(slots=True)
class _Waiting:
    """A peek that has no tick yet, or that was sent."""

    uuid: bytes
    id: str
    after: int
    target: str | None
    finishing: Finishing | None
    result: Relation | None
    map_filter_project: bytes
    tick: int | None = None


class ControllerCore:
    """All collections of one generation. ``boot`` is the controller's own boot number, the first half of its epochs.

    ``lag`` is how many ticks below a collection's upper stay readable.
    """

    def __init__(self, generation: int, boot: int, *, lag: int = 1) -> None:
        self.generation = generation
        self.boot = boot
        self.ignored = 0
        self.token: Token | None = None
        self._lag = lag
        self._history = History([InitializationComplete()])
        self._replicas: dict[str, _Replica] = {}
        self._collections: dict[str, Collection] = {}
        self._uppers: dict[str, int] = {}  # of stored inputs
        self._peeks: dict[bytes, _Waiting] = {}
        self._emitted: dict[str, int] = {}  # F of each subscribe
        self._last_tick: int | None = None
        self._floor = 0
        self._effects: list[Effect] = []
        self._created = 0
        # What this turn has to look at, so that a response costs the same whatever else there is.
        self._changed: set[str] = set()
        self._unscheduled: set[str] = set()
        self._going: set[str] = set()
        self._undated: dict[bytes, _Waiting] = {}
        self._exits: list[tuple[float, Collection]] = []

    # ---- replicas

    def connect(self, replica: str) -> Epoch:
        """Return the epoch of a new connection to ``replica``; what a former one says from now on is ignored."""
        known = self._replicas.setdefault(replica, _Replica())
        self._forget_connection(replica)
        known.connections += 1
        known.connection = Epoch(self.boot, known.connections)
        return known.connection

    def opened(self, replica: str, connection: Epoch) -> tuple[Effect, ...]:
        """Return what a connection begins with after CreateInstance; nothing for one that was replaced."""
        known = self._replicas[replica]
        if known.connection != connection:
            return ()
        known.open = True
        for command in self._history.commands(self._uppers):
            self._effects.append(Send(replica, connection, command))
        for collection in self._collections.values():
            if not collection.dropped:
                collection.seen[replica] = Seen()
        return self._done()

    def closed(self, replica: str, connection: Epoch) -> tuple[Effect, ...]:
        """Note that a connection is over: its frontiers are forgotten, peeks that named it have failed."""
        if replica in self._replicas and self._replicas[replica].connection == connection:
            self._forget_connection(replica)
        return self._done()

    def remove(self, replica: str) -> tuple[Effect, ...]:
        """Forget ``replica``."""
        if replica in self._replicas:
            self._forget_connection(replica)
            del self._replicas[replica]
        return self._done()

    def exited(self, code: int, reason: str, now: float) -> tuple[Effect, ...]:
        """Note that a replica's process ended with ``code`` at ``now``, in seconds.

        The dataflow that was created last is dropped when replicas could not go on with it several times in a row.
        """
        last = max(
            (each for each in self._collections.values() if each.wanted), key=lambda each: each.number, default=None
        )
        if last is None or code not in (EXIT_BROKEN, EXIT_ENGINE):
            return ()
        recent = [(at, each) for at, each in self._exits if now - at < EXITS_SECONDS and each is last]
        self._exits = [*recent, (now, last)]
        if len(self._exits) < EXITS_MAX:
            return ()
        self._exits.clear()
        exports = last.description.exports
        for peek in [each for each in self._peeks.values() if each.id in exports]:
            self._finish(peek, Failure("Quarantined", reason))
        self._effects.append(Quarantined(exports, reason))
        return self.drop(exports)

    @property
    def connected(self) -> dict[str, StageReport | None]:
        """Replicas that are connected, and what they last said about themselves."""
        return {name: each.report for name, each in self._replicas.items() if each.open}

    def _forget_connection(self, replica: str) -> None:
        known = self._replicas[replica]
        known.connection, known.open, known.report = None, False, None
        known.parts.clear()
        known.uppers.clear()
        for collection in self._collections.values():
            collection.seen.pop(replica, None)
        self._changed.update(self._collections)
        for peek in [each for each in self._peeks.values() if each.target == replica]:
            self._finish(peek, Failure("ReplicaFailed", f"target replica {replica} failed"))

    # ---- dataflows

    @property
    def collections(self) -> dict[str, Collection]:
        """All collections that are not forgotten, by id."""
        return self._collections

    def create(self, description: DataflowDescription) -> tuple[Effect, ...]:
        """Begin a dataflow at its as_of.

        Raises ``SinceAdvanced`` when an imported index can no longer be read there, ``LocalProtocolError`` when an
        import is unknown or an export was not forgotten yet.
        """
        for id_ in description.exports:
            if id_ in self._collections or self._history.flow(id_) is not None:
                raise LocalProtocolError(f"the collection {id_} is not forgotten yet")
        for index in description.indexes:
            imported = self._collections.get(index.id)
            if imported is None or imported.dropped:
                raise LocalProtocolError(f"the dataflow imports {index.id}, which does not exist")
            if imported.since > description.as_of:
                raise SinceAdvanced(f"{index.id} is readable from {imported.since} on, not at {description.as_of}")
        sinks = {sink.id: sink.connection for sink in description.sink_exports}
        open_ = [name for name, known in self._replicas.items() if known.open]
        for id_ in description.exports:
            sink = sinks.get(id_)
            self._created += 1
            collection = Collection(id_, description, sink, {name: Seen() for name in open_}, self._created)
            self._collections[id_] = collection
            self._unscheduled.add(id_)
            for index in description.indexes:
                self._collections[index.id].importers.append(collection)
            if isinstance(sink, Subscribe):
                self._emitted[id_] = description.as_of
        self._broadcast(CreateDataflow(description))
        if self.token is not None:
            self._allow(description.exports)
        return self._done()

    def drop(self, ids: Iterable[str]) -> tuple[Effect, ...]:
        """Drop these collections; each goes when its last reader has gone."""
        for id_ in ids:
            collection = self._collections.get(id_)
            if collection is not None:
                collection.wanted = False
                self._changed.add(id_)
                for peek in [each for each in self._peeks.values() if each.id == id_ and each.tick is None]:
                    self._finish(peek, Failure("Dropped", f"{id_} was dropped"))
        return self._done()

    def configure(self, settings: dict[str, str]) -> tuple[Effect, ...]:
        """Hand live settings to all replicas."""
        self._broadcast(UpdateConfiguration(settings))
        return self._done()

    def allow_writes(self, token: Token) -> tuple[Effect, ...]:
        """Let replicas write by ``token``, collection by collection; also those that are created later.

        Its generation is the controller's, or the greater one from which that takes the right to write back.
        """
        if token.generation < self.generation:
            raise LocalProtocolError(f"the token {token} is of a generation before the controller's, {self.generation}")
        self.token = token
        self._allow(id_ for id_, each in self._collections.items() if not each.dropped)
        return self._done()

    def advance(self, uppers: dict[str, int]) -> tuple[Effect, ...]:
        """Note how far stored inputs are complete. These ticks never fall."""
        for id_, upper in uppers.items():
            self._uppers[id_] = max(upper, self._uppers.get(id_, 0))
        return self._done()

    def tick(self, last: int, floor: int | None = None) -> tuple[Effect, ...]:
        """Note the last tick that this leader minted; ``floor`` is the one it found when it took the lead.

        Without any call, in read-only mode, "now" is bounded by the collection alone.
        """
        self._last_tick = max(last, self._last_tick or 0)
        self._floor = max(self._floor, floor or 0)
        self._changed.update(self._collections)
        return self._done()

    # ---- peeks

    def peek(
        self,
        uuid: bytes,
        id_: str,
        *,
        at: int | None = None,
        after: int = 0,
        target: str | None = None,
        finishing: Finishing | None = None,
        result: Relation | None = None,
        map_filter_project: bytes = b"",
    ) -> tuple[Effect, ...]:
        """Read an index at a tick, or ``None`` = now, which is never before ``after``.

        Raises ``SinceAdvanced`` for a tick that is no longer readable and ``LocalProtocolError`` for what is unknown.
        """
        collection = self._collections.get(id_)
        if collection is None or not collection.wanted:
            raise LocalProtocolError(f"there is no collection {id_}")
        if uuid in self._peeks:
            raise LocalProtocolError("a peek with this uuid is open")
        if target is not None and (target not in self._replicas or not self._replicas[target].open):
            raise LocalProtocolError(f"the replica {target} is not connected")
        if at is not None and at < collection.since:
            raise SinceAdvanced(f"{id_} is readable from {collection.since} on, not at {at}")
        waiting = _Waiting(uuid, id_, after, target, finishing, result, map_filter_project)
        self._peeks[uuid] = waiting
        if at is None:
            self._undated[uuid] = waiting
        else:
            self._send_peek(waiting, collection, at)
        return self._done()

    def cancel(self, uuid: bytes) -> tuple[Effect, ...]:
        """Give a peek up: it gets no answer."""
        waiting = self._peeks.get(uuid)
        if waiting is not None:
            self._finish(waiting, None)
        return self._done()

    def now(self, id_: str) -> int | None:
        """The greatest tick at which ``id_`` can be read, ``None`` while there is none."""
        collection = self._collections[id_]
        tick = collection.write - 1
        if self._last_tick is not None:
            tick = min(tick, self._last_tick)
        elif collection.write == CLOSED:
            tick = collection.since
        return tick if tick >= max(self._floor, collection.since) else None

    def _send_peek(self, waiting: _Waiting, collection: Collection, tick: int) -> None:
        waiting.tick = tick
        self._undated.pop(waiting.uuid, None)
        collection.holds[waiting.uuid] = tick
        view = collection.sink if isinstance(collection.sink, MaterializedView) else None
        peek = Peek(
            waiting.uuid,
            tick,
            index=waiting.id if view is None else None,
            chain=None if view is None else view.chain,
            map_filter_project=waiting.map_filter_project,
            finishing=waiting.finishing,
            result=waiting.result,
        )
        self._to(waiting.target, peek)

    def _finish(self, waiting: _Waiting, result: tuple[Rows, ...] | Failure | None) -> None:
        """Cancel everywhere, and only then let go of the tick."""
        del self._peeks[waiting.uuid]
        self._undated.pop(waiting.uuid, None)
        self._changed.add(waiting.id)
        for known in self._replicas.values():
            known.parts.pop(waiting.uuid, None)
        if waiting.tick is not None:
            self._to(waiting.target, CancelPeek(waiting.uuid))
            self._collections[waiting.id].holds.pop(waiting.uuid, None)
        if result is not None:
            self._effects.append(Answered(waiting.uuid, waiting.tick or 0, result))

    # ---- what replicas say

    def receive(self, replica: str, connection: Epoch, response: Response) -> tuple[Effect, ...]:
        """Take a response; one of a former connection, or about what is not known (any more), is ignored."""
        known = self._replicas.get(replica)
        if known is None or known.connection != connection or not known.open:
            self.ignored += 1
            return ()
        try:
            match response:
                case Frontiers():
                    self._frontiers(replica, response)
                case PeekResponse():
                    self._peeked(known, response)
                case SubscribeResponse():
                    self._subscribed(known, replica, response)
                case StageReport():
                    known.report = response
                case CopyToResponse():
                    self.ignored += 1
                case _:
                    pass
        except BrokenReplica as error:
            self._effects.append(Hang(replica, connection, str(error)))
            self._forget_connection(replica)
        return self._done()

    def _frontiers(self, replica: str, response: Frontiers) -> None:
        collection = self._collections.get(response.id)
        if collection is None or replica not in collection.seen:
            self.ignored += 1
            return
        collection.take(replica, response)
        self._changed.add(collection.id)

    def _peeked(self, known: _Replica, response: PeekResponse) -> None:
        waiting = self._peeks.get(response.uuid)
        if waiting is None or waiting.tick is None:
            self.ignored += 1
            return
        match response.result:
            case Rows() as rows:
                self._finish(waiting, (rows,))
            case RowsPart(number, last, rows):
                parts = known.parts.setdefault(response.uuid, [])
                if number != len(parts):
                    raise BrokenReplica(f"part {number} of an answer after {len(parts)}")
                parts.append(rows)
                if sum(len(part.arrow_ipc) for part in parts) > RESULT_BYTES_MAX:
                    self._finish(waiting, Failure("TooLarge", f"more than {RESULT_BYTES_MAX} bytes"))
                elif last:
                    self._finish(waiting, tuple(parts))
            case Failure() as failure:
                self._finish(waiting, failure)
            case Stashed(url):
                self._finish(waiting, Failure("Unsupported", f"the answer lies at {url}, where nobody here reads"))
            case Canceled():
                self.ignored += 1

    def _subscribed(self, known: _Replica, replica: str, response: SubscribeResponse) -> None:
        id_, kind = response.id, response.kind
        collection = self._collections.get(id_)
        if collection is None or replica not in collection.seen:
            self.ignored += 1
            return
        upper = known.uppers.get(id_, 0)
        if upper == CLOSED:
            raise BrokenReplica(f"{id_} says more after its end")
        if not isinstance(kind, Batch):
            known.uppers[id_] = CLOSED
            del collection.seen[replica]
            if collection.wanted:
                self._end(collection, Failure("Dropped", f"{replica} dropped {id_}"))
            return
        if kind.lower != upper or kind.upper <= upper or kind.upper < collection.description.as_of:
            raise BrokenReplica(f"{id_} sent [{kind.lower}, {kind.upper}) after {upper}")
        known.uppers[id_] = kind.upper
        self._changed.add(id_)
        if collection.dropped and kind.upper == CLOSED:
            del collection.seen[replica]  # it ended while the drop was on its way, so no more is owed
        emitted = self._emitted.get(id_, 0)
        if kind.upper <= emitted or not collection.wanted:
            return
        if isinstance(kind.content, Failure):
            self._end(collection, kind.content)
            return
        self._emitted[id_] = kind.upper
        collection.write = max(collection.write, kind.upper)
        self._effects.append(Updates(id_, emitted, kind.upper, kind.content))

    def _end(self, collection: Collection, failure: Failure) -> None:
        collection.wanted = False
        self._changed.add(collection.id)
        self._effects.append(Ended(collection.id, failure))

    # ---- what follows from a turn

    def _broadcast(self, command: Command) -> None:
        self._to(None, command)

    def _to(self, target: str | None, command: Command) -> None:
        """Send to one replica; or to all, and to those that come later."""
        if target is None:
            self._history.push(command)
        for name, known in self._replicas.items():
            if known.open and known.connection is not None and target in (None, name):
                self._effects.append(Send(name, known.connection, command))

    def _allow(self, ids: Iterable[str]) -> None:
        for id_ in list(ids):
            if self.token is not None and isinstance(self._collections[id_].sink, MaterializedView):
                self._broadcast(AllowWrites(self.token, id_))

    def _done(self) -> tuple[Effect, ...]:
        self._send_due_peeks()
        self._schedule()
        self._compact()
        self._forget()
        effects, self._effects = tuple(self._effects), []
        return effects

    def _send_due_peeks(self) -> None:
        for waiting in list(self._undated.values()):
            tick = self.now(waiting.id)
            if tick is not None and tick >= waiting.after:
                self._send_peek(waiting, self._collections[waiting.id], tick)

    def _schedule(self) -> None:
        for id_ in sorted(self._unscheduled):
            collection = self._collections[id_]
            description = collection.description
            uppers = [self._uppers.get(source.id, 0) for source in description.sources]
            uppers += [self._collections[index.id].write for index in description.indexes]
            at_once = isinstance(collection.sink, Subscribe)
            if not collection.wanted:
                self._unscheduled.discard(id_)
            elif at_once or all(upper > description.as_of for upper in uppers):
                self._unscheduled.discard(id_)
                self._broadcast(Schedule(id_))

    def _compact(self) -> None:
        """Say what may be compacted, importers before what they import."""
        due = [(-self._collections[id_].number, id_) for id_ in self._changed if id_ in self._collections]
        heapq.heapify(due)
        self._changed.clear()
        done = ""
        while due:
            _, id_ = heapq.heappop(due)
            if id_ == done:
                continue
            done = id_
            collection = self._collections[id_]
            if not collection.dropped:
                since = self._wanted_since(collection, [each for each in collection.importers if not each.dropped])
                if since > collection.since:
                    collection.since = since
                    self._broadcast(AllowCompaction(id_, since))
                for index in collection.description.indexes:
                    heapq.heappush(due, (-self._collections[index.id].number, index.id))
            if collection.dropped:
                self._going.add(id_)
                for name in [name for name in collection.seen if self._owes_nothing(name, collection)]:
                    del collection.seen[name]

    def _wanted_since(self, collection: Collection, importers: list[Collection]) -> int:
        if not collection.wanted:
            implied = CLOSED
        elif collection.write == CLOSED:
            implied = collection.since
        elif isinstance(collection.sink, Subscribe):
            implied = max(collection.since, self._emitted[collection.id] - 1)
        else:
            implied = max(collection.since, collection.write - self._lag)
            if self._last_tick is not None:
                # What may be told as "now" stays readable, though replicas may be ahead of the last tick.
                implied = max(collection.since, min(implied, self._last_tick))
        return min([implied, *collection.holds.values(), *(each.input_hold for each in importers)])

    def _owes_nothing(self, replica: str, collection: Collection) -> bool:
        """Whether everything was said before the drop."""
        return collection.seen[replica].closed or self._replicas[replica].uppers.get(collection.id) == CLOSED

    def _forget(self) -> None:
        for id_ in [id_ for id_ in self._going if not self._collections[id_].seen]:
            self._going.discard(id_)
            collection = self._collections.pop(id_)
            for index in collection.description.indexes:
                imported = self._collections.get(index.id)
                if imported is not None:
                    imported.importers = [each for each in imported.importers if each is not collection]
            self._emitted.pop(id_, None)
            for known in self._replicas.values():
                known.uppers.pop(id_, None)
