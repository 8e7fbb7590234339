"""A standalone member: join a group, watch it, leave it (docs/specs/swim.md 1, 2.4).

Usage::

    async with SwimMember(Config(), ("0.0.0.0", 7946), seeds=["seed.example:7946"]) as member:
        async for event in member.events():
            print(event, member.members())
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakSet

from opentelemetry.trace import get_current_span

from pavane.runtime.forks import Process
from pavane.swim.aio import Adapter
from pavane.swim.config import SEEDS_MAX, Authorize, Config, Profile, split_seed
from pavane.swim.core.core import Core
from pavane.swim.core.node import Traffic
from pavane.swim.core.outputs import Event, Happened, Member, Own
from pavane.swim.core.staging import StagingStatus
from pavane.swim.errors import ILL_FORMED, ConfigError, SwimError
from pavane.swim.keys import read_keys, read_psks
from pavane.swim.store import GenerationStore
from pavane.swim.wire.messages import JoinNak, JoinRedirect
from pavane.swim.wire.payload import Digest, KeyOp, Trace
from pavane.swim.wire.values import Address, NodeInfo

_logger = logging.getLogger(__name__)

HOUSEKEEPING_S = 10.0  # between looks at the key file
NAMES_S = 30.0  # names are resolved anew at least so often, for addresses of pods change
CLOCK_S = 60.0  # the most often that the wall clock is corrected (2.4)
EVENTS_MAX = 1024  # kept for a reader that is slow; then the oldest are lost, and it is told


Stamp = tuple[int, int]


class MemberFailedError(SwimError):
    """The member has ended, by a mistake if a cause is chained. Start another one."""


class SwimMember:
    """One member of a group, as an asynchronous context manager.

    ``bind`` is a numeric host and a port (0: any), ``seeds`` are ``host:port`` with names or numbers. With
    ``keys_file`` everything is protected by the keys in that file, with ``psk_file`` the PSKs in that one are needed to
    join; both files are read again when they change. In the folder
    ``data`` it keeps its generation over restarts, for hosts whose clock cannot be relied on; that needs a fixed id.
    """

    def __init__(
        self,
        config: Config,
        bind: tuple[str, int],
        seeds: Sequence[str] = (),
        *,
        keys_file: Path | None = None,
        psk_file: Path | None = None,
        data: Path | None = None,
    ) -> None:
        self._config = config
        self._bind = bind
        self._seeds = [split_seed(seed) for seed in seeds]
        self._keys_file = keys_file
        self._psk_file = psk_file
        self._stamps: dict[Path, Stamp | None] = {}
        self._data = data
        self._store: GenerationStore | None = None
        self._adapter: Adapter | None = None
        self._process = Process()
        self._task: asyncio.Task[None] | None = None
        self._readers: WeakSet[_Reader] = WeakSet()  # who no longer reads is forgotten
        self._own_changed = asyncio.Event()
        self._resolve_now = asyncio.Event()
        self._error: Exception | None = None
        self._ended = False
        self._hook_told_at = float("-inf")
        self._told: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        """Bind and begin to join; raises ``OSError``, and ``ConfigError`` for settings that cannot work."""
        config = self._config
        if self._keys_file is not None:
            self._stamps[self._keys_file] = await asyncio.to_thread(_stamp, self._keys_file)
            config = replace(config, keys=await asyncio.to_thread(read_keys, self._keys_file))
        if self._psk_file is not None:
            self._stamps[self._psk_file] = await asyncio.to_thread(_stamp, self._psk_file)
            config = replace(config, psks=await asyncio.to_thread(read_psks, self._psk_file))
        if self._data is not None:
            config = self._open_store(config, self._data)
        try:
            adapter = await self._open(config)
        except BaseException:
            self._close_store()
            raise
        self._adapter = adapter
        self._process = Process()
        self._task = asyncio.create_task(self._keep_house(adapter), name="swim member")
        self._task.add_done_callback(self._house_left)
        return self

    async def _open(self, config: Config) -> Adapter:
        config.validate()
        if config.authorize is not None:
            config = replace(config, authorize=self._guarded(config.authorize))
        save = self._store.save if self._store is not None else None
        adapter = await Adapter.open(*self._bind, self._happened, self._failed, save)
        try:
            bound = adapter.bound
            if not config.address.ip and not ip_address(bound.ip).is_unspecified:
                config = replace(config, address=bound)
            adapter.use(config)
            addresses = await self._resolve(adapter)
            adapter.call(lambda now: adapter.core.join(addresses, now))
        except BaseException:
            await adapter.close()
            raise
        return adapter

    def _open_store(self, config: Config, data: Path) -> Config:
        """Go on with what the folder holds; raises ``OSError`` and ``ConfigError``."""
        if config.id is None:
            raise ConfigError("a member that keeps its generation needs an id of its own; see id_of_name")
        self._store = GenerationStore(data)
        last = self._store.last
        if last is not None and last.id != config.id:
            self._close_store()
            raise ConfigError(f"{data} belongs to member {last.id}, not {config.id}; use another folder")
        return replace(config, stored_gen=0 if last is None else last.gen)

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop without a word; to leave the group in order call ``leave`` before."""
        if not self._process.is_this:
            return  # socket and tasks are those of the process that opened it, and still in use there
        try:
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait((self._task,))
        finally:  # also when the caller has no patience
            try:
                if self._adapter is not None:
                    await self._adapter.close()
            finally:
                self._close_store()
                self._end()

    def _end(self) -> None:
        """Wake whoever waits: nothing will happen any more."""
        self._ended = True
        self._own_changed.set()
        for reader in self._readers:
            reader.close()

    def _guarded(self, authorize: Authorize) -> Authorize:
        """Keep a hook that fails over what somebody has sent from ending the member: nothing is said to that one."""

        def guarded(token: bytes, auth: bytes, asker: NodeInfo, source: Address) -> bool | JoinNak | JoinRedirect:
            try:
                return authorize(token, auth, asker, source)
            except Exception:
                now = asyncio.get_running_loop().time()
                if now - self._hook_told_at >= HOUSEKEEPING_S:
                    self._hook_told_at = now
                    _logger.exception("Config.authorize failed about %s, which is not answered", source)
                return False

        return guarded

    # --- what there is to see ------------------------------------------------------------------------------------

    @property
    def own(self) -> Own:
        """Where this member stands."""
        return self._core.core.own

    @property
    def failed(self) -> Exception | None:
        """The mistake by which this member ended, if it did."""
        return self._error

    @property
    def info(self) -> NodeInfo:
        """Own id, generation and address."""
        return self._core.core.info

    @property
    def health(self) -> int:
        """The local health score: 0 is well, 8 the worst."""
        return self._core.core.health

    @property
    def counts(self) -> Mapping[str, int]:
        """What happened since the start."""
        return self._core.core.counts

    @property
    def traffic(self) -> Traffic:
        """Datagrams and bytes by message."""
        return self._core.core.traffic

    @property
    def dropped(self) -> Counter[str]:
        """Dropped datagrams, and parts of such, by reason."""
        return self._core.core.dropped

    @property
    def send_errors(self) -> int:
        """Datagrams that the system did not take, and those for which it told that nobody listens."""
        return self._core.send_errors

    @property
    def key_ids(self) -> tuple[bytes, ...]:
        """Ids of the keys in use, the one that protects what is sent first; empty without keys."""
        return self._core.core.key_ids

    @property
    def digest(self) -> Digest | None:
        """Digest of who is there: members with equal ones agree (docs/specs/swim.md 11.1)."""
        return self._core.core.digest

    @property
    def dead(self) -> int:
        """How many members are remembered as dead."""
        return self._core.core.dead

    @property
    def bound(self) -> Address:
        """Where the socket is bound."""
        return self._core.bound

    @property
    def staging(self) -> StagingStatus:
        """This member's stage and how far it is caught up (docs/specs/swim.md 16.3)."""
        return self._core.core.staging

    def members(self) -> tuple[Member, ...]:
        """Return everybody who is alive or suspect, this member included, by id."""
        return self._core.core.members()

    def dead_members(self, most: int) -> tuple[Member, ...]:
        """Return those who died last and are remembered as dead, at most so many, newest first."""
        return self._core.core.dead_members(most)

    def events(self) -> AsyncIterator[Event]:
        """Return what happens from this call on, until the member ends; raises ``MemberFailedError`` if it failed."""
        reader = _Reader()
        self._readers.add(reader)
        if self._ended:
            reader.close()
        return self._read(reader)

    async def _read(self, reader: "_Reader") -> AsyncIterator[Event]:
        try:
            while not (reader.closed and not reader.queued):
                async for event in reader:
                    yield event
            if self._error is not None:
                raise MemberFailedError("the member has failed") from self._error
        finally:
            self._readers.discard(reader)

    # --- what there is to do -------------------------------------------------------------------------------------

    async def joined(self) -> None:
        """Wait until at least one other member tracks this one.

        Raises ``MemberFailedError``, and ``SwimError`` for a member that does not look for a group.
        """
        await self._until(lambda: self.own in (Own.MEMBER, Own.OUT))
        if self.own is Own.OUT:
            raise SwimError("this member is out: it has left, or another process has its id; `join` brings it back")

    async def ping(self, id_: int) -> float | None:
        """Return after how many seconds a member answers one ping, or ``None``; raises ``SwimError`` for a stranger."""
        adapter, asked = self._core, list[bool]()
        events = _Reader()
        self._readers.add(events)
        try:
            adapter.call(lambda now: asked.append(adapter.core.ping(id_, now)))
            if asked != [True]:
                raise SwimError(f"no member {id_} is alive here; the list of members has those that are")
            while not events.closed:
                async for event in events:
                    if event.kind is Happened.PINGED and event.member is not None and event.member.id == id_:
                        return event.rtt_s
            raise MemberFailedError("the member has ended") from self._error
        finally:
            self._readers.discard(events)

    def set_meta(self, blob: bytes) -> None:
        """Let everybody know ``blob`` of this member; raises ``MessageError`` for more than 512 bytes."""
        self._tell_core(lambda core, now: core.set_meta(blob, now))

    def send(self, blob: bytes) -> None:
        """Tell every member a message, probably and at most once; raises ``MessageError``.

        It must fit a datagram. Within a sampled span that span's context goes along (docs/specs/swim.md 14).
        """
        trace = _present_trace()
        self._tell_core(lambda core, now: core.send_user(blob, now, trace))

    def announce(self) -> None:
        """Announce this member again where ``Config.broadcast_to`` says."""
        self._tell_core(lambda core, now: core.announce(now))

    def rotate(self, op: KeyOp, key: bytes) -> None:
        """Do a step of a key rotation at every member (docs/specs/swim.md 15.4); raises ``ConfigError``."""
        self._tell_core(lambda core, now: core.rotate(op, key, now))

    def _tell_core(self, what: Callable[[Core, float], None]) -> None:
        adapter, refused = self._core, list[SwimError]()

        def call(now: float) -> None:
            try:
                what(adapter.core, now)
            except SwimError as error:
                refused.append(error)

        adapter.call(call)
        if refused:
            raise refused[0]

    def promote(self, *, force: bool = False) -> bool:
        """Make an observer a full member; false while it is not caught up, unless ``force``."""
        adapter, done = self._core, list[bool]()
        adapter.call(lambda now: done.append(adapter.core.promote(now, force=force)))
        return done == [True]

    def promote_when_ready(self) -> None:
        """Let an observer promote itself from now on: its rollout has become the active one."""
        self._tell_core(lambda core, now: core.promote_when_ready(now))

    async def drain(self) -> None:
        """Let the next generation take over, then leave; returns when this member is out."""
        adapter = self._core
        adapter.call(adapter.core.drain)
        await self._until(lambda: self.own is Own.OUT)

    async def leave(self) -> None:
        """Leave the group in order, and wait until that is done; ``join`` brings the member back."""
        adapter = self._core
        adapter.call(adapter.core.leave)
        await self._until(lambda: self.own is Own.OUT)

    def set_profile(self, profile: Profile) -> None:
        """Use the times of another kind of network, at all members within the same minute."""
        self._tell_core(lambda core, now: core.set_profile(profile, now))

    def set_seeds(self, seeds: Sequence[str]) -> None:
        """Replace the seeds; their names are resolved at once. Raises ``ConfigError``."""
        self._seeds = [split_seed(seed) for seed in seeds]
        self._resolve_now.set()

    async def join(self, seeds: Sequence[str] = ()) -> None:
        """Join again after ``leave``; ``seeds`` are used beside those given before. Raises ``ConfigError``."""
        adapter = self._core
        both = list(dict.fromkeys([*self._seeds, *map(split_seed, seeds)]))
        if len(both) > SEEDS_MAX:
            raise ConfigError(f"more than {SEEDS_MAX} seeds; a few members that are nearly always there are enough")
        self._seeds = both
        addresses = await self._resolve(adapter)
        adapter.call(lambda now: adapter.core.join(addresses, now))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._ended:
                raise MemberFailedError("the member has ended") from self._error
            self._own_changed.clear()
            await self._own_changed.wait()

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _core(self) -> Adapter:
        if self._adapter is None:
            raise SwimError("the member is not open; use it in an `async with` statement")
        if not self._process.is_this:
            raise SwimError("the member was opened before this process was forked; open one in each process")
        return self._adapter

    def _happened(self, event: Event) -> None:
        if event.kind is Happened.OWN_STATE:
            self._own_changed.set()
        elif event.kind is Happened.JOIN_RETRY:
            self._resolve_now.set()
        for reader in self._readers:
            reader.put(event)

    def _failed(self, error: Exception) -> None:
        _logger.error("the SWIM member cannot go on", exc_info=error)
        self._error = error
        self._end()

    def _house_left(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._failed(error)

    async def _keep_house(self, adapter: Adapter) -> None:
        """Resolve names, watch the key file and the clock; only a mistake of ours ends it."""
        loop = asyncio.get_running_loop()
        named_at = clock_at = loop.time()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HOUSEKEEPING_S):
                    await self._resolve_now.wait()
            self._tell_ill_formed(adapter)
            now = loop.time()
            if self._resolve_now.is_set() or now - named_at >= NAMES_S:
                self._resolve_now.clear()
                named_at = now
                addresses = await self._resolve(adapter)
                adapter.call(partial(adapter.core.set_seeds, addresses))
            if now - clock_at >= CLOCK_S:
                clock_at = now
                adapter.call(lambda at: adapter.core.set_unix(time.time(), at))
            for path, known in self._stamps.items():
                if (stamp := await asyncio.to_thread(_stamp, path)) != known:
                    self._stamps[path] = stamp
                    await self._read_again(adapter, path)

    def _tell_ill_formed(self, adapter: Adapter) -> None:
        """Log what could not be read since the last look: once for many, for anybody can send it (17.3)."""
        now = {reason: adapter.core.dropped[reason] for reason in ILL_FORMED}
        fresh = [
            f"{reason} {count - self._told[reason]}" for reason, count in now.items() if count > self._told[reason]
        ]
        if fresh:
            self._told.update({reason: count - self._told[reason] for reason, count in now.items()})
            _logger.warning("datagrams dropped: %s", ", ".join(fresh))

    async def _read_again(self, adapter: Adapter, path: Path) -> None:
        """Use the keys that a file holds now; a file that cannot be used changes nothing (15.4)."""
        try:
            if path == self._psk_file:
                adapter.core.set_psks(await asyncio.to_thread(read_psks, path))
            else:
                adapter.core.set_keys(await asyncio.to_thread(read_keys, path))
        except (OSError, ConfigError) as error:
            _logger.error("the keys stay as they are: %s", error)

    async def _resolve(self, adapter: Adapter) -> list[Address]:
        """Return the addresses that the seeds have now, the first of every seed first, for not all may be used.

        A name that cannot be resolved is left out.
        """
        loop = asyncio.get_running_loop()
        found: list[list[Address]] = []
        for host, port in self._seeds:
            try:
                infos = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM, family=adapter.family)
                found.append([Address.of(str(info[4][0]), port) for info in infos])
            except OSError as error:
                _logger.warning("seed %s has no address: %s", host, error)
        return [address for nth in zip_longest(*found) for address in dict.fromkeys(nth) if address is not None]


