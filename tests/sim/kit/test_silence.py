"""Half-open connections of the simulations end when, and only where, the product has its system end them."""

import asyncio
from collections.abc import Callable

import pytest

from pavane.ambrosia import aio as ambrosia
from pavane.compute import transport as compute
from pavane.runtime.keepalive import notice_silence
from pavane.waltz.aio import stream as waltz
from pavane.waltz.client.link import Link
from pavane.waltz.wire.frame import LOG_SERVER, Channel
from tests.sim.kit.scheduler import Scheduler
from tests.sim.kit.silence import NEVER, Line, Noticing, noticed_by, noticing, noticing_grpc, on_linux

RULE = Noticing(idle_s=2.0, unanswered_s=3.0, unacknowledged_s=5.0)
GRPC = Noticing(idle_s=4.0, unanswered_s=4.0, unacknowledged_s=4.0, asks_always=True)
SLOW = Noticing(idle_s=60.0, unanswered_s=60.0, unacknowledged_s=None)
QUIET_S = 3.0  # until the silence begins; the last question was answered at 2 s


@on_linux
def test_what_the_platform_dials_is_given_up_within_four_seconds() -> None:
    untouched = noticing()
    assert untouched.idle_s is untouched.unacknowledged_s is None
    for prepare in (notice_silence, ambrosia._prepare):
        assert noticing(prepare) == Noticing(idle_s=2, unanswered_s=2, unacknowledged_s=4)
    assert noticing(waltz._notice_the_end, notice_silence) == noticing(notice_silence)
    assert noticing(waltz._notice_the_end) == Noticing(idle_s=60, unanswered_s=60, unacknowledged_s=None)


@on_linux
async def test_a_connection_of_the_log_is_prepared_so() -> None:
    taken: list[asyncio.StreamWriter] = []

    def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        writer.write(Channel(LOG_SERVER).hello())

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        link = await Link.connect(server.sockets[0].getsockname(), None, 1)
        assert link._transport is not None
        assert noticed_by(link._transport.get_extra_info("socket")) == noticing(notice_silence)
        await link.close()
        for writer in taken:
            writer.transport.abort()


@pytest.mark.parametrize("options", [compute.CLIENT_OPTIONS, compute.SERVER_OPTIONS], ids=["client", "server"])
def test_streams_of_replicas_are_given_up_within_eight_seconds(options: tuple[tuple[str, int], ...]) -> None:
    assert noticing_grpc(dict(options)) == GRPC
    for name in ("grpc.keepalive_time_ms", "grpc.keepalive_permit_without_calls"):
        assert noticing_grpc({key: value for key, value in options if key != name}) == NEVER


class Pair:
    """Both ends of a connection, and when each of them was ended by its system."""

    def __init__(self, near: Noticing, far: Noticing) -> None:
        self.scheduler = Scheduler(1)
        self.ended: dict[int, float] = {}
        self.line = Line(self.scheduler.schedule, lambda: self.scheduler.time, (near, far), self._give_up)

    def _give_up(self, end: int) -> None:
        self.line.over[end] = True
        self.ended[end] = self.scheduler.time

    def tell(self, end: int) -> bool:
        self.line.sent(end)
        self.scheduler.run(0.0)
        return self.line.arrives(end)


def idle(pair: Pair) -> None:
    """Nobody sends anything."""


def near_sends(pair: Pair) -> None:
    assert not pair.tell(0)


def far_sends(pair: Pair) -> None:
    assert pair.tell(1) is not pair.line.silent[1]


@pytest.mark.parametrize(
    ("rules", "silent", "what", "ended"),
    [
        ((RULE, RULE), (0, 1), idle, {0: 7.0, 1: 7.0}),
        ((RULE, RULE), (0, 1), near_sends, {0: 8.0, 1: 7.0}),
        ((RULE, RULE), (0,), far_sends, {0: 8.0, 1: 8.0}),
        ((RULE, RULE), (1,), far_sends, {0: 7.0, 1: 8.0}),
        ((RULE, SLOW), (0, 1), idle, {0: 7.0, 1: 120.0}),
        ((RULE, SLOW), (0, 1), far_sends, {0: 7.0}),
        ((NEVER, NEVER), (0, 1), near_sends, {}),
    ],
)
def test_a_silent_connection_ends_where_the_system_finds_out(
    rules: tuple[Noticing, Noticing], silent: tuple[int, ...], what: Callable[[Pair], None], ended: dict[int, float]
) -> None:
    pair = Pair(*rules)
    assert pair.tell(0)
    pair.scheduler.run(QUIET_S)
    pair.line.silence(*silent)
    what(pair)
    pair.scheduler.run(1000.0)
    assert pair.ended == ended


def test_bytes_on_an_idle_connection_begin_a_time_of_their_own() -> None:
    """So the system gives a silent connection up after twice the time at worst; gRPC goes on asking."""
    for rule, sent_at, ended in ((RULE, 4.9, 9.9), (GRPC, 7.9, 8.0)):
        pair = Pair(rule, NEVER)
        pair.line.silence(0, 1)
        pair.scheduler.run(sent_at)
        assert not pair.tell(0)
        pair.scheduler.run(1000.0)
        assert pair.ended == {0: pytest.approx(ended)}


def test_what_was_under_way_when_the_silence_began_is_not_acknowledged() -> None:
    pair = Pair(RULE, NEVER)
    pair.line.sent(0)
    pair.scheduler.run(0.3)
    pair.line.silence(0)
    assert not pair.line.arrives(0)
    pair.scheduler.run(1000.0)
    assert pair.ended == {0: 5.0}


def test_a_connection_that_works_is_kept() -> None:
    pair = Pair(RULE, RULE)
    assert pair.tell(0)
    pair.scheduler.run(1000.0)
    assert pair.tell(1)
    assert pair.ended == {}
