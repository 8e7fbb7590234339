"""Drives the core with real sockets, a real disk and a real clock (docs/specs/raft.md 5.3).

One *turn* takes a batch of inputs, gives them to the core, executes what comes out in the prescribed order and arms one
timer. The disk works in a thread of ``pavane.wal``; everything else happens on the event loop.
"""

import asyncio
import contextlib
import heapq
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from pavane.raft.config import Config
from pavane.raft.connections import Connections
from pavane.raft.core.core import Core
from pavane.raft.core.outputs import (
    Applied,
    Apply,
    BarrierDone,
    Corrupt,
    Disconnect,
    Dropped,
    Event,
    Fork,
    Freeze,
    Now,
    Outputs,
    PeerChannel,
    Restore,
    RoleChanged,
    Route,
    Send,
    TermChanged,
    UpdateDone,
)
from pavane.raft.counts import Counts
from pavane.raft.errors import Code, DropReason
from pavane.raft.machine import Broadcast, Compactor, Dispatcher, StateMachine, dispatched
from pavane.raft.machines.keyvalue import KeyValue
from pavane.raft.room import Room
from pavane.raft.snapshotting import CannotCompact, Snapshotter
from pavane.raft.sockets import Input, Sockets
from pavane.raft.state.commands import CorruptEntry, Stored
from pavane.raft.state.configuration import Configuration
from pavane.raft.state.roles import Role
from pavane.raft.storage import RaftStorage
from pavane.raft.storage.js_files import JsFileError
from pavane.raft.storage.offers import NEW, REFUSED, Offers
from pavane.raft.storage.snapshots import BAD_SUFFIX
from pavane.raft.tracing import Tracing
from pavane.raft.wire.decoder import decode_request
from pavane.raft.wire.entry import EntryType, entry_data, entry_reqid, entry_type, is_configuration
from pavane.raft.wire.frames import Frames
from pavane.raft.wire.pv import PvKv, PvReply
from pavane.raft.wire.pv_update import PvUpdate, PvUpdateReply, UpdateResult
from pavane.runtime.timers import CoreTimer
from pavane.wal import Batch, Writer
from pavane.wire import Stage

_logger = logging.getLogger(__name__)

MARK_AFTER_S = 0.1  # an idle log states what was synced after this long (13.1)
NO_ROOM_MS = 1000  # told to those whose updates have no room: by then it is looked again
SCRUB_S = 600.0  # between two segments: rot is found within hours, at a cost that nobody feels (13.3)
DROP_LINE_S = 10.0  # one line for each reason in so long: who sends rubbish must not fill the log (3.4)
OFFER_PAUSE_S = 2.0  # between two looks for a file that an application makes by the hour
TURN_ENTRIES = 256  # of clients, appended in one turn at least: replicated and synced while the next are decoded
TURNS = 4  # in which what is under way is taken: fewer and the processes wait for each other, more and each costs more
PUT_OFF_MESSAGES, PUT_OFF_BYTES = 1024, 32 << 20  # and a turn's input; what comes behind them waits in the ROUTER
SIGN_OF_LIFE = [b"^"]
_UPDATE_TYPES = ([b"="], [b"pv.kv"], [b"pv.update"])
# Messages among peers, which are handled before those of clients of the same batch (7.6).
_PEER_TYPES = frozenset({b"?", b"+", b"$", b"pv.vote", b"pv.append", b"pv.snapshot", b"pv.now"})
# Events of single requests, of which there are thousands a second: nobody waits for them to look at the status again.
_HOT_EVENTS = (UpdateDone, BarrierDone, Dropped)


