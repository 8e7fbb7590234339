"""The client and changes of members: its own, and those of others (docs/specs/raft.md 11.2)."""

from pavane.raft.client.calls import ChangeMembersCall
from pavane.raft.client.procedure import Finished
from pavane.raft.wire import ConfigStatus, ConfigUpdateReply, RequestConfigReply
from tests.services.raft.test_client_procedure import ACCEPTED, PEERS, REQID, URLS, led_by, update


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