def _present_trace() -> Trace | None:
    """Return the context of the span that is being recorded; the core fills in which message it belongs to."""
    context = get_current_span().get_span_context()
    if not context.is_valid or not context.trace_flags.sampled:
        return None
    return Trace(0, 0, context.trace_id.to_bytes(16), context.span_id.to_bytes(8), context.trace_flags)


def _stamp(path: Path) -> Stamp | None:
    """Return what changes when a file is replaced."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


class _Reader:
    """The events that one reader has not taken yet."""

    def __init__(self) -> None:
        self.queued: deque[Event] = deque()
        self.closed = False
        self._missed = 0
        self._wake = asyncio.Event()

    def put(self, event: Event) -> None:
        """Add an event; the oldest one makes room."""
        if len(self.queued) >= EVENTS_MAX:
            self.queued.popleft()
            self._missed += 1
        self.queued.append(event)
        self._wake.set()

    def close(self) -> None:
        """No more events will come."""
        self.closed = True
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield what is queued, after waiting if there is nothing."""
        if not self.queued and not self.closed:
            self._wake.clear()
            await self._wake.wait()
        if self._missed:
            missed, self._missed = self._missed, 0
            yield Event(Happened.MISSED, text=str(missed))
        while self.queued:
            yield self.queued.popleft()
