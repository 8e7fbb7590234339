"""Entries as they are applied: the leader's PUB socket, and its log for what is missing (docs/specs/raft.md 11.3)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import zmq

from pavane.raft.client.calls import Entry
from pavane.raft.client.snapshot_call import Snapshot
from pavane.raft.curve import CurveKeys
from pavane.raft.errors import Compacted, Unsupported, WentBack
from pavane.raft.wire.decoder import Drop, decode_broadcast
from pavane.raft.wire.frames import FRAME_BYTES
from pavane.raft.wire.requests import StateBroadcast

HIGH_WATER_IN = 10_000  # messages for a reader that is slow; what does not fit is a gap, which the log fills


@dataclass(frozen=True, slots=True)
class Fresh:
    """All that the leader has applied so far has been read, up to ``index``; what follows comes as it happens."""

    index: int


Item: TypeAlias = Entry | Fresh | Snapshot


class Source(Protocol):
    """The client that a subscription belongs to."""

    async def broadcast_url(self) -> str | None:
        """Return where the leader publishes."""
        ...

    def entries(self, after: int, count: int | None = None) -> AsyncGenerator[Entry, None]:
        """Yield what the log holds behind ``after``, up to ``count``; raises ``Compacted`` if it begins later."""
        ...

    async def snapshot(self) -> Snapshot | None:
        """Return what stands in front of the log."""
        ...


class EntryTracker:
    """Which entries of a message are new, and whether something is missing before them."""

    def __init__(self, after: int) -> None:
        self.last = after
        self.target = after  # the greatest index that a message told of
        self._term = 0

    def take(self, message: StateBroadcast) -> list[Entry]:
        """Return the entries of ``message`` that follow the last one; none if it does not fit, or is of an old term."""
        if message.term < self._term:
            return []
        self._term = message.term
        self.target = max(self.target, message.applied_index)
        first = message.applied_index - len(message.entries) + 1
        if first > self.last + 1:
            return []
        found = [Entry(index, frame) for index, frame in enumerate(message.entries, first) if index > self.last]
        if found:
            self.last = found[-1].index
        return found

    def outdated(self, message: StateBroadcast) -> bool:
        """Whether the sender of ``message`` has less than what was read."""
        return message.applied_index < self.last

    @property
    def behind(self) -> bool:
        """Whether the log has to be read."""
        return self.last < self.target


class BroadcastSocket:
    """One SUB socket on an asyncio loop."""

    def __init__(self, url: str, ident: bytes, curve: CurveKeys | None) -> None:
        self._ident = ident
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.SUB)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.RCVHWM, HIGH_WATER_IN)
        self._socket.set(zmq.MAXMSGSIZE, FRAME_BYTES)
        self._socket.set(zmq.IPV6, int("[" in url))
        if curve is not None:
            curve.secure(self._socket)
        self._socket.subscribe(ident)
        self._socket.connect(url)
        self._news = asyncio.Event()
        self._descriptor = self._socket.fileno()
        self._loop.add_reader(self._descriptor, self._news.set)

    def close(self) -> None:
        """Close the socket."""
        self._loop.remove_reader(self._descriptor)
        self._socket.close(0)
        self._context.term()

    async def next(self, silence_s: float) -> StateBroadcast | None:
        """Return the next message that is well formed, ``None`` if there is none for so long."""
        try:
            async with asyncio.timeout(silence_s):
                while True:
                    self._news.clear()
                    while int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
                        message = decode_broadcast(self._socket.recv_multipart(zmq.DONTWAIT), self._ident)
                        if not isinstance(message, Drop):
                            return message
                    await self._news.wait()
        except TimeoutError:
            return None


async def follow(
    source: Source, after: int, ident: bytes, curve: CurveKeys | None, silence_s: float
) -> AsyncGenerator[Item, None]:
    """Yield every entry behind ``after``, in order, for ever; ``Fresh`` each time that the reader has caught up.

    A ``Snapshot`` comes in place of entries that are gone. Raises ``Unsupported`` if the leader publishes nothing,
    ``WentBack`` if the cluster lacks what was read, and what ``entries`` and ``snapshot`` raise.
    """
    follower = EntryTracker(after)
    while True:
        async with _feed(source, ident, curve) as feed:
            fresh = False
            while (message := await feed.next(silence_s)) is not None:
                if follower.outdated(message):
                    await _check_seen(source, follower.last, message.applied_index)
                    break  # it leads no longer, or not yet: ask who does
                for entry in follower.take(message):
                    yield entry
                if follower.behind:
                    fresh = False
                    async with aclosing(_read(source, follower.last)) as items:
                        async for item in items:
                            follower.last = item.index
                            yield item
                elif not fresh:
                    fresh = True
                    yield Fresh(follower.last)


async def _check_seen(source: Source, last: int, applied: int) -> None:
    """Raise ``WentBack`` unless the log has, or had, entry ``last``: a reading of it begins with a barrier (10.5)."""
    try:
        async with aclosing(source.entries(last - 1, 1)) as entries:
            async for _ in entries:
                return
    except Compacted:
        return
    raise WentBack(last, applied)


async def _read(source: Source, after: int) -> AsyncGenerator[Entry | Snapshot, None]:
    """Yield what the leader has behind ``after``; a snapshot ends it, for the rest is read behind that."""
    try:
        async with aclosing(source.entries(after)) as entries:
            async for entry in entries:
                yield entry
    except Compacted:
        snapshot = await source.snapshot()
        if snapshot is not None and snapshot.index > after:  # else another leader answered, which has the entries
            yield snapshot


@asynccontextmanager
async def _feed(source: Source, ident: bytes, curve: CurveKeys | None) -> AsyncIterator[BroadcastSocket]:
    url = await source.broadcast_url()
    if url is None:
        raise Unsupported("the leader publishes nothing; start its peers with a url for that (--pub)")
    feed = BroadcastSocket(url, ident, curve)
    try:
        yield feed
    finally:
        feed.close()
