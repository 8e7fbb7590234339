"""Everything that a SWIM member may be sent or told, in any order, chosen by bytes (docs/specs/swim.md 25, row A11).

Whoever finds the bytes is another matter: Hypothesis in ``make test``, atheris in ``make fuzz``. The member attacked is
a real core; its peers, strangers, whoever holds a key, its own user and time are played by the bytes.
"""

import contextlib
import random
from collections.abc import Callable
from typing import Any

from pavane.swim.config import Config, Encoding, RequireToken, Start, ViewKind
from pavane.swim.core.core import Core
from pavane.swim.core.outputs import Own, Persist, Send
from pavane.swim.errors import SwimError
from pavane.swim.state.envelope import Keyring
from pavane.swim.wire import libtribe, messages
from pavane.swim.wire.messages import (
    ERROR_DOMAIN,
    Broadcast,
    JoinAck,
    JoinNak,
    JoinRedirect,
    JoinReq,
    Leave,
    Message,
    PingRequest,
    PingResponse,
)
from pavane.swim.wire.payload import (
    Digest,
    KeyOp,
    KeyStep,
    Listed,
    Meta,
    Page,
    Payload,
    StageShown,
    Suspicion,
    Trace,
    Unlink,
    User,
)
from pavane.swim.wire.values import U32_MAX, UNSPECIFIED, Address, NodeId, NodeInfo, NodeStage, State
from pavane.wire import RemoteProtocolError
from tests.fuzz.choices import Choices
from tests.services.swim.lone import SELF, UNIX_S, alive, info, place
from tests.sim.swim.checks import Checks
from tests.sim.swim.world import Process

KEY = bytes(range(32))
EVERYWHERE = Address.parse("255.255.255.255:7946")
CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"keys": (KEY,)},
    {"keys": (KEY,), "seal": True, "rotate_by_gossip": True, "stored_gen": 0},
    {"keys": (KEY,), "accept_plaintext": True},
    {"rollout": 1, "start": Start.SELF},
    {"encoding": Encoding.LIBTRIBE, "require_token": RequireToken.OFF},
    {"broadcast_to": EVERYWHERE, "capacity": 4, "id": None, "max_datagram_bytes": 256},
    {"view": ViewKind.PARTIAL, "capacity": 4},
    {"view": ViewKind.PARTIAL, "capacity": 2, "force_capacity": True, "keys": (KEY,), "start": Start.SELF},
)
PEERS = (2, 3, 4)
SOURCES = (*(place(peer) for peer in PEERS), SELF, Address.parse("192.0.2.1:9"), Address.parse("[2001:db8::7]:7946"))
GENS = (0, 1, 2, 10, 11, 70, UNIX_S, UNIX_S + (1 << 17), U32_MAX)


