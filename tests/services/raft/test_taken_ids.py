"""Another command under a known request id is refused, never acknowledged (docs/specs/raft.md 10.2, 10.3, 10.6)."""

from typing import Any

import pytest

from pavane.raft.errors import Code
from pavane.raft.machines.commands import Put, Txn, encode_command
from pavane.raft.state.dedup import DedupTable
from pavane.raft.state.roles import Role
from pavane.raft.wire.msgpack import Value
from pavane.raft.wire.pv import PvKv, PvReply, PvTransfer
from pavane.raft.wire.pv_update import PvUpdate, PvUpdateReply, UpdateItem
from pavane.raft.wire.replies import ConfigStatus, ConfigUpdateReply, RequestUpdateReply, UpdateStatus
from pavane.raft.wire.requests import ConfigUpdate
from tests.services.raft.ensemble import IDENT, Ensemble, decoded, reqid

ID = reqid(1)
REFUSED = RequestUpdateReply(UpdateStatus.EXPIRED)


def put(key: bytes) -> bytes:
    return encode_command(Txn((), (Put(key, b"value"),), ()))


def led(**settings: Any) -> tuple[Ensemble, str]:
    ensemble = Ensemble("abc", **settings)
    leader = ensemble.elect()
    ensemble.advance(0.5)
    return ensemble, leader


def batch(ensemble: Ensemble, leader: str, data: bytes) -> list[int]:
    frames = ensemble.ask(leader, (b"u", *PvUpdate((UpdateItem(ID, data),)).encode(IDENT)))
    return [result.code for reply in frames for result in decoded(PvUpdateReply, reply).results]


def command(ensemble: Ensemble, leader: str, data: bytes) -> list[int]:
    return [decoded(PvReply, reply).code for reply in ensemble.ask(leader, (ID, *PvKv(data).encode(IDENT)))]


def test_an_update_under_the_id_of_another_one_is_refused() -> None:
    ensemble, leader = led()
    index = ensemble.update(leader, 1, b"one")[-1].index
    assert ensemble.update(leader, 1, b"one")[-1].index == index, "a repetition is told again"

    assert ensemble.update(leader, 1, b"two") == [REFUSED], "the document has no other word for an id that is no good"
    assert batch(ensemble, leader, b"two") == [Code.ID_TAKEN]
    assert batch(ensemble, leader, b"one") == [Code.OK]
    assert ensemble.status(leader).last == index


def test_a_command_under_the_id_of_another_one_is_refused() -> None:
    ensemble, leader = led(keys=True)
    assert command(ensemble, leader, put(b"a"))[-1] == Code.OK
    assert command(ensemble, leader, put(b"b")) == [Code.ID_TAKEN]
    assert command(ensemble, leader, put(b"a")) == [Code.OK]


def test_so_is_one_under_the_id_of_an_update_that_is_on_its_way() -> None:
    ensemble, leader = led()
    ensemble.stuck = set("abc")
    ensemble.update(leader, 1, b"one")

    assert ensemble.update(leader, 1, b"two", client="other") == [REFUSED]

    ensemble.stuck = set()
    for name in "abc":
        ensemble.sync(name)
    ensemble.settle()
    assert len(ensemble.told("other")) == 1, "nor is it told of the end of the first"


def test_and_of_one_that_waits_for_its_place_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pavane.raft.core.serving.UNCOMMITTED_ENTRIES_MAX", 1)
    ensemble, leader = led()
    ensemble.stuck = set("abc")
    for number in (2, 1):
        ensemble.update(leader, number, b"one")

    assert ensemble.update(leader, 1, b"one", client="same")[-1].status == UpdateStatus.ACCEPTED
    assert ensemble.update(leader, 1, b"two", client="other") == [REFUSED]


def test_a_change_of_members_under_the_id_of_another_one_is_refused() -> None:
    ensemble, leader = led()
    rest = "".join(name for name in "abc" if name != leader)
    ensemble.change(leader, 1, leader + rest[0])
    ensemble.advance(5.0)

    ensemble.change(leader, 1, leader + rest[0])
    assert decoded(ConfigUpdateReply, ensemble.told("admin")[-1]).status == ConfigStatus.ACCEPTED
    ensemble.change(leader, 1, leader + rest[1])
    other = ensemble.told("admin")[-1]
    assert decoded(ConfigUpdateReply, other).status == ConfigStatus.ARGUMENT
    assert "another change" in str(decoded(ConfigUpdateReply, other).argument)


@pytest.mark.parametrize("peers", [[[["a"], "b"]], [["a", {}]], [{}], [None], "a", None])
def test_a_change_under_a_known_id_may_name_anything(peers: Value) -> None:
    """What is no member at all must not end the peer: the client would ask the next leader the same."""
    ensemble, leader = led()
    ensemble.change(leader, 1, leader + next(name for name in "abc" if name != leader))
    ensemble.advance(5.0)

    ensemble.ask(leader, (ID, *ConfigUpdate(peers).encode(IDENT)), "admin")
    refusal = decoded(ConfigUpdateReply, ensemble.told("admin")[-1])
    assert refusal.status == ConfigStatus.ARGUMENT
    assert "another change" in str(refusal.argument)


def test_a_peer_that_starts_again_knows_what_came_with_an_id() -> None:
    ensemble, leader = led()
    ensemble.update(leader, 1, b"one")
    for name in "abc":
        ensemble.down(name)
    for name in "abc":
        ensemble.start(name)
    leader = ensemble.elect()
    ensemble.advance(0.5)

    assert ensemble.update(leader, 1, b"two") == [REFUSED]
    assert ensemble.update(leader, 1, b"one")[-1].status == UpdateStatus.DONE


def test_a_peer_that_begins_from_a_snapshot_knows_it_as_well() -> None:
    ensemble = Ensemble("abc", keys=True, snapshot_entries=3, log_retention=0)
    leader = ensemble.elect()
    ensemble.down(late := next(name for name in "abc" if name != leader))
    assert command(ensemble, leader, put(b"a"))[-1] == Code.OK
    for pause_s, numbers in ((10.2, range(2, 5)), (10.2, range(5, 40)), (0.5, range(40, 41))):
        for number in numbers:
            ensemble.update(leader, number, put(b"n"))
        ensemble.advance(pause_s)
    ensemble.start(late, snapshot_entries=3, log_retention=0)
    ensemble.advance(5.0)
    assert ensemble.status(late).first > 2, "it never saw the entry"
    ensemble.ask(leader, (b"t", *PvTransfer(late).encode(IDENT)))
    ensemble.until(lambda: ensemble.roles()[late] is Role.LEADER)
    ensemble.advance(0.5)

    assert command(ensemble, late, put(b"b")) == [Code.ID_TAKEN]
    assert command(ensemble, late, put(b"a")) == [Code.OK]


def test_an_id_of_which_no_digest_is_known_is_told_again_as_before() -> None:
    """A snapshot that an older version took has none."""
    ensemble, leader = led()
    index = ensemble.update(leader, 1, b"one")[-1].index
    ensemble.cores[leader]._node.dedup.add(ID, index)
    assert ensemble.update(leader, 1, b"two")[-1].index == index


def test_a_forgotten_digest_does_not_outlive_its_entry() -> None:
    table = DedupTable()
    table.add(ID, 1, 5)
    table.remove(ID)
    table.add(ID, 2, 6)
    assert table.find(ID) == (2, 6)
