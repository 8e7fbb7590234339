"""How a client finds the leader and keeps its requests moving: the document's procedure (docs/specs/raft.md 11.2).

Pure: time is an argument, sending is an output. Urls are what users and configurations name; *endpoints* are urls with
a literal address, of which a url may have several. The adapter resolves the one into the other.

With *hedging* a leader that owes an answer for a moment, or is lost, is not waited for: all other peers are asked again
and again who leads, and as soon as one says that it does, everything goes there.

One search serves all calls. The document repeats the request itself at one peer after the other; we ask ``^`` there,
which tells the same and copies no data onto followers, and send the requests to the leader that is named. Beyond the
document, a leader whose connection breaks is left at once, without 500 ms of silence and the grace.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pavane.raft.client.calls import HELLO_VERSION, Call, Done, Elsewhere, Failed, Pending, UpdateCall, Verdict
from pavane.raft.errors import RaftError
from pavane.raft.silence import LOOK_S, Silence
from pavane.raft.wire.decoder import Drop, decode_reply
from pavane.raft.wire.frames import NONCE_BYTES, Frame, Frames, encode_uint
from pavane.raft.wire.pv import FEATURE_UPDATE, PvHello, PvHelloReply
from pavane.raft.wire.pv_update import (
    ITEM_HEADER_BYTES,
    UPDATE_BYTES,
    UPDATE_ITEMS,
    PvUpdate,
    PvUpdateReply,
    UpdateItem,
)
from pavane.raft.wire.replies import RequestConfigReply
from pavane.raft.wire.requests import RequestConfig

if TYPE_CHECKING:
    from random import Random  # given by the caller: nothing in here draws by itself

AnyCall: TypeAlias = Call[Any]

ELECTION_POLL_S = 0.025  # between two looks at a peer that is about to lead: a fraction of its election
ROUND_PAUSE_S = 0.05  # between two rounds in which nobody knew a leader: elections take a few of these
HEDGE_POLL_S = 0.025  # between two questions to all others who leads
HEDGE_JITTER_S = 0.005  # clients that lost one leader do not ask in step
REFRESH_S = 1.0  # a leader that is in use is asked so often for the members: all others may have been replaced
HEDGE_POLLS_MAX = 256  # whose answers still count: those of about a second
PATIENCE_DOUBLINGS = 10  # between two repetitions to a leader that says nothing at all: ten minutes in the end
SWEEP_S = LOOK_S  # how exactly silence and deadlines are seen; one pass over all calls
RESOLVE_AGAIN_S = 0.5  # a name without an address is asked for again: its pod may be about to start
REDIRECTS_MAX = 4  # peers that name each other without any progress between; then a search decides
POLL_ID_MODULUS = 1 << 32  # client ids of polls are numbers of up to four bytes (2.1)
PART_ITEMS = 256  # of a pv.update that we send at most: the leader works at the first while we make the next …
PARTS = 4  # … but more where more than so many would be under way
UPDATES_ID = b"updates"  # client id of every pv.update: the results name their updates, so one message can tell many


class Finished(NamedTuple):
    """A call with its result or its error. Made for every update, as ``Done``; a frozen dataclass costs three times."""

    call: AnyCall
    value: Any = None
    error: RaftError | None = None


@dataclass(slots=True)
class Outputs:
    """What the adapter has to do, in this order.

    ``connect`` is the set of endpoints that shall be connected, ``None`` while it has not changed; the connections to
    ``redial`` carry nothing and are made anew, without being told to ``connection`` as gone; ``resolve`` are urls
    whose addresses shall be looked up and given to ``resolved``; ``progressed`` are streams with something to read;
    ``server_clock_ms`` is what a server's clock just said, if one did.
    """

    connect: frozenset[str] | None = None
    redial: list[str] = field(default_factory=list)
    resolve: list[str] = field(default_factory=list)
    send: list[tuple[str, tuple[Frame, ...]]] = field(default_factory=list)
    progressed: list[AnyCall] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    server_clock_ms: int | None = None


@dataclass(slots=True)
class _Search:
    """A search for the leader.

    ``until_s`` ends the present step; ``queue`` are those still to ask in this round; ``asked`` is being asked;
    ``wanted`` is the url of a leader whose address is awaited; ``pause_due``: the last of the round has been asked;
    ``starved``: there is nobody to ask.
    """

    until_s: float
    queue: deque[str] = field(default_factory=deque)
    asked: str | None = None
    asked_id: bytes = b""
    wanted: str | None = None
    pause_due: bool = False
    starved: bool = False


class Procedure:
    """The calls of one client and the way to the leader.

    ``timeout_s`` is the silence after which a server counts as gone, ``grace_s`` the wait before a search then.
    ``hedge_after_s`` is the silence after which others are asked as well; ``None``: not before ``timeout_s``.
    """

    def __init__(
        self,
        seeds: Sequence[str],
        ident: bytes,
        timeout_s: float,
        grace_s: float,
        rng: "Random",
        hedge_after_s: float | None = None,
    ) -> None:
        self._ident = ident
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._seeds = tuple(dict.fromkeys(seeds))
        self._peers: dict[str, str] = {}
        self._endpoints: dict[str, tuple[str, ...]] = {}
        self._targets_changed = False
        self._down: set[str] = set()
        self._connected: frozenset[str] = frozenset()
        self._silence: Silence[str] = Silence()
        self._calls: dict[bytes, AnyCall] = {}
        self._direct: dict[bytes, AnyCall] = {}
        self._leader: str | None = None
        self._leader_proven = False  # it has taken a call since we turned to it
        self._leader_heard_s = 0.0
        self._search: _Search | None = None
        self._cursor: str | None = None
        self._redirects = 0
        self._poll_number = 0
        self._rng = rng
        self._hedge_after_s = hedge_after_s
        self._hedge_at_s = 0.0
        self._refreshed_s = 0.0  # when the leader was asked for the members last
        self._hedge_polls: dict[bytes, str] = {}  # endpoint by id
        self._hellos: dict[str, tuple[bytes, bytes]] = {}  # id and nonce by endpoint
        self._features: dict[str, int] = {}  # of the server behind an open connection, if it is ours
        self._gathered: dict[str, list[UpdateItem]] = {}
        self._sweep_at_s = 0.0
        self._resolve_at_s = 0.0
        self._outputs = Outputs()

    def url_of(self, peer: str) -> str | None:
        """Return the url of a member by its id, if it is known."""
        return self._peers.get(peer)

    def submit(self, call: AnyCall, now: float) -> None:
        """Begin a call; its id must be free."""
        if not self._calls and self._sweep_at_s <= now:
            self._sweep_at_s = now + SWEEP_S
        self._calls[call.id] = call
        call.started_s = now
        call.deadline_s = now + call.timeout_s
        if self._hedge_after_s is not None:
            self._hedge_at_s = min(self._hedge_at_s, now + self._hedge_after_s)
        if call.url is not None:
            self._direct[call.id] = call
            self._targets_changed = True
            if call.url in self._endpoints:
                found = self._endpoints[call.url]
                self._send(call, next((each for each in found if each not in self._down), found[0]), now)
            else:
                self._outputs.resolve.append(call.url)
        elif self._leader is not None:
            self._send(call, self._leader, now)
        elif self._search is None:
            self._begin_search(now)

    def cancel(self, call: AnyCall) -> None:
        """Stop repeating a call; a call that has finished is no error."""
        if self._calls.get(call.id) is call:
            self._remove(call)

    def say(self, call: AnyCall, frames: tuple[Frame, ...], now: float) -> None:
        """Send something more, such as an acknowledgement, where ``call`` went; nowhere if it has no server now."""
        call.heard_s = now
        call.deadline_s = now + call.timeout_s
        if call.endpoint is not None:
            self._tell(call.endpoint, (call.id, *frames))

    def resolved(self, url: str, endpoints: Iterable[str], now: float) -> None:
        """Take the addresses of ``url``; none keeps those known before."""
        found, known = tuple(endpoints), self._endpoints.get(url, ())
        if not found or known == found:
            return
        self._endpoints[url] = found
        self._targets_changed = True
        for call in self._direct.values():
            if call.url == url and call.endpoint not in found:
                self._send(call, found[0], now)
        if self._search is not None and self._search.wanted == url:
            self._follow(found[0], now)
        elif self._leader is not None and self._leader not in self._targets():
            self._begin_search(now)
        if self._search is not None:
            self._search.queue.extend(endpoint for endpoint in found if endpoint not in known)
            self._search.pause_due = False
        self._feed_search(now)

    def connection(self, endpoint: str, up: bool, now: float) -> None:
        """Take note that a connection came up, or went or could not be made."""
        self._features.pop(endpoint, None)
        self._silence.connected(endpoint, up)
        if up:
            self._down.discard(endpoint)
            self._greet(endpoint)
            self._feed_search(now)
            return
        self._down.add(endpoint)
        self._outputs.resolve += [url for url, endpoints in self._endpoints.items() if endpoint in endpoints]
        if endpoint == self._leader:
            # No grace: polls cost little, and a leader that stopped in order has a successor already.
            self._begin_search(now)
        elif self._search is not None and self._search.asked == endpoint:
            self._next_step(self._search, now)

    def receive(self, endpoint: str, frames: Frames, now: float) -> None:
        """Take a message from a DEALER, id frame first."""
        self._silence.heard(endpoint)
        if endpoint == self._leader:
            self._leader_heard_s = now
        message_id = bytes(frames[0])
        if message_id == UPDATES_ID:
            self._updated(endpoint, frames[1:], now)
            return
        search = self._search
        if search is not None and search.asked == endpoint and search.asked_id == message_id:
            self._poll_answered(search, frames[1:], now)
            return
        if message_id in self._hedge_polls:
            self._hedge_answered(endpoint, frames[1:], now)
            return
        call = self._calls.get(message_id)
        if call is not None:
            if call.streaming and call.endpoint != endpoint:
                return  # of a server that it has left: it would be mixed with what comes from the next
            self._judged(call, call.judge(frames[1:]), endpoint, now)
        elif self._hellos.get(endpoint, (b"",))[0] == message_id:
            self._greeted(endpoint, frames[1:])

    def _judged(self, call: AnyCall, verdict: Verdict[Any], endpoint: str, now: float) -> None:
        match verdict:
            case Done(value):
                if endpoint == self._leader:
                    self._redirects = 0
                    self._leader_proven = True
                self._finish(Finished(call, value))
            case Failed(error):
                self._finish(Finished(call, error=error))
            case Pending(repeat_after_s) if call.endpoint == endpoint:
                call.heard_s = now
                call.repeat_at_s = None if repeat_after_s is None else now + repeat_after_s
                self._redirects = 0
                self._leader_proven = True
                if call.streaming:
                    call.deadline_s = now + call.timeout_s
                    self._outputs.progressed.append(call)
            case Elsewhere(leader) if call.endpoint == endpoint:
                self._redirect(endpoint, leader, now)

    def handle_timer(self, now: float) -> None:
        """Do what has become due."""
        if self._search is not None and now >= self._search.until_s:
            self._next_step(self._search, now)
        if self._hedge_after_s is not None and now >= self._hedge_at_s:
            self._hedge(now, self._hedge_after_s)
        if self._leader is not None and now >= self._refreshed_s + REFRESH_S:
            self._refreshed_s = now
            self._ask_who_leads(self._leader)
        if now >= self._sweep_at_s:
            self._sweep_at_s = now + SWEEP_S
            self._sweep(now)
            self._resolve_missing(now)

    def next_timer(self) -> float | None:
        """Return when ``handle_timer`` is due, or ``None`` while nothing is under way."""
        if not self._calls:
            return None
        due = self._sweep_at_s if self._search is None else min(self._sweep_at_s, self._search.until_s)
        return due if self._hedge_after_s is None else min(due, self._hedge_at_s)

    def outputs(self) -> Outputs:
        """Return what has accumulated, and forget it."""
        if self._gathered:
            self._send_gathered()
        outputs, self._outputs = self._outputs, Outputs()
        if self._targets_changed:
            self._targets_changed = False
            outputs.connect = frozenset(self._targets())
            for endpoint in self._connected - outputs.connect:
                self._silence.forget(endpoint)
            self._connected = outputs.connect
            self._down &= outputs.connect
            for endpoint in self._hellos.keys() - outputs.connect:
                del self._hellos[endpoint]
                self._features.pop(endpoint, None)
        return outputs

    def _urls(self) -> list[str]:
        """Members first, then seeds, then the peers that single calls name; each once."""
        direct = (call.url for call in self._direct.values() if call.url is not None)
        return list(dict.fromkeys((*self._peers.values(), *self._seeds, *direct)))

    def peer_urls(self) -> list[str]:
        """Return the urls of the members or, while these are not known, of the seeds."""
        return list(self._peers.values() or self._seeds)

    def is_down(self, url: str) -> bool:
        """Say whether it is known that no address of ``url`` can be reached now."""
        endpoints = self._endpoints.get(url, ())
        return bool(endpoints) and self._down.issuperset(endpoints)

    def _targets(self) -> list[str]:
        """Every endpoint worth a connection, in the order of ``_urls``."""
        return list(dict.fromkeys(endpoint for url in self._urls() for endpoint in self._endpoints.get(url, ())))

    def _begin_search(self, now: float, *, pause_s: float = 0.0, first: str | None = None) -> None:
        """Leave the leader, if there is one, and after ``pause_s`` look for the next; ``first`` is asked before all.

        Without a call that needs a leader the search waits for one.
        """
        if self._leader is not None:
            self._cursor, self._leader = self._leader, None
        if not self._seeking_calls():
            self._search = None
            return
        for call in self._calls.values():
            if call.url is None:
                call.endpoint = None
        self._redirects = 0
        self._outputs.resolve += self._urls()
        self._search = _Search(now + pause_s, deque([first] if first else []))
        if not pause_s:
            self._next_step(self._search, now)
        self._hedge_at_s = now

    def _next_step(self, search: _Search, now: float) -> None:
        """Ask the next peer of this round, or pause before the next round."""
        search.asked = search.wanted = None
        search.until_s = now + ROUND_PAUSE_S
        if search.pause_due:
            search.pause_due = False
            return
        if not search.queue:
            targets = self._targets()
            # Begin behind the peer that was asked last: a leader that was cut off would else be asked first for ever.
            start = targets.index(self._cursor) + 1 if self._cursor in targets else 0
            search.queue.extend((*targets[start:], *targets[:start]))
        while search.queue:
            endpoint = search.queue.popleft()
            if endpoint not in self._down:
                search.pause_due = not search.queue
                search.starved = False
                self._poll(search, endpoint, now)
                return
        search.starved = True

    def _feed_search(self, now: float) -> None:
        """Go on at once with a search that had nobody to ask."""
        if self._search is not None and self._search.starved:
            self._next_step(self._search, now)

    def _poll(self, search: _Search, endpoint: str, now: float) -> None:
        self._cursor = search.asked = endpoint
        search.asked_id = self._next_poll_id()
        search.until_s = now + self._timeout_s
        self._tell(endpoint, (search.asked_id, *RequestConfig().encode(self._ident)))

    def _poll_answered(self, search: _Search, frames: Frames, now: float) -> None:
        reply = decode_reply(RequestConfigReply, frames)
        if isinstance(reply, Drop):
            return  # whoever answers so may yet answer well; the step ends by its time
        if reply.peers:
            self._learn(dict(reply.peers))
        url = self._peers.get(reply.leader) if reply.leader is not None else None
        if reply.is_leader and search.asked is not None:
            self._follow(search.asked, now)
        elif url is None:
            self._next_step(search, now)
        else:
            self._go_to(search, url, now)

    def _hedge(self, now: float, after_s: float) -> None:
        """Ask all others who leads while nobody does, or while the leader owes us an answer."""
        if self._search is None:
            overdue_s = self._overdue_s(now, after_s)
            if overdue_s > now:
                self._hedge_at_s = min(overdue_s, now + SWEEP_S)
                return
        self._hedge_at_s = now + HEDGE_POLL_S + self._rng.uniform(-HEDGE_JITTER_S, HEDGE_JITTER_S)
        for endpoint in self._targets():
            if endpoint != self._leader and endpoint not in self._down:
                self._ask_who_leads(endpoint)

    def _ask_who_leads(self, endpoint: str) -> None:
        """Ask beside the search; the answer also tells the members."""
        message_id = self._next_poll_id()
        self._hedge_polls[message_id] = endpoint
        self._tell(endpoint, (message_id, *RequestConfig().encode(self._ident)))
        if len(self._hedge_polls) > HEDGE_POLLS_MAX:
            del self._hedge_polls[next(iter(self._hedge_polls))]

    def _overdue_s(self, now: float, after_s: float) -> float:
        """Return when the leader has owed us an answer for too long; nobody looks closer at one that was just heard.

        A stream may be silent for longer; whether its server lives is told by the answers to ``_ask_who_leads``.
        """
        heard_s = self._leader_heard_s
        if now < heard_s + after_s:
            return heard_s + after_s
        waiting = (call for call in self._calls.values() if call.url is None and call.waiting)
        overdue_s = min((call.heard_s + max(after_s, call.silence_s) for call in waiting), default=math.inf)
        if heard_s < self._refreshed_s:
            overdue_s = min(overdue_s, self._refreshed_s + after_s)
        return max(heard_s + after_s, overdue_s)

    def _hedge_answered(self, endpoint: str, frames: Frames, now: float) -> None:
        reply = decode_reply(RequestConfigReply, frames)
        if isinstance(reply, Drop):
            return
        if reply.peers and dict(reply.peers) != self._peers:
            self._learn(dict(reply.peers))
        if reply.is_leader and endpoint != self._leader and self._seeking_calls():
            self._follow(endpoint, now)

    def _learn(self, peers: dict[str, str]) -> None:
        self._outputs.resolve += [url for url in peers.values() if url not in self._endpoints]
        self._peers = peers
        self._targets_changed = True

    def _go_to(self, search: _Search, url: str, now: float) -> None:
        """Follow the peer at ``url`` unless it is known to be down; wait for its address if that is not known."""
        endpoints = self._endpoints.get(url)
        if endpoints is None:
            search.wanted = url
            search.until_s = now + self._timeout_s
            return
        endpoint = next((endpoint for endpoint in endpoints if endpoint not in self._down), None)
        if endpoint is None:
            self._next_step(search, now)
        else:
            self._follow(endpoint, now)

    def _follow(self, endpoint: str, now: float) -> None:
        """Take ``endpoint`` for the leader and send it everything that waits."""
        self._search = None
        self._hedge_polls.clear()
        self._leader, self._leader_proven = endpoint, False
        self._leader_heard_s = now
        self._refreshed_s = now
        for call in tuple(self._calls.values()):
            if call.url is None:
                self._send(call, endpoint, now)

    def _redirect(self, endpoint: str, leader: str | None, now: float) -> None:
        """Go where a negative answer points."""
        self._redirects += 1
        if self._redirects > REDIRECTS_MAX:
            self._begin_search(now, pause_s=self._grace_s)
            return
        if leader is None:
            # Grace is for a leader that has just lost its place. One that was named a moment ago and does not lead yet
            # is about to: polls find out when.
            self._begin_search(now, pause_s=self._grace_s if self._leader_proven else ELECTION_POLL_S)
            return
        url = self._peers.get(leader)
        endpoints = self._endpoints.get(url, ()) if url is not None else ()
        target = next((other for other in endpoints if other not in self._down), None)
        if target == endpoint:
            self._begin_search(now, pause_s=self._grace_s)
        elif target is None:
            self._begin_search(now, first=endpoint)
        else:
            self._follow(target, now)

    def _send(self, call: AnyCall, endpoint: str, now: float) -> None:
        if call.once and call.attempts:
            self._finish(Finished(call, error=call.timed_out(tuple(self._urls()), now - call.started_s)))
            return
        call.endpoint = endpoint
        call.heard_s = now
        call.repeat_at_s = None
        call.attempts += 1
        if call.item is not None and self._features.get(endpoint, 0) & FEATURE_UPDATE:
            self._gathered.setdefault(endpoint, []).append(call.item)
        else:
            self._tell(endpoint, (call.id, *call.frames(self._ident)))

    def _send_gathered(self) -> None:
        """Make messages of the updates that wait, as few as the limits allow."""
        items_max = min(UPDATE_ITEMS, max(PART_ITEMS, len(self._calls) // PARTS))
        for endpoint, items in self._gathered.items():
            first = size = 0
            for position, item in enumerate(items):
                size += ITEM_HEADER_BYTES + len(item.data)
                if position > first and (size > UPDATE_BYTES or position - first == items_max):
                    self._send_items(endpoint, items[first:position])
                    first, size = position, ITEM_HEADER_BYTES + len(item.data)
            self._send_items(endpoint, items[first:])
        self._gathered.clear()

    def _send_items(self, endpoint: str, items: list[UpdateItem]) -> None:
        self._tell(endpoint, (UPDATES_ID, *PvUpdate(tuple(items)).encode(self._ident)))

    def _updated(self, endpoint: str, frames: Frames, now: float) -> None:
        """Take what became of many updates."""
        reply = decode_reply(PvUpdateReply, frames)
        if isinstance(reply, Drop):
            return
        for reqid, code, value in reply.results:
            call = self._calls.get(reqid)
            if isinstance(call, UpdateCall):
                self._judged(call, call.judge_result(code, value, reply.leader), endpoint, now)

    def _greet(self, endpoint: str) -> None:
        """Ask a server what it is: one of ours takes many updates in one message."""
        self._hellos[endpoint] = (self._next_poll_id(), self._rng.randbytes(NONCE_BYTES))
        message_id, nonce = self._hellos[endpoint]
        hello = PvHello("", 0, nonce, {"v": HELLO_VERSION, "feat": 0})
        self._tell(endpoint, (message_id, *hello.encode(self._ident)))

    def _greeted(self, endpoint: str, frames: Frames) -> None:
        reply = decode_reply(PvHelloReply, frames)
        if isinstance(reply, Drop) or reply.nonce != self._hellos[endpoint][1]:
            return
        features, clock_ms = reply.info.get("feat"), reply.info.get("now")
        self._features[endpoint] = features if isinstance(features, int) else 0
        if isinstance(clock_ms, int):
            self._outputs.server_clock_ms = clock_ms

    def _tell(self, endpoint: str, frames: tuple[Frame, ...]) -> None:
        self._silence.asked(endpoint, sum(map(len, frames)))
        self._outputs.send.append((endpoint, frames))

    def _next_poll_id(self) -> bytes:
        self._poll_number = (self._poll_number + 1) % POLL_ID_MODULUS
        return encode_uint(self._poll_number)

    def _sweep(self, now: float) -> None:
        """See to silent connections, then to deadlines, silence and repetitions of all calls."""
        doubtful, lost = self._silence.look()
        for endpoint in doubtful:
            self._ask_who_leads(endpoint)
        for endpoint in lost:
            self._outputs.redial.append(endpoint)
            self.connection(endpoint, up=False, now=now)
        silent = False
        for call in tuple(self._calls.values()):
            if call.waiting and now >= call.deadline_s:
                tried = (call.url,) if call.url is not None else tuple(self._urls())
                self._finish(Finished(call, error=call.timed_out(tried, now - call.started_s)))
            elif call.endpoint is None:
                continue
            elif call.repeat_at_s is not None:
                if now >= call.repeat_at_s:
                    self._send(call, call.endpoint, now)
            elif call.waiting and not call.once and now - call.heard_s >= (call.silence_s or self._timeout_s):
                if call.url is not None or now - self._leader_heard_s < self._timeout_s:
                    self._send(call, call.endpoint, now)  # it lives, and may have lost this one
                elif self._hedge_after_s is None:
                    silent = True
                elif now - call.heard_s >= self._timeout_s * 2 ** min(call.attempts - 1, PATIENCE_DOUBLINGS):
                    self._send(call, call.endpoint, now)  # hedging sees to a dead leader; what is sent piles up
        if silent and self._leader is not None:
            self._begin_search(now, pause_s=self._grace_s)

    def _resolve_missing(self, now: float) -> None:
        if now >= self._resolve_at_s:
            self._resolve_at_s = now + RESOLVE_AGAIN_S
            self._outputs.resolve += [url for url in self._urls() if url not in self._endpoints]

    def _finish(self, finished: Finished) -> None:
        self._outputs.finished.append(finished)
        self._remove(finished.call)

    def _remove(self, call: AnyCall) -> None:
        del self._calls[call.id]
        if self._direct.pop(call.id, None) is not None:
            self._targets_changed = True
        if not self._seeking_calls():
            self._search = None

    def _seeking_calls(self) -> bool:
        """Whether any call goes to the leader."""
        return len(self._calls) > len(self._direct)
