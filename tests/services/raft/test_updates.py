"""Many updates in one message, at the server and at the client (docs/specs/raft.md 4.4, 11.3)."""

from typing import Any

import pytest

from pavane.raft.client.calls import UpdateCall
from pavane.raft.client.procedure import PART_ITEMS, PARTS, UPDATES_ID
from pavane.raft.core import serving
from pavane.raft.errors import Code, Expired
from pavane.raft.machines.commands import LeaseGrant, encode_command
from pavane.raft.wire.decoder import Drop, decode_request
from pavane.raft.wire.pv import FEATURE_UPDATE, PvHello, PvHelloReply
from pavane.raft.wire.pv_update import UPDATE_BYTES, UPDATE_ITEMS, PvUpdate, PvUpdateReply, UpdateItem, UpdateResult
from tests.services.raft.ensemble import IDENT, WALL_S, Ensemble, decoded, reqid
from tests.services.raft.test_client_procedure import URLS, Network, led_by, update

OLD = WALL_S - 24 * 3600


def items(*numbers: int) -> tuple[UpdateItem, ...]:
    return tuple(UpdateItem(reqid(number), b"data") for number in numbers)


def ask(ensemble: Ensemble, name: str, *of: UpdateItem, request_id: bytes = b"u") -> list[PvUpdateReply]:
    frames = ensemble.ask(name, (request_id, *PvUpdate(of).encode(IDENT)))
    return [decoded(PvUpdateReply, reply) for reply in frames]


def told(ensemble: Ensemble) -> list[UpdateResult]:
    return [result for frames in ensemble.told("client") for result in decoded(PvUpdateReply, frames).results]


def led(voters: str = "abc", **settings: Any) -> tuple[Ensemble, str]:
    ensemble = Ensemble(voters, **settings)
    leader = ensemble.elect()
    ensemble.advance(0.5)
    return ensemble, leader


def test_all_are_appended_in_their_order_and_told_in_one_message() -> None:
    ensemble, leader = led()

    replies = ask(ensemble, leader, *items(3, 1, 2))

    first = ensemble.status(leader).last - 2
    assert replies == [
        PvUpdateReply(
            leader, tuple(UpdateResult(reqid(number), Code.OK, first + at) for at, number in enumerate((3, 1, 2)))
        )
    ]


def test_a_known_id_is_told_its_index_again_and_an_old_one_is_refused() -> None:
    ensemble, leader = led()
    ask(ensemble, leader, *items(1))
    index = ensemble.status(leader).last

    (reply,) = ask(ensemble, leader, *items(1), UpdateItem(reqid(7, OLD), b"data"))

    assert reply.results == (UpdateResult(reqid(1), Code.OK, index), UpdateResult(reqid(7, OLD), Code.EXPIRED, 0))
    assert ensemble.status(leader).last == index


def test_a_follower_names_the_leader_for_all() -> None:
    ensemble, leader = led()
    follower = next(name for name in "abc" if name != leader)

    (reply,) = ask(ensemble, follower, *items(1, 2))

    assert reply.leader == leader
    assert [result.code for result in reply.results] == [Code.NOT_LEADER] * 2


def test_what_takes_long_is_told_to_be_under_way() -> None:
    ensemble, leader = led()
    ensemble.stuck = set("abc")
    assert ask(ensemble, leader, *items(1, 2)) == [], "no word of acceptance: most are done before it would arrive"

    ensemble.advance(serving.ACCEPT_S + 0.01)
    assert told(ensemble) == [UpdateResult(reqid(number), Code.PENDING, 0) for number in (1, 2)]


def test_a_leader_that_steps_down_sends_all_who_wait_away() -> None:
    ensemble, leader = led()
    ensemble.cuts = {(leader, name) for name in "abc"}
    ask(ensemble, leader, *items(1, 2))

    ensemble.until(lambda: ensemble.roles()[leader].title != "Leader")
    codes = {result.reqid: result.code for result in told(ensemble)}
    assert codes == {reqid(1): Code.NOT_LEADER, reqid(2): Code.NOT_LEADER}


def test_what_finds_no_room_is_to_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "UNCOMMITTED_ENTRIES_MAX", 1)
    monkeypatch.setattr(serving, "PENDING_UPDATES_MAX", 1)
    ensemble, leader = led()
    ensemble.stuck = set("abc")

    (reply,) = ask(ensemble, leader, *items(1, 2, 3))

    assert reply.results == (UpdateResult(reqid(3), Code.BUSY, serving.RETRY_MS),)


def test_a_machine_with_keys_refuses_what_is_no_command() -> None:
    ensemble, leader = led("a", keys=True)
    command = encode_command(LeaseGrant(1000, b"holder"))

    ask(ensemble, leader, UpdateItem(reqid(1), b"\xc1"), UpdateItem(reqid(2), command))

    assert [result.code for result in told(ensemble)] == [Code.BAD_COMMAND, Code.OK]


# --- the client ------------------------------------------------------------------------------------------------------


