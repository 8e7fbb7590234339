"""The ØMQ sockets of one peer: ROUTER, PUB, and a DEALER for every ``PeerChannel`` (docs/specs/raft.md 14.3).

Plain non-blocking sockets on an asyncio loop: ``ready`` is called when any of them may have input, ``poll`` takes what
there is, up to a batch. ØMQ signals *edges*: whoever polled or sent must ask ``has_input`` before going to sleep.
Asking a socket costs as much as a message; so only those are asked that signalled, were sent to, or were not emptied.
"""

import asyncio
import socket as system_socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import cast
from urllib.parse import urlsplit

import zmq

from pavane.raft.connections import Connections
from pavane.raft.core.outputs import Channel, PeerChannel, Route
from pavane.raft.curve import CurveServer, Zap
from pavane.raft.dealer import DOWN, INPUT_MESSAGES, UP, Dealer
from pavane.raft.messages import descriptor, has_input, receive, send
from pavane.raft.silence import IDLE_ROUTER_PROBE_S, IDLE_ROUTER_S, UNREAD_MS
from pavane.raft.state.configuration import host_of, needs_resolving
from pavane.raft.wire.frames import FRAME_BYTES
from pavane.runtime import names
from pavane.runtime.names import bracketed

INPUT_BYTES = 8 << 20
NOISE_MESSAGES = 16  # so many without the cluster's ident are taken in a NOISE_WINDOW_S, then nothing until it ends:
NOISE_WINDOW_S = 0.001  # a flood of them leaves the processor to others, and waits in the network
ROUTER_LINGER_MS = 2000  # last answers of a peer that stops
HIGH_WATER_ROUTER_IN = 2000
HIGH_WATER_OUT = 10_000
HIGH_WATER_SIDE = 64
SUBSCRIPTION_BYTES = 64 << 10  # of what a subscriber sends at a time
BACKLOG = 512
RESOLVE_AGAIN_S = 1.0  # a name is asked again when its peer was silent for so long (8.2)
HANDSHAKE_MS = 10_000  # for greeting and CURVE of who connected; then it is hung up on

IDENT_FRAME = 3  # of a request as the ROUTER gives it: route, id, type, ident

Frames = list[bytes]


class CannotBind(Exception):
    """A socket cannot be bound to its address."""


@dataclass(slots=True)
class Input:
    """What one ``poll`` found; ``dropped`` counts messages with too many frames."""

    connections: list[tuple[PeerChannel, bool]] = field(default_factory=list)
    replies: list[tuple[PeerChannel, Frames]] = field(default_factory=list)
    requests: list[tuple[Route, Frames]] = field(default_factory=list)
    dropped: int = 0


@dataclass(slots=True)
class _Link:
    """One outgoing socket and whom it leads to."""

    to: PeerChannel
    dealer: Dealer
    heard_s: float


