"""Handlers, flows and state of immortals beside a coordinator without processes."""

import asyncio
import datetime
import decimal
import enum
import random
import sys
import time
import uuid
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from pavane.ambrosia import DefinitionError, Immortal, RemoteError, first, gather, method, query
from pavane.ambrosia.client.engine import Engine
from pavane.ambrosia.client.errors import DeterminismError, FlowMismatch, StateInFlow
from pavane.ambrosia.client.flows import remote
from pavane.ambrosia.client.values import pack
from pavane.parts import documents
from tests.services.ambrosia.accounts import Account, Audit
from tests.services.ambrosia.desk import Desk, Place


def failure(place: Place, token: str) -> RemoteError:
    return remote(place.results[token].value)


def bank() -> Desk:
    desk = Desk()
    desk.start(Audit, "audit")
    desk.start(Account, "alice")
    desk.start(Account, "bob")
    return desk


def again(place: Place, kind: type[Immortal] | None = None) -> None:
    """Kill the application and start it: the replay ends in the same state."""
    before = place.engine.snapshot()
    place.live(kind)
    place.desk.settle()
    assert place.engine.snapshot().same(before)


def test_calls_forks_and_flows_between_immortals() -> None:
    desk = bank()
    assert desk.call("alice", Account.deposit, 10) == 10
    assert desk.call("alice", Account.transfer, "bob", 4) is True
    assert desk.call("alice", Account.transfer, "bob", 40) is False
    assert desk.places["bob"].engine.state() == {"balance": 4, "held": {}}
    assert desk.places["audit"].engine.state() == {"seen": [("alice", 10), ("bob", 4)]}
    assert desk.places["alice"].engine.ask(Account.__dict__["total"], []) == 6


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_a_flow_goes_on_where_it_waited(with_checkpoint: bool) -> None:
    desk = Desk()
    desk.start(Audit, "audit")
    alice = desk.start(Account, "alice")
    desk.call("alice", Account.deposit, 10)
    token = desk.request("alice", Account.transfer, "bob", 4)  # bob is not there yet
    assert token not in alice.results
    if with_checkpoint:
        alice.take_checkpoint()
    again(alice)
    assert desk.call("alice", Account.deposit, 1) == 7
    bob = desk.start(Account, "bob")
    assert alice.results[token].state == 1
    assert bob.engine.state()["balance"] == 4
    for place in desk.places.values():
        again(place)


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int


class Model(BaseModel):
    name: str = ""
    when: datetime.date = datetime.date(2020, 1, 1)


class Shelf(Immortal):
    number: int
    text: str
    words: set[str]
    huge: int = 2**100
    money: decimal.Decimal
    identifier: uuid.UUID | None
    when: datetime.datetime = datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)
    colour: Colour = Colour.RED
    point: Point | None
    points: dict[int, Point]
    model: Model
    raw: bytes = b"\xff\x00"

    @method
    def fill(self, when: datetime.datetime, point: Point, identifier: uuid.UUID, more: int = 3) -> decimal.Decimal:
        self.when, self.point, self.identifier = when, point, identifier
        self.points[more] = point
        self.words |= {"b", "a", "c"}
        self.huge *= 3
        self.money += decimal.Decimal("1.25")
        self.model = Model(name="x")
        return self.money


def test_state_and_arguments_of_all_types_survive() -> None:
    desk = Desk()
    shelf = desk.start(Shelf, "shelf")
    when = datetime.datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=datetime.UTC)
    identifier = uuid.UUID(int=5)
    assert desk.call("shelf", Shelf.fill, when, Point(1, 2), identifier) == decimal.Decimal("1.25")
    shelf.take_checkpoint()
    again(shelf)
    state = shelf.engine.state()
    assert state["words"] == {"a", "b", "c"}
    assert state["huge"] == 3 * 2**100
    assert (state["when"], state["identifier"], state["colour"]) == (when, identifier, Colour.RED)
    assert state["points"] == {3: Point(1, 2)}
    assert state["model"] == Model(name="x")
    assert state["raw"] == b"\xff\x00"


