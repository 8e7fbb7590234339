"""The bank's proof fails for each thing that can go wrong."""

import json
from collections import Counter

import pytest

from pavane_cli.books import Books, Total, Transfer, prove_bank, prove_view

MONEY = 2000
TOLD = {"run/1": Transfer("alice", "bob", 30), "run/2": Transfer("bob", "alice", 5)}
ACCOUNTS = {"alice": 975, "bob": 1025}
VIEW = {"alice": Total(1, 975), "bob": Total(1, 1025)}


def rows(reference: str, *moves: tuple[str, int]) -> bytes:
    return json.dumps([{"account": name, "amount": amount, "reference": reference} for name, amount in moves]).encode()


OPENED = [rows("", ("alice", 1000)), rows("", ("bob", 1000))]
FIRST = rows("run/1", ("alice", -30), ("bob", 30))
SECOND = rows("run/2", ("bob", -5), ("alice", 5))


def books(*transactions: bytes) -> Books:
    found = Books()
    for each in (*OPENED, *transactions):
        found.take(each)
    return found


def test_all_is_well() -> None:
    strange = [b"hello", b"[1]", b"{}", b'{"account": 1}']
    proof = prove_bank(TOLD, books(FIRST, *strange, SECOND), MONEY, ACCOUNTS)
    assert proof.holds
    assert (proof.acknowledged, proof.lost, proof.doubled, proof.after) == (2, 0, 0, MONEY)
    assert proof.said == "2000 in all accounts before, 2000 after; the log has the same in each account"


def test_the_transfer_of_somebody_else_is_no_doubled_one() -> None:
    accounts = {"alice": 974, "bob": 1026}
    others = [
        rows("", ("alice", -1), ("bob", 1)),
        rows("", ("alice", -1), ("bob", 1)),
        rows("", ("bob", -1), ("alice", 1)),
    ]
    assert prove_bank(TOLD, books(FIRST, *others, SECOND), MONEY, accounts).holds


@pytest.mark.parametrize(
    ("transactions", "accounts", "lost", "doubled"),
    [
        pytest.param([FIRST], {"alice": 970, "bob": 1030}, 1, 0, id="lost, also by the accounts"),
        pytest.param([FIRST], ACCOUNTS, 1, 0, id="lost by the log"),
        pytest.param([FIRST, SECOND, SECOND], {"alice": 980, "bob": 1020}, 0, 1, id="doubled"),
        pytest.param([FIRST, SECOND, SECOND], ACCOUNTS, 0, 1, id="doubled in the log"),
        pytest.param([FIRST, FIRST], {"alice": 940, "bob": 1060}, 1, 1, id="one lost, one doubled"),
        pytest.param(
            [FIRST, rows("run/2", ("bob", -6), ("alice", 6))], {"alice": 976, "bob": 1024}, 1, 0, id="another amount"
        ),
        pytest.param([FIRST, SECOND], {"alice": 975, "bob": 1026}, 0, 0, id="money made"),
        pytest.param([FIRST, SECOND], {"alice": 976, "bob": 1024}, 0, 0, id="moved but not booked"),
        pytest.param([FIRST, SECOND], {"alice": 975}, 0, 0, id="an account is gone"),
    ],
)
def test_a_fault_is_found(transactions: list[bytes], accounts: dict[str, int], lost: int, doubled: int) -> None:
    proof = prove_bank(TOLD, books(*transactions), MONEY, accounts)
    assert (proof.holds, proof.lost, proof.doubled) == (False, lost, doubled)


def test_nothing_proves_nothing() -> None:
    assert not prove_bank({}, books(), MONEY, {"alice": 1000, "bob": 1000}).holds
    assert not prove_view({"alice": Total(0, 1000), "bob": Total(0, 1000)}, books(), Counter(), MONEY).holds


def test_a_view_is_the_log() -> None:
    proof = prove_view(VIEW, books(FIRST, SECOND), Counter({MONEY: 7}), MONEY)
    assert (proof.holds, proof.ticks) == (True, 7)


@pytest.mark.parametrize(
    ("view", "ticks", "lost", "doubled"),
    [
        pytest.param({"alice": Total(1, 970), "bob": Total(0, 1030)}, {MONEY: 7}, 1, 0, id="lost"),
        pytest.param({"alice": Total(1, 980), "bob": Total(2, 1020)}, {MONEY: 7}, 0, 1, id="doubled"),
        pytest.param({"alice": Total(1, 976), "bob": Total(1, 1024)}, {MONEY: 7}, 0, 0, id="another amount"),
        pytest.param({"alice": Total(1, 975)}, {MONEY: 7}, 1, 0, id="a row is missing"),
        pytest.param(VIEW, {MONEY: 6, MONEY - 5: 1}, 0, 0, id="half a transfer at one tick"),
    ],
)
def test_a_wrong_view_is_found(view: dict[str, Total], ticks: dict[int, int], lost: int, doubled: int) -> None:
    proof = prove_view(view, books(FIRST, SECOND), Counter(ticks), MONEY)
    assert (proof.holds, proof.lost, proof.doubled) == (False, lost, doubled)