class Exit(IntEnum):
    """Exit codes of a peer (17)."""

    STOPPED = 0
    FAILED = 1
    DISK = 4
    FOREIGN = 5


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a peer cannot go on, and the exit code that its process should have."""

    exit_code: Exit
    reason: str


class Adapter:
    """One running peer. ``failed`` is called at most once, on the loop; nothing is answered after that.

    ``changed`` is called on the loop after each turn in which something other than single requests happened.
    """

    def __init__(
        self,
        config: Config,
        storage: RaftStorage,
        machine: StateMachine,
        stage: Stage,
        *,
        changed: Callable[[], None],
        failed: Callable[[Failure], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._id = config.id
        self._ident = config.ident
        self._storage = storage
        self._machine = machine
        self._changed = changed
        self._failed = failed
        self._tracing = Tracing(config.id)
        # Time-outs that two peers draw must differ; nothing here is a secret.
        recovered = storage.take_recovered()
        rng = random.Random()  # noqa: S311
        asked = machine if isinstance(machine, KeyValue) else None
        dispatch = partial(dispatched, machine) if isinstance(machine, Dispatcher) else None
        compacts = isinstance(machine, Compactor) or not isinstance(machine, Broadcast)
        self.core = Core(config, recovered, storage, rng, self.now(), stage, asked, dispatch, compacts=compacts)
        self._writer = Writer(storage.appender(), self._stored_in_thread, self._failed_in_thread)
        self._sockets: Sockets | None = None
        self._held: list[tuple[int, int, Send]] = []
        self._order = itertools.count()
        self._stored = 0
        self._stored_here = False  # in this pass of the turn
        self._queued = 0  # batches that the storage thread has, or whose completion this loop has not seen
        self._turn_planned = False
        self._put_off: list[tuple[Route, list[bytes]]] = []  # requests for the next turn, or for room in the queue
        self._tasks: set[asyncio.Task[None]] = set()
        self._snapshotter = Snapshotter(storage, machine)
        self._saved = asyncio.Event()  # set by each snapshot
        self._timer = CoreTimer(self._loop, self._turn)
        self._due: float | None = None
        self._mark_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self._waiting_for_sync: list[tuple[int, asyncio.Future[None]]] = []
        self._term = recovered.term
        self._leads = False
        self._room = Room(storage.log_folder)
        self._halted = False  # nothing is sent or stored any more
        self._draining = False  # only what is stored already is still answered
        self._drop_told_at: dict[str, float] = {}
        self.counts = Counts()
        self.counts.corrupt.update("snapshot" if name.endswith(BAD_SUFFIX) else "log" for name in storage.set_aside)
        self.late_s = 0.0

    def now(self) -> Now:
        """Return the time in the two forms that the core takes."""
        wall_s, wall_part_ms = divmod(time.time_ns() // 1_000_000, 1000)
        return Now(self._loop.time(), wall_s, wall_part_ms)

    @property
    def log_bytes(self) -> int:
        """Bytes of the log on the disk."""
        return self._storage.log_bytes

    @property
    def writer(self) -> Writer:
        """The storage thread, for its counters."""
        return self._writer

    @property
    def connections(self) -> Connections | None:
        """Who is connected to this peer; None before the start."""
        return None if self._sockets is None else self._sockets.connections

    def start(self, sockets: Sockets) -> None:
        """Begin to work with ``sockets``, which were made with ``ready`` of this adapter."""
        self._sockets = sockets
        self._writer.start()
        self._begin(self._scrub_log())
        if self._storage.offers is not None:
            self._begin(self._take_offers(self._storage.offers))
        self.wake()

    def wake(self) -> None:
        """Plan a turn; called whenever there may be input, and after every call into ``core`` from outside."""
        if not self._turn_planned and not self._halted:
            self._turn_planned = True
            self._loop.call_soon(self._turn)

    def ready(self) -> None:
        """Take a turn now; only for callbacks of the loop itself.

        One that is planned comes after the loop has looked at the sockets again, so it would find everything announced
        twice and be followed by a turn for nothing.
        """
        if not self._turn_planned:
            self._turn()

    async def _scrub_log(self) -> None:
        """Read one segment of the log after the other, for ever, and end the peer when one has rotted."""
        while not self._halted:
            await asyncio.sleep(SCRUB_S)
            try:
                check = self._storage.next_scrub()
                damage = None if check is None else await self._loop.run_in_executor(None, check)
            except OSError as error:
                damage = f"the log cannot be read: {error}"
            if damage is not None:
                self._rotten(damage)

    async def _take_offers(self, offers: Offers) -> None:
        """Make snapshots of what an application leaves in the folder for that (9.1)."""
        while not self._halted:
            await asyncio.sleep(OFFER_PAUSE_S)
            try:
                offered = await self._loop.run_in_executor(None, offers.newest)
                if offered is not None and self.core.offer_snapshot(offered.index, offered.term, self.now()):
                    self._snapshotter.offer(offered)
                    self._saved.clear()
                    self.wake()
                    await self._saved.wait()
                    offers.taken()
            except (ValueError, JsFileError, OSError) as error:
                _logger.warning("what the application left as %s is set aside as %s: %s", NEW, REFUSED, error)
                with contextlib.suppress(OSError):
                    offers.refused()

    async def synced(self, sequence: int) -> None:
        """Wait until every record up to ``sequence`` is durable; raises ``OSError`` if that will not be."""
        if self._halted:
            raise OSError("the peer has ended")
        self._flush()
        if sequence > self._storage.synced_sequence:
            done = self._loop.create_future()
            self._waiting_for_sync.append((sequence, done))
            await done

    async def stop(self) -> None:
        """Write what is queued, release the answers that wait for it, then close the sockets."""
        graceful = not self._halted
        if graceful:
            self.core.ending(self.now())
            self._run_core()
        self._draining = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._loop.run_in_executor(None, self._writer.close)
        # The thread announced its last completions before it ended; they run ahead of what follows this.
        await asyncio.sleep(0)
        self._halt("the peer stops")
        if self._sockets is not None:
            await self._sockets.close(linger=graceful)
        self._tracing.close()

    def _halt(self, reason: str) -> None:
        self._halted = True
        self._timer.cancel()
        if self._mark_timer is not None:
            self._mark_timer.cancel()
        for _, done in self._waiting_for_sync:
            if not done.done():
                done.set_exception(OSError(reason))
        self._waiting_for_sync.clear()

    def _fail(self, code: Exit, reason: str) -> None:
        if not self._halted:
            self._halt(reason)
            self._failed(Failure(code, reason))

    # -- one turn ------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._turn_planned = False
        if self._halted or self._draining or self._sockets is None:
            return
        try:
            self._give(self._sockets.poll(requests=self._takes_requests()))
            self._timers()
            self._run_core()
            if not self._halted and self._sockets.has_input(requests=self._takes_requests()):
                self.wake()
        except Exception as error:
            self._bug(error)

    def _takes_requests(self) -> bool:
        size = sum(len(frame) for _, frames in self._put_off for frame in frames)
        return len(self._put_off) < PUT_OFF_MESSAGES and size < PUT_OFF_BYTES

    def _admitted(self, requests: list[tuple[Route, list[bytes]]]) -> list[tuple[Route, list[bytes]]]:
        """Return what can be handled now. With a full storage queue nothing could be made durable.

        Signs of life are answered all the same: else every client would take this peer's connection for dead.
        """
        waiting, self._put_off = self._put_off + requests, []
        if not self._writer.is_full:
            return waiting
        self._put_off = [each for each in waiting if each[1][1:2] != SIGN_OF_LIFE]
        return [each for each in waiting if each[1][1:2] == SIGN_OF_LIFE]

    def _bug(self, error: Exception) -> None:
        """End after an exception that only a mistake of ours can raise: half a turn could break what was promised."""
        _logger.error("raft peer %s cannot go on", self._id, exc_info=error)
        self._fail(Exit.FAILED, f"internal error: {error!r}; please report it")

    def _give(self, found: Input) -> None:
        now = self.now()
        if found.dropped:
            self.counts.dropped[DropReason.FRAMES] += found.dropped
        for to, up in found.connections:
            self.core.connection(to.peer, to.channel, up, now)
        for to, frames in found.replies:
            self.core.reply(to.peer, to.channel, frames, now)
        self._look_for_room()
        clients = []
        for route, frames in self._admitted(found.requests):
            if len(frames) > 1 and frames[1] in _PEER_TYPES:
                self.core.receive(route, frames, now)
            else:
                clients.append((route, frames))
        enough = self.core.last + max(TURN_ENTRIES, self.core.uncommitted // TURNS)
        for route, frames in clients:
            update = frames[1:2] in _UPDATE_TYPES
            if update and self.core.last >= enough:  # only these: a thousand of them would starve those who follow
                self._put_off.append((route, frames))
                self.wake()
            elif update and self._leads and self._room.full:
                self._refuse_for_room(route, frames)
            else:
                self.core.receive(route, frames, now)

    def _refuse_for_room(self, route: Route, frames: Frames) -> None:
        """Let programs of ours ask again later; ``=`` has no word for that (3.4)."""
        self.counts.dropped[DropReason.OVERLOAD] += 1
        match decode_request(frames, self._ident):
            case PvUpdate(items):
                results = tuple(UpdateResult(reqid, Code.BUSY, NO_ROOM_MS) for reqid, _ in items)
                reply: PvUpdateReply | PvReply = PvUpdateReply(self._id, results)
            case PvKv():
                reply = PvReply(Code.BUSY, NO_ROOM_MS)
            case _:
                return
        self._send(Send(route, (frames[0], *reply.encode()), None))

    def _look_for_room(self) -> None:
        """Tell the core whether the volume has room: without it a leader hands the lead on, a follower refuses it."""
        if self._room.check(self._loop.time()):
            self.core.room(self._room.full is None, self.now())

    def full(self) -> str | None:
        """Say why no updates are taken where the volume has no room left."""
        self._look_for_room()
        self.wake()
        return self._room.full

    def _timers(self) -> None:
        due, now_s = self._due, self._loop.time()  # what this turn's input brings is looked at when the timer is armed
        if due is not None and due <= now_s:
            self.late_s = max(self.late_s, now_s - due)
            self.core.handle_timer(self.now())

    def _run_core(self) -> None:
        changed = False
        while not self._halted:
            outputs = self.core.outputs()
            if not (outputs.store or outputs.send or outputs.apply or outputs.events):
                break
            changed = any(not isinstance(event, _HOT_EVENTS) for event in outputs.events) or changed
            self._stored_here = False
            self._execute(outputs)
            if not (outputs.apply or self._stored_here):
                break  # only what was applied or is durable can have brought more
        if not self._halted:
            self._due = self.core.next_timer()
            self._timer.arm(self._due)
            if changed:
                self._changed()

    def _execute(self, outputs: Outputs) -> None:
        for event in outputs.events:
            self._event(event)
        if self._halted:
            return
        # What waits for no disk leaves first: the storage thread, once woken, would hold up the sends.
        for send in outputs.send:
            if send.after is None or send.after <= self._stored:
                self._send(send)
            else:
                heapq.heappush(self._held, (send.after, next(self._order), send))
        if outputs.store:
            self._storage.execute(outputs.store)
            self._store()
        for work in outputs.apply:
            match work:
                case Apply():
                    self._apply(work)
                case Freeze():
                    self._begin(self._save(work, self._snapshotter.freeze(work)))
                case Restore(index):
                    self._begin(self._restore(index))

    def _event(self, event: Event) -> None:
        match event:
            case UpdateDone():
                pass  # there are thousands a second, which need not be asked for all that follows
            case Disconnect(to):
                if self._sockets is not None:
                    self._sockets.disconnect(to)
            case TermChanged(term):
                self._term = term
            case RoleChanged(_, new):
                self._leads = new is Role.LEADER
            case Dropped(reason):
                self._tell_drop(reason)
            case Corrupt(index):
                self._rotten(f"entry {index} is damaged or contradicts the leader")
            case Fork(index):
                self._fail(Exit.FOREIGN, f"the log differs from the cluster's at committed index {index}")
        self.counts.event(event)
        self._tracing.event(event, self._term)

    def _tell_drop(self, reason: str) -> None:
        now_s = self._loop.time()
        if now_s >= self._drop_told_at.get(reason, 0.0):
            self._drop_told_at[reason] = now_s + DROP_LINE_S
            _logger.info("%s takes no notice of a message: %s", self._id, reason)

    def _rotten(self, what: str) -> None:
        if self._halted:
            return  # behind a write that failed nothing may be written: its sync would be taken for that of both
        # The next start must find the damage at or below the synced mark, else it would pass for a torn tail.
        self._storage.mark(sync=True)
        self._flush()
        self._fail(Exit.DISK, f"{what}; start this peer again: it fetches from the leader what it has lost")

    def _send(self, send: Send) -> None:
        if self._sockets is None:
            return
        if isinstance(send.to, PeerChannel):
            # A message that finds no connection is repeated by the core's own timers.
            self._sockets.send(send.to, send.frames)
        elif not self._sockets.send_route(send.to, send.frames):
            self.counts.dropped[DropReason.ROUTE] += 1

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        """Run ``work`` beside the turns; it is cancelled when the peer stops."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _save(self, freeze: Freeze, save: Callable[[], Awaitable[int]]) -> None:
        try:
            size = await save()
        except OSError as error:
            self._fail(Exit.DISK, f"the snapshot of index {freeze.index} cannot be written: {error}")
        except CorruptEntry as error:
            self._rotten(f"entry {error.index} is damaged")
        except CannotCompact as error:
            _logger.error("a snapshot of index %d cannot be made", freeze.index, exc_info=error)
            self._fail(Exit.FAILED, f"the state machine {self._machine.name} cannot compact: {error}")
        except Exception as error:
            self._bug(error)
        else:
            if not self._halted:
                self.core.snapshot_saved(freeze.index, size, self.now())
                self._saved.set()
                self.wake()

    async def _restore(self, index: int) -> None:
        try:
            await self._snapshotter.restore(index)
        except OSError as error:
            self._rotten(f"the snapshot of index {index} cannot be read ({error})")
        except Exception as error:
            self._fail(Exit.FAILED, f"the state machine {self._machine.name} cannot begin from a snapshot: {error}")
        else:
            if not self._halted:
                self.core.restored(index, self.now())
                self.wake()

    def _apply(self, apply: Apply) -> None:
        started_ns = self._tracing.now_ns()
        try:
            state = EntryType.STATE
            for index, entry in enumerate(apply.entries, apply.first):
                if entry_type(entry) == state:
                    self._machine.apply(index, entry_reqid(entry), entry_data(entry))
                elif is_configuration(entry):
                    self._machine.configuration(index, Configuration.decode(entry_data(entry)))
        except Exception as error:
            self._fail(Exit.FAILED, f"the state machine {self._machine.name} failed: {error!r}")
            return
        last = apply.first + len(apply.entries) - 1
        self._tracing.applied(apply, started_ns, self._term)
        self.core.applied([Applied(last)], self.now())

    # -- storage -------------------------------------------------------------------------------------------------

    def _store(self) -> None:
        """Make durable what the core has stored: here, where the disk is quicker than two hand-overs."""
        batch = self._storage.take()
        if batch is None:
            return
        # Who stops has another thread close the log meanwhile.
        if self._queued or self._draining or not self._writer.suits_here(batch):
            self._submit(batch)
            return
        try:
            self._writer.write_here(batch)
        except OSError as error:
            self._fail(Exit.DISK, f"the log cannot be written: {error}")
            return
        self._stored_here = True
        self._completed([batch])

    def _flush(self) -> None:
        batch = self._storage.take()
        if batch is not None:
            self._submit(batch)

    def _submit(self, batch: Batch) -> None:
        self._queued += 1
        self._writer.submit(batch)

    def _stored_in_thread(self, batches: Sequence[Batch]) -> None:
        self._loop.call_soon_threadsafe(self._stored_on_loop, batches)

    def _failed_in_thread(self, error: Exception) -> None:
        if isinstance(error, OSError):
            self._loop.call_soon_threadsafe(self._fail, Exit.DISK, f"the log cannot be written: {error}")
        else:
            self._loop.call_soon_threadsafe(self._bug, error)

    def _completed(self, batches: Sequence[Batch]) -> None:
        ticket = self._storage.completed(batches)
        if self._halted:
            return
        self._tell_synced()
        if ticket is not None:
            self._stored = ticket
            while self._held and self._held[0][0] <= ticket:
                self._send(heapq.heappop(self._held)[2])
            self._tracing.stored(ticket)
            self.core.stored(Stored(ticket), self.now())
        self._plan_mark()

    def _stored_on_loop(self, batches: Sequence[Batch]) -> None:
        self._queued -= len(batches)
        try:
            self._completed(batches)
            if self._draining:
                self._run_core()
        except Exception as error:
            self._bug(error)
        if self._halted:
            return
        # A turn also for input that had to wait for room, or whose announcement the sends above have consumed.
        self.ready()

    def _tell_synced(self) -> None:
        synced = self._storage.synced_sequence
        for sequence, done in self._waiting_for_sync:
            if sequence <= synced and not done.done():
                done.set_result(None)
        self._waiting_for_sync = [pair for pair in self._waiting_for_sync if pair[0] > synced]

    def _plan_mark(self) -> None:
        self._idle_since = self._loop.time()
        if self._mark_timer is None:
            self._mark_timer = self._loop.call_later(MARK_AFTER_S, self._mark)

    def _mark(self) -> None:
        self._mark_timer = None
        rest = self._idle_since + MARK_AFTER_S - self._loop.time()
        if rest > 0:
            self._mark_timer = self._loop.call_later(rest, self._mark)
        else:
            self._storage.mark()
            self._flush()