class Waiter(Immortal):
    log: list[str]
    count: int = 0

    @method
    def note(self, text: str) -> int:
        self.log.append(text)
        self.count += 1
        if text == "bad":
            raise KeyError("bad")
        return self.count

    @method
    async def slow(self, seconds: float) -> str:
        started = await self.now()
        await self.sleep(seconds)
        self.note(f"{await self.now() - started} ms")
        return "slept"

    @method
    async def either(self) -> str:
        answer = await first(self.call(Waiter.note, "absent", "x"), self.sleep(5))
        return "timed out" if answer is None else "answered"

    @method
    async def both(self, other: str) -> int:
        one, two = await gather(self.call(Waiter.note, other, "one"), self.call(Waiter.note, other, "two"))
        return one + 10 * two

    @method
    async def outside(self) -> int:
        return await self.run(len, "abcd")

    @method
    async def chance(self) -> list[str]:
        drawn = [self.name, str(self.random.randrange(10**9)), str(self.uuid())]
        await self.sleep(1)
        return [*drawn, str(self.random.randrange(10**9))]

    @method
    async def careful(self) -> str:
        try:
            self.note("bad")
        except KeyError as error:
            await self.sleep(1)
            return f"caught {error}"
        return "nothing"

    @method
    async def reads(self) -> int:
        before = self.count
        await self.sleep(1)
        return before

    @method
    def begin(self) -> None:
        self.start(Waiter.slow, 1.0)

    @query
    def counted(self) -> int:
        return self.count


def tick(desk: Desk, place: Place, ms: int = 0) -> None:
    """Let time pass: clocks answer, timers that are due fire, runs run."""
    desk.clock += ms
    while True:
        ready = [each for each in place.outside if each.kind != "timer" or each.due <= desk.clock]
        if not ready:
            return
        for each in ready:
            place.outside.remove(each)
            if each.kind == "clock":
                place.engine.done(each, desk.clock)
            elif each.kind == "timer":
                place.engine.done(each)
            else:
                function, args, kwargs, _ = each.detail
                place.engine.done(each, True, pack(function(*args, **kwargs)))
            place.turn()
            desk.settle()


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(
    ("flow", "arguments", "expected"),
    [
        (Waiter.slow, (2.5,), "slept"),
        (Waiter.either, (), "timed out"),
        (Waiter.outside, (), 4),
        (Waiter.careful, (), "caught 'bad'"),
        (Waiter.reads, (), 0),
    ],
)
def test_what_a_flow_may_wait_for(flow: Any, arguments: tuple[Any, ...], expected: Any, crash: bool) -> None:
    desk = Desk()
    place = desk.start(Waiter, "waiter")
    token = desk.request("waiter", flow, *arguments)
    for ms in (0, 1000, 1000, 1000, 4000):
        if crash:
            place.take_checkpoint()
            place.outside.clear()
            again(place)
        else:
            place.engine.request("", "", Waiter.note, Waiter.note.signature.pack(("later",), {}))
            place.turn()
            desk.settle()
        tick(desk, place, ms)
    assert flow.signature.result.unpack(place.results[token].value) == expected
    assert not place.engine.flows


def test_random_numbers_are_the_same_after_a_crash() -> None:
    desk = Desk()
    place = desk.start(Waiter, "waiter")
    token = desk.request("waiter", Waiter.chance)
    place.take_checkpoint()
    place.outside.clear()
    again(place)
    tick(desk, place, 5000)
    tick(desk, place, 5000)
    after = place.results[token].value
    fresh = Desk()
    other = fresh.start(Waiter, "waiter")
    token = fresh.request("waiter", Waiter.chance)
    tick(fresh, other, 5000)
    tick(fresh, other, 5000)
    assert other.results[token].value == after


def test_gather_and_a_flow_that_a_handler_starts() -> None:
    desk = Desk()
    one = desk.start(Waiter, "one")
    desk.start(Waiter, "two")
    assert desk.call("one", Waiter.both, "two") == 21
    desk.call("one", Waiter.begin)
    again(one)
    for _ in range(4):
        tick(desk, one, 1000)
    assert one.engine.state()["log"] == ["1000 ms"]


def test_a_failing_handler_answers_and_the_immortal_goes_on() -> None:
    desk = Desk()
    place = desk.start(Waiter, "waiter")
    token = desk.request("waiter", Waiter.note, "bad")
    assert (failure(place, token).type, failure(place, token).message) == ("KeyError", "bad")
    assert desk.call("waiter", Waiter.note, "good") == 2
    again(place)


def test_a_key_makes_a_call_happen_once() -> None:
    desk = bank()
    assert desk.call("alice", Account.deposit, 5, key="k") == 5
    assert desk.call("alice", Account.deposit, 5, key="k") == 5
    alice = desk.places["alice"]
    alice.take_checkpoint()
    again(alice)
    assert desk.call("alice", Account.deposit, 5, key="k") == 5
    token = desk.request("alice", Account.deposit, 6, key="k")
    assert failure(alice, token).type == "KeyReused"
    assert desk.call("alice", Account.deposit, 1) == 6


