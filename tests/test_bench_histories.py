"""The judge of histories finds what it must, and clears what could have happened (docs/specs/raft.md 18.2)."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from bench import linearizable, raft_histories
from bench.linearizable import Kind, Operation, Undecided, impossible

KEY = b"key"
HISTORY_S = 1.5


def put(value: bytes, began: float, ended: float = math.inf) -> Operation:
    return Operation(Kind.PUT, KEY, began, ended, value)


def get(found: bytes | None, began: float, ended: float) -> Operation:
    return Operation(Kind.GET, KEY, began, ended, found=found)


def cas(expected: bytes | None, value: bytes, found: bool, began: float, ended: float = math.inf) -> Operation:
    return Operation(Kind.CAS, KEY, began, ended, value, expected, found)


def delete(found: bool, began: float, ended: float = math.inf) -> Operation:
    return Operation(Kind.DELETE, KEY, began, ended, found=found)


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([put(b"a", 0, 1), get(None, 2, 3)], id="lost write"),
        pytest.param([put(b"a", 0, 1), put(b"b", 2, 3), get(b"a", 4, 5)], id="stale read"),
        pytest.param([put(b"a", 0, 9), get(b"a", 1, 2), get(None, 3, 4)], id="read goes back"),
        pytest.param([get(b"a", 0, 1)], id="value of nobody"),
        pytest.param([put(b"a", 2, 3), get(b"a", 0, 1)], id="read of the future"),
        pytest.param([put(b"a", 0, 1), cas(b"a", b"b", True, 2, 3), cas(b"a", b"c", True, 2, 3)], id="two winners"),
        pytest.param([cas(None, b"a", False, 0, 1)], id="loser without a winner"),
        pytest.param([put(b"a", 0, 1), delete(True, 2, 5), delete(True, 2, 5)], id="deleted twice"),
        pytest.param([put(b"a", 0), get(b"a", 1, 2), put(b"b", 3, 4), get(b"a", 5, 6)], id="written twice"),
        pytest.param([put(b"a", 0, 1), delete(False, 2, 3), get(b"a", 4, 5)], id="delete refused wrongly"),
        pytest.param([put(b"a", 3), get(b"a", 1, 2)], id="unknown outcome before it began"),
    ],
)
def test_what_cannot_have_happened_is_found(history: list[Operation]) -> None:
    other_key = [replace(each, key=b"other") for each in (put(b"a", 0, 1), get(b"a", 2, 3))]
    assert impossible([*history, *other_key]) == [sorted(history, key=lambda each: each.began)]


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([put(b"a", 0), get(None, 1, 2), get(b"a", 3, 4)], id="unknown write takes effect late"),
        pytest.param([put(b"a", 0), get(None, 1, 2)], id="unknown write never takes effect"),
        pytest.param([put(b"a", 0), cas(None, b"b", False, 1, 2), put(b"c", 3, 4)], id="an unknown write made it fail"),
        pytest.param([put(b"a", 0, 9), put(b"b", 0, 9), get(b"b", 1, 2), get(b"a", 3, 4)], id="writes side by side"),
        pytest.param([put(b"a", 0, 1), delete(True, 2), cas(None, b"b", True, 3, 4)], id="unknown delete"),
        pytest.param([cas(None, b"a", True, 0), get(b"a", 1, 2), delete(True, 3, 4)], id="unknown compare-and-set"),
    ],
)
def test_what_can_have_happened_is_not(history: list[Operation]) -> None:
    assert impossible(history) == []


def drawn(rng: random.Random) -> list[Operation]:
    """What six clients see of a key that does one operation after the other; some of them get no answer."""
    state, history, free = None, [], [0.0] * 6
    for number in range(100):
        kind = rng.choice([*Kind])
        client = min(range(len(free)), key=lambda each: free[each])
        at = max(number, free[client]) + rng.random()
        value = b"%d" % number if kind in (Kind.PUT, Kind.CAS) else None
        asked = Operation(kind, KEY, at - rng.random(), 0, value, rng.choice([state, b"none"]))
        found: bytes | bool | None = None
        match kind:
            case Kind.GET:
                found = state
            case Kind.CAS:
                found = state == asked.expected
            case Kind.DELETE:
                found = state is not None
        _, state = replace(asked, found=found).after(state)
        ended = at + 4 * rng.random()
        history.append(replace(asked, found=found, ended=math.inf if rng.random() < 0.06 else ended))
        free[client] = ended
    return history


def test_drawn_histories_are_cleared_and_one_read_of_the_past_in_them_is_found() -> None:
    rng = random.Random(30)
    for _ in range(20):
        history = drawn(rng)
        assert impossible(history) == []
        last = max(each.ended for each in history if each.ended < math.inf)
        strange = [
            put(b"first", last + 1, last + 2),
            put(b"second", last + 3, last + 4),
            get(b"first", last + 5, last + 6),
        ]
        assert len(impossible([*history, *strange])) == 1


def test_a_history_with_too_many_orders_is_undecided_and_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizable, "STEPS_MAX", 10)
    with pytest.raises(Undecided, match="12 operations, 1 of them unknown"):
        impossible([put(b"a", 0), *(get(None, number, number + 2) for number in range(11))])


async def test_peers_under_kills_stops_and_cuts_give_linearizable_answers(tmp_path: Path) -> None:
    answered: set[Kind] = set()
    harmed = cut = runs = 0
    while not (answered == {*Kind} and harmed and cut):  # in so short a time a slow machine has not done all of it
        history = await raft_histories.record(tmp_path / str(runs := runs + 1), HISTORY_S)
        answered |= {each.kind for each in history.operations if each.ended < math.inf}
        harmed, cut = harmed + history.kills + history.stops, cut + history.cut
        assert impossible(history.operations) == []