class Attack:
    """One member and what is done to it."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        settings = {"id": 1, "first_gen": 10, "address": SELF, **choices.pick(CONFIGS)}
        self.now = 1000.0
        self.core = Core(Config(**settings), random.Random(1), random.Random(7).randbytes, self.now, UNIX_S)
        keys = settings.get("keys", ())
        self.keyring = Keyring(keys, "", b"\7".__mul__, 8, seal=settings.get("seal", False)) if keys else None
        self.answered = False
        self.process = Process("attacked", SELF, self.core)
        self.checks = Checks(enabled=True)
        self.checks.started(self.process)
        self.core.join([place(2)], self.now)
        self._carry_out()
        self._hear(place(2), self._encode(JoinAck(info(2))), wrap=True)
        self._hear(place(2), self._encode(self._says(2, Payload(alive=(info(3), info(4))))), wrap=True)

    def run(self) -> None:
        """Do what the bytes say; afterwards the member ends what it began, and goes on."""
        steps = (self._told, self._told, self._told, self._raw, self._pass_time, self._used)
        while not self.choices.over:
            self.choices.pick(steps)()
        self._wait(5)
        assert self.core.own is not Own.LEAVING, "it never ends to leave"
        if self.core.own is Own.OUT:
            self.core.join([place(2)], self.now)
            self._carry_out()
        assert self.core.next_timer() is not None, "it waits for nothing any more"

    # --- the member's surroundings -------------------------------------------------------------------------------

    def _hear(self, source: Address, datagram: bytes, *, wrap: bool) -> None:
        """Deliver a datagram, as somebody with the keys would say it or without."""
        if wrap and self.keyring is not None and datagram:
            datagram = self.keyring.wrap(datagram)
        self.core.receive(source, datagram, self.now)
        self._carry_out()

    def _encode(self, message: Message) -> bytes:
        """Write a message as the member reads it, as far as that is possible."""
        return message.encode() if isinstance(message, Leave) else self.core._node.encode(message)

    def _carry_out(self) -> None:
        for output in self.core.outputs():
            if isinstance(output, Send):
                self.checks.sent(self.process, output)
                self._sent(output)
            elif isinstance(output, Persist):
                self.process.stored = output
            else:
                self.process.events.append((self.now, output))
        self.checks.after(self.process)

    def _sent(self, send: Send) -> None:
        """Let peers answer pings, when the bytes want it."""
        if self.answered and self.keyring is None and (answer := alive(send.to, self.core._node.decode(send.datagram))):
            self.core.receive(send.to, self._encode(answer), self.now)

    def _wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.core.next_timer()) is not None and due <= end:
            self.now = max(self.now, due)
            self.core.handle_timer(self.now)
            self._carry_out()
        self.now = end

    # --- steps ---------------------------------------------------------------------------------------------------

    def _told(self) -> None:
        datagram = bytearray(self._encode(self._message()))
        if self.choices.number(8) == 0:
            datagram[self.choices.number(len(datagram))] ^= 1 << self.choices.number(8)
        if self.choices.number(16) == 0:
            del datagram[self.choices.number(len(datagram)) :]
        self._hear(self.choices.pick(SOURCES), bytes(datagram), wrap=self.choices.number(4) > 0)

    def _raw(self) -> None:
        self._hear(self.choices.pick(SOURCES), self.choices.bytes(60), wrap=self.choices.number(2) > 0)

    def _pass_time(self) -> None:
        seconds = self.choices.pick((0.01, 0.3, 1.0, 7.0, 40.0))
        if self.choices.number(4) == 0:
            self.now += seconds  # it had no CPU
            seconds = 0.01
        self.answered = self.choices.number(2) > 0
        self._wait(seconds)

    def _used(self) -> None:
        """Do what its user may do; what it refuses, it refuses by an error of its own."""
        core, now, choices = self.core, self.now, self.choices
        calls: tuple[Callable[[], object], ...] = (
            lambda: core.join([choices.pick(SOURCES)], now),
            lambda: core.leave(now),
            lambda: core.drain(now),
            lambda: core.promote(now, force=choices.number(2) > 0),
            lambda: core.set_meta(choices.bytes(40), now),
            lambda: core.send_user(choices.bytes(40), now),
            lambda: core.ping(choices.pick(PEERS), now),
            lambda: core.announce(now),
            lambda: core.rotate(choices.pick(list(KeyOp)), bytes(32), now),
            lambda: core.set_unix(UNIX_S + choices.number(200), now),
        )
        with contextlib.suppress(SwimError):
            choices.pick(calls)()
        self._carry_out()

    # --- messages ------------------------------------------------------------------------------------------------

    def _says(self, author: int, payload: Payload) -> PingResponse:
        return PingResponse(self.core._node.node, NodeId(author, 1), 0, payload)

    def _message(self) -> Message:
        choices = self.choices
        seqs = list(self.core._probing._pending) or [0]
        builders: tuple[Callable[[], Message], ...] = (
            lambda: PingRequest(self._node(), self._node(), choices.number(4), self._payload(choices.number(6))),
            lambda: PingResponse(self._node(), self._node(), choices.number(3), self._payload(choices.pick(seqs))),
            lambda: self._says(choices.pick(PEERS), self._payload(None)),
            lambda: JoinReq(self._info(), choices.bytes(24), choices.bytes(16)),
            lambda: JoinAck(self._info(), self._payload(None)),
            lambda: JoinNak(ERROR_DOMAIN, choices.number(11), choices.pick(("", "3", "70", "x", str(UNIX_S)))),
            lambda: JoinRedirect(choices.pick(SOURCES), ERROR_DOMAIN, 5),
            lambda: Leave(self._info()),
            lambda: Broadcast(self._info()),
        )
        return choices.pick(builders)()

    def _node(self) -> NodeId:
        id_ = self.choices.pick((2, 3, 4, self.core.info.id, 5, 0, U32_MAX))
        return NodeId(id_, self.choices.pick((*GENS, self.core.info.gen)))

    def _info(self) -> NodeInfo:
        return NodeInfo(*self._node(), self.choices.pick((UNSPECIFIED, *SOURCES)))

    def _payload(self, seq: int | None) -> Payload:
        """Return a few records; which ones, and how many, the bytes say."""
        choices, payload = self.choices, Payload(seq=seq)
        records: tuple[tuple[str, Callable[[], object]], ...] = (
            ("dead", lambda: (self._node(),)),
            ("left", lambda: (self._node(),)),
            ("suspects", lambda: (Suspicion(self._node(), choices.number(6)),)),
            ("alive", lambda: (self._info(), self._info())),
            ("sample", lambda: (self._info(),)),
            ("health", lambda: choices.number(10)),
            ("stage", lambda: StageShown(choices.pick(list(NodeStage)), choices.number(4))),
            ("unlinks", lambda: (Unlink(self._node(), choices.pick((None, self._info()))),)),
            ("users", lambda: (User(self._node(), choices.number(4), choices.bytes(9)),)),
            ("traces", lambda: (Trace(2, choices.number(4), bytes(16), bytes(8), 1),)),
            ("metas", lambda: (Meta(self._node(), choices.bytes(9)),)),
            ("keyrings", self._key_step),
            ("digest", lambda: Digest(choices.number(3), bytes(8))),
            ("pages", self._page),
            ("reply_to", lambda: choices.pick(SOURCES)),
            ("peers", lambda: choices.number(9)),
            ("capacity", lambda: choices.number(9)),
        )
        for _ in range(choices.number(4)):
            name, make = choices.pick(records)
            setattr(payload, name, make())
        return payload

    def _key_step(self) -> tuple[KeyStep, ...]:
        op = self.choices.pick(list(KeyOp))
        return (KeyStep(op, self.choices.bytes(4).ljust(4, b"\0"), bytes(32) if op is KeyOp.INSTALL else b""),)

    def _page(self) -> tuple[Page, ...]:
        listed = tuple(Listed(self._info(), self.choices.pick(list(State))) for _ in range(self.choices.number(4)))
        return (Page(self.choices.pick((0, 3)), self.choices.pick((4, U32_MAX)), listed),)


def attack(data: bytes) -> None:
    """Attack a member in the way that ``data`` says. Raises whatever it raises, or ``AssertionError``."""
    Attack(Choices(data)).run()


def decode_any(data: bytes) -> None:
    """Decode bytes in both encodings: they parse and are written again, or one error is raised (3.3)."""
    for decode in (messages.decode, libtribe.decode):
        try:
            found = decode(data)
        except RemoteProtocolError:
            continue
        if decode is messages.decode:
            assert decode(found.encode()) == found