def test_a_key_of_a_flow_under_way_waits_for_its_result() -> None:
    desk = bank()
    del desk.places["bob"]
    desk.call("alice", Account.deposit, 5)
    one = desk.request("alice", Account.transfer, "bob", 5, key="t")
    two = desk.request("alice", Account.transfer, "bob", 5, key="t")
    desk.start(Account, "bob")
    results = desk.places["alice"].results
    assert results[one].value == results[two].value
    assert desk.places["bob"].engine.state()["balance"] == 5


class Forbidden(Immortal):
    seen: float = 0
    tags: dict[str, int]

    @method
    def clock(self) -> None:
        self.seen = time.time()

    @method
    def native_clock(self) -> None:
        self.seen = datetime.datetime.now(tz=datetime.UTC).timestamp()

    @method
    def chance(self) -> None:
        self.seen = random.random()

    @method
    def file(self) -> None:
        with open(__file__):  # noqa: PTH123 - what a handler may not do
            pass

    @method
    def hidden(self) -> None:
        try:
            time.time()
        except DeterminismError:
            self.seen = 1

    @method
    def undeclared(self) -> None:
        self.other = 1

    @method
    async def assigns(self) -> None:
        self.seen = 1

    @method
    async def changes(self) -> None:
        self.tags["x"] = 1

    @method
    async def foreign(self) -> None:
        await elsewhere()

    @method
    async def gathers(self) -> None:
        await asyncio.gather(self.sleep(1), self.sleep(2))

    @method
    async def awaits_some(self) -> None:
        await asyncio.wait([self.sleep(1)])  # type: ignore[type-var]

    @method
    async def limits(self) -> None:
        await asyncio.wait_for(self.sleep(1), 2)

    @method
    async def times(self) -> None:
        async with asyncio.timeout(1):
            await self.sleep(2)

    @method
    def waits(self) -> None:
        self.sleep(1)

    @query
    def asks(self) -> int:
        self.seen = 1
        return 1


class elsewhere(Awaitable[None]):
    def __await__(self) -> Any:
        yield None


HERE = r"test_engine\.py:\d+"


@pytest.mark.parametrize(
    ("called", "kind", "words"),
    [
        ("clock", "ForbiddenCall", rf"Forbidden.clock used time.time\(\).*{HERE}.*self.now"),
        ("native_clock", "ForbiddenCall", rf"datetime.now\(\).*{HERE}.*self.now"),
        ("chance", "ForbiddenCall", rf"random.random\(\).*{HERE}.*self.random"),
        ("file", "ForbiddenCall", rf"open.*{HERE}.*self.run"),
        ("hidden", "ForbiddenCall", rf"time.time\(\).*{HERE}"),
        ("undeclared", "UndeclaredState", r"Forbidden.other is not part of the state.*other: <type>"),
        ("assigns", "StateInFlow", r"self.seen.*def method"),
        ("changes", "StateInFlow", r"dict of the state.*def method"),
        ("foreign", "NotDurable", r"Forbidden.foreign awaits NoneType.*self.run"),
        ("waits", "OutsideHandler", r"self.sleep\(\) belongs to flows.*self.start"),
    ],
)
def test_what_a_replay_cannot_repeat_is_named_with_its_remedy(called: str, kind: str, words: str) -> None:
    desk = Desk()
    place = desk.start(Forbidden, "forbidden")
    error = failure(place, desk.request("forbidden", getattr(Forbidden, called)))
    assert error.type == kind
    with pytest.raises(RemoteError, match=words):
        raise error
    again(place)


LIMIT = r"write `await first\(…, self.sleep\(seconds\)\)`"


@pytest.mark.parametrize(
    ("called", "words"),
    [
        ("gathers", r"used asyncio.gather\(\).*write `await gather\(…\)`"),
        ("awaits_some", r"used asyncio.wait\(\).*write `await first\(…\)` or `await gather\(…\)`"),
        ("limits", rf"used asyncio.wait_for\(\).*{LIMIT}"),
        ("times", rf"used asyncio.timeout\(\).*{LIMIT}"),
    ],
)
async def test_waiting_by_asyncio_is_refused_alike_in_a_replay_without_a_loop(called: str, words: str) -> None:
    desk = Desk()
    place = desk.start(Forbidden, "forbidden")
    with pytest.raises(RemoteError, match=f"Forbidden.{called} {words}"):
        raise failure(place, desk.request("forbidden", getattr(Forbidden, called)))
    await asyncio.to_thread(again, place)


def test_a_query_changes_nothing_and_nothing_is_sent_outside_handlers() -> None:
    desk = Desk()
    place = desk.start(Forbidden, "forbidden")
    with pytest.raises(StateInFlow, match="is a query"):
        place.engine.ask(Forbidden.__dict__["asks"], [])
    with pytest.raises(DeterminismError, match="outside a handler"):
        place.engine.fork(Audit.saw, "audit", ("x", 1), {})