def greeted(leader: str, features: int = FEATURE_UPDATE) -> Network:
    """A client that has heard from the leader what it is."""
    network = led_by(leader)
    network.connection(leader, up=True)
    ((_, frames),) = [(peer, frames) for peer, frames in network.messages if frames[1] == b"pv.hello"]
    hello = decode_request(frames, IDENT)
    assert isinstance(hello, PvHello)
    reply = PvHelloReply(hello.nonce, {"v": 1, "feat": features, "now": 1000})
    network.procedure.receive(URLS[leader], (frames[0], *reply.encode()), network.now)
    network.settle()
    network.messages.clear()
    return network


def submit_together(network: Network, *calls: UpdateCall) -> None:
    for call in calls:
        network.procedure.submit(call, network.now)
    network.settle()


def batches(network: Network) -> list[PvUpdate]:
    decoded_all = [decode_request(frames, IDENT) for _, frames in network.messages]
    assert not any(isinstance(message, Drop) for message in decoded_all)
    return [message for message in decoded_all if isinstance(message, PvUpdate)]


def answer(network: Network, leader: str, *results: UpdateResult, names: str | None = None) -> None:
    frames = (UPDATES_ID, *PvUpdateReply(names, results).encode())
    network.procedure.receive(URLS[leader], frames, network.now)
    network.settle()


def test_a_server_of_ours_gets_the_updates_of_a_turn_in_one_message() -> None:
    network = greeted("1")
    calls = [update(number) for number in range(3)]
    submit_together(network, *calls)

    assert [[item.reqid for item in batch.items] for batch in batches(network)] == [[call.id for call in calls]]

    answer(network, "1", *(UpdateResult(call.id, Code.OK, 10 + at) for at, call in enumerate(calls)))
    assert [finished.value for finished in network.finished] == [10, 11, 12]


@pytest.mark.parametrize("server", ["silent on hello", "ours, without pv.update", "reconnected"])
def test_other_servers_get_one_message_each(server: str) -> None:
    network = led_by("1") if server.startswith("silent") else greeted("1", 0 if "without" in server else FEATURE_UPDATE)
    if server == "reconnected":
        network.leaders = dict.fromkeys(URLS, "1")
        network.connection("1", up=False)
        network.connection("1", up=True)
        network.messages.clear()
    submit_together(network, update(1), update(2))

    if server == "reconnected":
        network.run(1.0)
    kinds = [bytes(frames[1]) for _, frames in network.messages if frames[1] in (b"=", b"pv.update")]
    assert kinds[:2] == [b"=", b"="]


@pytest.mark.parametrize(
    ("count", "parts"),
    [
        (PART_ITEMS * 2 + 1, [PART_ITEMS, PART_ITEMS, 1]),
        (PART_ITEMS * PARTS * 2, [PART_ITEMS * 2] * PARTS),
        (UPDATE_ITEMS * (PARTS + 1), [UPDATE_ITEMS] * (PARTS + 1)),
    ],
    ids=["few", "many", "more than a message may hold"],
)
def test_updates_leave_in_parts_so_that_the_leader_begins_before_the_last_is_made(count: int, parts: list[int]) -> None:
    network = greeted("1")
    submit_together(network, *(UpdateCall(number.to_bytes(12, "big"), b"x", 30.0) for number in range(count)))
    assert [len(batch.items) for batch in batches(network)] == parts


def test_the_limits_of_a_message_are_kept() -> None:
    network = greeted("1")
    large = [
        UpdateCall(bytes([9]) * 11 + bytes([at]), bytes(size), 30.0) for at, size in enumerate((10, UPDATE_BYTES, 10))
    ]
    submit_together(network, *large)
    assert [len(batch.items) for batch in batches(network)] == [1, 1, 1]


def test_each_result_is_taken_for_itself() -> None:
    network = greeted("1")
    busy, expired, moved = (update(number) for number in (1, 2, 3))
    submit_together(network, busy, expired, moved)
    network.messages.clear()

    answer(network, "1", UpdateResult(busy.id, Code.BUSY, 50), UpdateResult(expired.id, Code.EXPIRED, 0))
    assert isinstance(network.finished[0].error, Expired)

    network.run(0.2)
    assert [[item.reqid for item in batch.items] for batch in batches(network)] == [[busy.id]]

    answer(network, "1", UpdateResult(moved.id, Code.NOT_LEADER, 0), names="2")
    assert "2" in {peer for peer, frames in network.messages if frames[1] == b"="}, "its kind is not known yet"


def test_a_reply_with_the_wrong_nonce_says_nothing_about_a_server() -> None:
    network = led_by("1")
    network.connection("1", up=True)
    ((_, frames),) = [(peer, frames) for peer, frames in network.messages if frames[1] == b"pv.hello"]
    reply = PvHelloReply(bytes(8), {"v": 1, "feat": FEATURE_UPDATE, "now": 1000})
    network.procedure.receive(URLS["1"], (frames[0], *reply.encode()), network.now)
    network.messages.clear()

    submit_together(network, update(1))
    assert batches(network) == []


def test_updates_that_are_done_wake_a_leader_at_no_time() -> None:
    idle, leader = led(voters="a")
    before = idle.cores[leader].next_timer()

    assert [result.code for reply in ask(idle, leader, *items(1, 2)) for result in reply.results] == [Code.OK] * 2

    assert before is not None
    assert idle.cores[leader].next_timer() == before, "the time of the word of acceptance has gone with the updates"
