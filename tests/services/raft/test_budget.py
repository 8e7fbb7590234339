"""Large answers to one connection (docs/specs/raft.md 14.4, BIG_REPLIES)."""

import pytest

from pavane.raft.core import budget
from pavane.raft.core.budget import BIG_REPLIES_BYTES_PER_S, BIG_REPLY_BYTES, Budget
from pavane.raft.errors import Code
from pavane.raft.machines.commands import Put, Range, Txn, encode_command, op_fields
from pavane.raft.wire.pv import PvKv, PvRead, PvReply
from tests.services.raft.ensemble import IDENT, Ensemble, decoded, reqid

BIG = 4 * 1024 * 1024


def test_large_answers_are_held_to_a_rate() -> None:
    spent = Budget()
    taken = [spent.wait_s(b"route", BIG, 0.0) for _ in range(5)]
    assert taken[:4] == [0.0] * 4
    assert taken[4] == pytest.approx(BIG / BIG_REPLIES_BYTES_PER_S)
    assert spent.wait_s(b"route", BIG, taken[4] - 0.01) > 0
    assert spent.wait_s(b"route", BIG, taken[4]) == 0.0


def test_small_answers_and_other_connections_are_not_held_up() -> None:
    spent = Budget()
    while not spent.wait_s(b"greedy", BIG, 0.0):
        pass
    assert spent.wait_s(b"greedy", BIG_REPLY_BYTES, 0.0) == 0.0
    assert spent.wait_s(b"other", BIG, 0.0) == 0.0


def test_an_answer_beyond_the_rate_gets_through_alone() -> None:
    spent = Budget()
    assert spent.wait_s(b"route", 3 * BIG_REPLIES_BYTES_PER_S, 0.0) == 0.0
    assert spent.wait_s(b"route", 3 * BIG_REPLIES_BYTES_PER_S, 0.0) == pytest.approx(3.0)
    assert spent.wait_s(b"route", 3 * BIG_REPLIES_BYTES_PER_S, 3.0) == 0.0


def test_connections_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "ROUTES_MAX", 3)
    spent = Budget()
    for number in range(10):
        spent.wait_s(b"%d" % number, BIG, 0.0)
    assert len(spent._spent) == 3


def test_a_reader_that_asks_for_more_is_told_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "BIG_REPLIES_BYTES_PER_S", 2 * BIG_REPLY_BYTES)
    ensemble = Ensemble("a", keys=True)
    ensemble.elect()
    command = Txn(then=(Put(b"k", bytes(BIG_REPLY_BYTES + 1)),))
    ensemble.ask("a", (reqid(1), *PvKv(encode_command(command)).encode(IDENT)))

    def read() -> PvReply:
        (frames,) = ensemble.ask("a", (b"r", *PvRead([0, [op_fields(Range(b"k"))]]).encode(IDENT)))
        return decoded(PvReply, frames)

    assert read().code == Code.OK
    busy = read()
    assert busy.code == Code.BUSY
    assert isinstance(busy.value, int)
    ensemble.advance(busy.value / 1000)
    assert read().code == Code.OK