def test_the_guard_leaves_no_trace() -> None:
    before = time.time
    bank()
    assert time.time is before


class Before(Immortal):
    @method
    async def flow(self) -> None:
        await self.sleep(1)
        await self.sleep(2)


class After(Immortal):
    @method
    async def flow(self) -> None:
        await self.call(After.flow, "x")


def test_a_flow_whose_code_changed_is_named() -> None:
    desk = Desk()
    place = desk.start(Before, "x")
    desk.request("x", Before.flow)
    place.take_checkpoint()
    with pytest.raises(FlowMismatch, match=r"After.flow: step 1 of flow 1 is now: call x flow; expected: sleep 1.0"):
        place.live(After)


def test_definitions_are_refused_at_import_with_file_and_line() -> None:
    with pytest.raises(DefinitionError, match=r"test_engine\.py:\d+: .*parameter amount needs an annotation"):

        class Unannotated(Immortal):
            @method
            def deposit(self, amount) -> None:  # type: ignore[no-untyped-def]
                pass

    with pytest.raises(DefinitionError, match=r"Twice.two has the number 1 of .*Twice.one"):

        class Twice(Immortal):
            @method(1)
            def one(self) -> None:
                pass

            @method(1)
            def two(self) -> None:
                pass

    with pytest.raises(DefinitionError, match=r"Shared.held: the default \{\} would be shared"):

        class Shared(Immortal):
            held: dict[str, int] = {}  # noqa: RUF012 - what is refused

    with pytest.raises(DefinitionError, match=r"cannot be called call"):

        class Shadow(Immortal):
            call: int = 0  # type: ignore[assignment]

    with pytest.raises(DefinitionError, match=r"NoEmpty.when: .* has no empty value; give a default"):

        class NoEmpty(Immortal):
            when: datetime.datetime

    with pytest.raises(DefinitionError, match=r"default of amount does not fit"):

        class BadDefault(Immortal):
            @method
            def deposit(self, amount: int = "five") -> None:  # type: ignore[assignment]
                pass


class Wider(Immortal):
    balance: int = 0

    @method
    def deposit(self, amount: int, note: str = "none") -> str:
        return f"{amount} {note}"


def test_a_new_trailing_parameter_has_its_default_and_wrong_arguments_are_answered() -> None:
    desk = Desk()
    place = desk.start(Wider, "wider")
    assert desk.call("wider", Wider.deposit, 1) == "1 none"
    data = Wider.deposit.signature.pack((1,), {})
    assert Wider.deposit.signature.unpack(data) == [1, "none"]
    assert Wider.deposit.signature.unpack(b'{"amount": 2}') == [2, "none"]
    for levels in (100_000, documents.DEPTH_MAX + 1):  # logged, so its application meets it again in each life
        place.engine.request("deep", "", Wider.deposit, b'{"amount":' * levels + b"1" + b"}" * levels)
        place.turn()
        desk.settle()
        assert failure(place, "deep").type == "TooDeep"
    place.engine.request("t", "", Wider.deposit, b"\xff" + pack(["five"]))
    place.turn()
    desk.settle()
    error = failure(place, "t")
    assert (error.type, "amount" in error.message) == ("ValueError", True)


def test_marks_name_the_first_message_that_differs() -> None:
    class Changed(Immortal):
        balance: int = 0
        held: dict[str, int]

        @method
        def deposit(self, amount: int) -> int:
            self.balance += amount + (amount == 3)
            return self.balance

    seen: list[tuple[str, int, int]] = []

    def marks(kind: type[Immortal]) -> list[int]:
        desk = Desk()
        place = desk.start(kind, "x")
        place.engine.observer = lambda *each: seen.append(each)
        for amount in (1, 2, 3, 4):
            desk.request("x", kind.deposit, amount)  # type: ignore[attr-defined]
        return list(place.engine.marks)

    class Same(Immortal):
        balance: int = 0
        held: dict[str, int]

        @method
        def deposit(self, amount: int) -> int:
            self.balance += amount
            return self.balance

    one, two = marks(Same), marks(Changed)
    assert [a == b for a, b in zip(one, two, strict=True)] == [True, True, True, False, False]
    assert Engine(Same, "x").seq == -1


def test_a_checkpoint_of_many_keys_costs_callers_no_copies_of_them() -> None:
    desk = bank()
    for number in range(300):
        desk.request("alice", Account.deposit, 1, key=f"order {number}")
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        written = desk.places["alice"].engine.snapshot().write()
    finally:
        sys.setprofile(None)
    assert b"order 299" in written
    assert calls < 300