class Sockets:
    """All sockets of a peer; used by the thread of ``loop`` only.

    ``bind`` and ``publish`` are ØMQ urls (``publish`` empty: no PUB), ``source`` is the address to connect from or
    empty, ``resolve`` gives the addresses of a host name and may block: it is called in a thread. With ``curve`` all of
    them are encrypted, and only those connect that it accepts. ``ident`` tells requests from noise, if it is given.
    """

    def __init__(
        self,
        bind: str,
        publish: str,
        source: str,
        resolve: Callable[[str], Sequence[str]],
        loop: asyncio.AbstractEventLoop,
        ready: Callable[[], None],
        curve: CurveServer | None = None,
        ident: bytes | None = None,
    ) -> None:
        self._source = source
        self._ident = ident
        self._curve = curve
        self._curve_keys = curve.keys if curve is not None else None
        self._resolve = resolve
        self._loop = loop
        self._ready = ready
        self._links: dict[PeerChannel, _Link] = {}
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._context = zmq.Context(io_threads=1)
        self._publisher: zmq.Socket[bytes] | None = None
        # Before anything is bound: ØMQ lets everybody in while nobody answers for it.
        self._zap = Zap(curve, self._context, loop, struck_off=self._end_struck_off) if curve is not None else None
        try:
            self._router = self._bind_router(bind)
            listeners = [self._router]
            if publish:
                self._publisher = self._context.socket(zmq.PUB)
                self._publisher.set(zmq.SNDHWM, HIGH_WATER_OUT)
                self._publisher.set(zmq.LINGER, 0)
                self._publisher.set(zmq.MAXMSGSIZE, SUBSCRIPTION_BYTES)
                self._publisher.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
                self._secure(self._publisher)
                _bind(self._publisher, publish)
                listeners.append(self._publisher)
        except BaseException:
            if self._zap is not None:
                self._zap.close()
            self._context.destroy(linger=0)
            raise
        self.connections = Connections(listeners, self._context, loop, named=curve is not None)
        self._router_hot = True
        self._noise = 0  # messages in this window
        self._noise_window: asyncio.TimerHandle | None = None
        loop.add_reader(descriptor(self._router), self._router_signalled)
        self._sweep = loop.call_later(RESOLVE_AGAIN_S, self._resolve_silent)

    def _bind_router(self, bind: str) -> "zmq.Socket[bytes]":
        router: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        router.set(zmq.LINGER, ROUTER_LINGER_MS)
        router.set(zmq.ROUTER_MANDATORY, 1)
        router.set(zmq.RCVHWM, HIGH_WATER_ROUTER_IN)
        router.set(zmq.SNDHWM, HIGH_WATER_OUT)
        router.set(zmq.MAXMSGSIZE, FRAME_BYTES)
        # No heartbeats of ØMQ: at each it looks through the timers of all connections; 7,000 fill a processor.
        router.set(zmq.TCP_MAXRT, UNREAD_MS)
        router.set(zmq.TCP_KEEPALIVE, 1)
        router.set(zmq.TCP_KEEPALIVE_IDLE, IDLE_ROUTER_S)
        router.set(zmq.TCP_KEEPALIVE_INTVL, IDLE_ROUTER_PROBE_S)
        router.set(zmq.BACKLOG, BACKLOG)
        router.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self._secure(router)
        _bind(router, bind)
        return router

    def _secure(self, listener: "zmq.Socket[bytes]") -> None:
        if self._curve is not None:
            self._curve.secure(listener)

    @property
    def bound(self) -> str:
        """The url that the ROUTER is bound to, with the port that the system chose for port 0."""
        return cast("bytes", self._router.get(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()

    def poll(self, *, requests: bool = True) -> Input:
        """Take what came in: all of the DEALERs, then at most one batch from the ROUTER if ``requests`` is true."""
        found = Input()
        for link in self._links.values():
            if link.dealer.news:
                found.connections += [(link.to, event == UP) for event in link.dealer.events() if event in (UP, DOWN)]
            if link.dealer.hot:
                self._read(link, found)
        size = 0
        self.connections.reading = requests
        while requests and len(found.requests) < INPUT_MESSAGES and size < INPUT_BYTES and self._router_has_input():
            frames = receive(self._router, self.connections.heard)
            if frames is None or self._is_noise(frames):
                self._count_noise()
            if frames is None:
                found.dropped += 1
            else:
                size += sum(map(len, frames))
                found.requests.append((frames[0], frames[1:]))
        return found

    def _router_has_input(self) -> bool:
        if self._noise >= NOISE_MESSAGES:
            return False
        self._router_hot = self._router_hot and has_input(self._router)
        return self._router_hot

    def _is_noise(self, frames: Frames) -> bool:
        if self._ident is None:
            return False
        return len(frames) <= IDENT_FRAME or not compare_digest(frames[IDENT_FRAME], self._ident)

    def _count_noise(self) -> None:
        if self._noise == 0:
            self._noise_window = self._loop.call_later(NOISE_WINDOW_S, self._forget_noise)
        self._noise += 1
        if self._noise == NOISE_MESSAGES:
            # Its descriptor stays readable until somebody looks, which nobody does now.
            self._loop.remove_reader(descriptor(self._router))

    def _forget_noise(self) -> None:
        was_left_alone = self._noise >= NOISE_MESSAGES
        self._noise = 0
        if was_left_alone:
            self._loop.add_reader(descriptor(self._router), self._router_signalled)
            self._router_signalled()

    def has_input(self, *, requests: bool = True) -> bool:
        """Say whether ``poll`` would find something now."""
        if requests and self._router_has_input():
            return True
        links = self._links.values()
        return any(link.dealer.hot and link.dealer.has_input() for link in links) or any(
            link.dealer.news for link in links
        )

    def send_route(self, route: Route, frames: Sequence[bytes | memoryview]) -> bool:
        """Answer a connection of the ROUTER; False if it is gone or does not read (reason ``route``)."""
        self._router_hot = True
        try:
            send(self._router, (route, *frames))
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def send(self, to: PeerChannel, frames: Sequence[bytes | memoryview]) -> bool:
        """Send on one of our own sockets, opening it first if need be; False while it is not connected or full."""
        if to.channel is Channel.PUBLISH:
            socket = self._publisher if self._is_subscribed() else None
        else:
            dealer = (self._links.get(to) or self._open(to)).dealer
            dealer.hot = True
            socket = dealer.socket
        if socket is None:
            return False
        try:
            send(socket, frames)
        except zmq.Again:
            return False
        return True

    def _is_subscribed(self) -> bool:
        """Whether anybody is there who may subscribe: else each entry costs us a frame.

        An XPUB would tell of topics, but says that one has ended for whoever ends what others subscribe.
        """
        return self._publisher is not None and self.connections.any_to(self._publisher)

    def disconnect(self, to: PeerChannel) -> None:
        """Close the socket of ``to``, if it is open; a later ``send`` opens a new one."""
        link = self._links.pop(to, None)
        if link is not None:
            link.dealer.close()

    async def close(self, *, linger: bool = True) -> None:
        """Close everything; with ``linger`` last answers get up to two seconds to leave."""
        self._sweep.cancel()
        if self._noise_window is not None:
            self._noise_window.cancel()
        lookups = tuple(self._lookups.values())
        for task in lookups:
            task.cancel()
        if lookups:
            await asyncio.wait(lookups)
        self.connections.close()
        self._loop.remove_reader(descriptor(self._router))
        self._router.close(ROUTER_LINGER_MS if linger else 0)
        for to in tuple(self._links):
            self.disconnect(to)
        if self._publisher is not None:
            self._publisher.close(0)
        if self._zap is not None:
            self._zap.close()
        # Ends when the lingering messages are gone, so not on the loop.
        await self._loop.run_in_executor(None, self._context.term)

    def _end_struck_off(self) -> None:
        if self._zap is not None:
            self.connections.end_all_but(self._zap.accepts_name)

    def _router_signalled(self) -> None:
        self._router_hot = True
        self._ready()

    def _open(self, to: PeerChannel) -> _Link:
        high_water = 1 if to.channel is Channel.RPC else HIGH_WATER_SIDE
        dealer = Dealer(self._context, self._loop, self._ready, high_water=high_water, curve=self._curve_keys)
        link = self._links[to] = _Link(to, dealer, self._loop.time())
        host = host_of(to.url)  # None: what others told us as an url may be anything; nobody is there then
        if needs_resolving(to.url):
            self._look_up(to.url)
        elif host:
            self._connect(link, [host])
        rpc = PeerChannel(Channel.RPC, to.peer, to.url)
        if to.channel is Channel.SIDE and rpc not in self._links:
            # Whoever is greeted is led or asked for its vote next; a connection made only then would cost a write gap.
            self._open(rpc)
        return link

    def _connect(self, link: _Link, addresses: Sequence[str]) -> None:
        """Make the link's connections those of ``addresses``: the first one, or all of a seed's."""
        port = urlsplit(link.to.url).port
        chosen = addresses if link.to.channel is Channel.SEED else addresses[:1]
        source = f"{bracketed(self._source)}:0;" if self._source else ""
        link.dealer.connect([f"tcp://{source}{bracketed(address)}:{port}" for address in chosen])

    def _look_up(self, url: str) -> None:
        """Ask for the addresses of a host; one answer serves all sockets to the same url, so they come up together."""
        if url not in self._lookups:
            self._lookups[url] = self._loop.create_task(self._resolve_and_connect(url))

    async def _resolve_and_connect(self, url: str) -> None:
        host = urlsplit(url).hostname or ""
        try:
            addresses = await names.look_up(self._resolve, host)
        except (system_socket.gaierror, OSError):
            # A pod that is not up has no name yet; asked again in RESOLVE_AGAIN_S.
            addresses = []
        finally:
            del self._lookups[url]
        for link in self._links.values():
            if addresses and link.to.url == url and (not link.dealer.endpoints or self._is_silent(link)):
                self._connect(link, addresses)

    def _is_silent(self, link: _Link) -> bool:
        return self._loop.time() - link.heard_s > RESOLVE_AGAIN_S

    def _resolve_silent(self) -> None:
        for link in self._links.values():
            if self._is_silent(link) and needs_resolving(link.to.url):
                self._look_up(link.to.url)
        self._sweep = self._loop.call_later(RESOLVE_AGAIN_S, self._resolve_silent)

    def _read(self, link: _Link, found: Input) -> None:
        for _ in range(INPUT_MESSAGES):
            if not link.dealer.has_input():
                return
            frames = receive(link.dealer.socket)
            link.heard_s = self._loop.time()
            if frames is None:
                found.dropped += 1
            else:
                found.replies.append((link.to, frames))


def _bind(socket: "zmq.Socket[bytes]", url: str) -> None:
    socket.set(zmq.IPV6, int("[" in url))
    try:
        socket.bind(url)
    except zmq.ZMQError as error:
        raise CannotBind(f"cannot listen on {url}: {error.strerror}; free the address or choose another") from error
