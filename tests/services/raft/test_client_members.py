"""The client and changes: of members, its own and others, of leaders, of addresses (docs/specs/raft.md 11.2)."""

from pavane.raft.client.calls import ChangeMembersCall, StatusCall
from pavane.raft.client.procedure import REDIRECTS_MAX, Finished
from pavane.raft.wire.replies import ConfigStatus, ConfigUpdateReply, RequestConfigReply
from tests.services.raft.test_client_procedure import ACCEPTED, DONE, PEERS, REQID, URLS, led_by, negative, update


def test_change_of_members_waits_while_another_is_under_way() -> None:
    network = led_by("2")
    call = ChangeMembersCall(REQID, PEERS, 30.0)
    network.submit(call)
    network.sent.clear()
    network.reply("2", call, ConfigUpdateReply(ConfigStatus.BUSY))
    network.run(0.9)
    assert network.sent == []
    network.run(0.3)
    assert network.requests == [("2", "&")]
    network.reply("2", call, ConfigUpdateReply(ConfigStatus.ACCEPTED))
    assert network.finished == []
    network.reply("2", call, ConfigUpdateReply(ConfigStatus.ACCEPTED, 41))
    assert network.finished == [Finished(call, 41)]


def test_members_that_replaced_all_others_beside_a_leader_that_stayed_are_known() -> None:
    network = led_by("2")
    call = update()
    network.submit(call)
    network.reply("2", call, ACCEPTED)
    network.leaders.clear()
    network.run(0.4)
    network.reply("2", call, ACCEPTED)
    network.run(0.4)
    network.reply("2", call, ACCEPTED)
    network.sent.clear()
    network.run(0.4)
    [question] = [frames for peer, frames in network.messages if (peer, bytes(frames[1])) == ("2", b"^")][-1:]
    new = "tcp://10.0.0.9:8047"
    network.addresses[new] = (new,)
    reply = RequestConfigReply(True, "2", (("2", URLS["2"]), ("9", new)))
    network.procedure.receive(URLS["2"], (question[0], *reply.encode()), network.now)
    network.settle()
    assert new in network.connected


def test_changes_of_leader_long_ago_do_not_slow_down_the_next_one() -> None:
    network = led_by("1")
    for number in range(2 * REDIRECTS_MAX):
        old, new = ("1", "2") if number % 2 == 0 else ("2", "1")
        call = update(number)
        network.submit(call)
        network.reply(old, call, negative(new))
        assert network.requests[-1] == (new, "=")
        network.reply(new, call, DONE)


def test_of_a_peer_with_many_addresses_one_that_stands_is_asked() -> None:
    network = led_by("1")
    service = "tcp://service:8047"
    network.addresses[service] = (URLS["2"], URLS["3"])
    network.submit(StatusCall(b"first", 5.0, service))
    assert network.requests[-1] == ("2", "pv.status")
    assert not network.procedure.is_down(service)
    network.connection("2", up=False)
    network.submit(StatusCall(b"second", 5.0, service))
    assert network.requests[-1] == ("3", "pv.status")
    network.connection("3", up=False)
    assert network.procedure.is_down(service)
