"""Changes of members in clusters of any mixture: N7 of docs/specs/raft.md 18.4."""

import asyncio

import pytest

from pavane.raft.client import RaftClient
from pavane.raft.wire.decoder import Drop, decode_reply
from pavane.raft.wire.msgpack import Value, encode_js
from pavane.raft.wire.replies import ConfigStatus, ConfigUpdateReply
from tests.interop import raw
from tests.interop.cluster import Cluster, Kind, until
from tests.interop.conftest import KINDS, Make
from tests.interop.javascript import Javascript
from tests.interop.raw import IDENT, Raw
from tests.interop.test_clients import new_reqid
from tests.interop.writing import check_logs, writer

NEW = "tcp://127.0.0.1:9"
DAY_S = 86_400


def ask(peer: Raw, frame: bytes, reqid: bytes = b"") -> ConfigUpdateReply:
    reqid = reqid or new_reqid()
    answer = peer.ask(reqid, b"&", IDENT, frame)
    assert answer[:1] == [reqid]
    reply = decode_reply(ConfigUpdateReply, answer[1:])
    assert not isinstance(reply, Drop)
    return reply


def refusal(peer: Raw, frame: bytes) -> dict[str, Value]:
    reply = ask(peer, frame)
    assert reply.status == ConfigStatus.ARGUMENT
    assert isinstance(reply.argument, dict)
    return reply.argument


def last_index(url: str) -> int:
    info = raw.log_info(url)
    return 0 if info is None else info.last_index


def test_a_wrong_configuration_is_refused_with_the_reason(cluster: Cluster) -> None:
    leader = cluster.members[cluster.leader()]
    error = "Error" if leader.kind is Kind.OURS else "AssertionError"
    members: list[Value] = [list(peer) for peer in cluster.seed.items()]
    refused: dict[str, tuple[Value, str]] = {
        "no array": ("abc", "TypeError"),
        "empty": ([], error),
        "no pair": ([*members, ["z"]], error),
        "no string": ([*members, [1, NEW]], error),
        "id twice": ([*members, ["a", NEW]], error),
        "url twice": ([*members, ["z", cluster.url("a")]], error),
        "another url": ([*members[1:], ["a", NEW]], error),
        "url of another": ([*members[1:], ["z", cluster.url("a")]], error),
        "no url": ([*members, ["z", "here"]], error),
        "port 0": ([*members, ["z", "tcp://127.0.0.1:0"]], error),
        "any address": ([*members, ["z", "tcp://0.0.0.0:9"]], error),
        "path": ([*members, ["z", NEW + "/path"]], error),
        "host name": ([*members, ["z", "tcp://name:9"]], error),
        "no change": (members, "Error"),
    }
    with Raw(leader.url) as peer:
        for what, (value, name) in refused.items():
            said = refusal(peer, encode_js(value))
            assert (what, said["name"]) == (what, name)
            assert said["message"]
        assert said["message"] == "no change in cluster membership"
        assert ask(peer, encode_js([*members, ["z", NEW]]), new_reqid(-DAY_S)).status == ConfigStatus.EXPIRED
        if leader.kind is Kind.OURS:  # the package's peer ends on these, or takes them
            assert refusal(peer, b"")["name"] == "SyntaxError"
            assert refusal(peer, encode_js(members[::-1]))["message"] == "no change in cluster membership"
    assert cluster.leader() == leader.id


@pytest.mark.proves("JS client → ours", "^", "&")
@pytest.mark.parametrize("kinds", ["ojj", "joo"])
async def test_one_change_at_a_time_and_one_per_request_id(make: Make, js: Javascript, kinds: str) -> None:
    cluster = make(kinds, first="a")
    cluster.led_by("a")
    reqid = new_reqid()
    smaller = encode_js([list(peer) for peer in cluster.peers("ab")])
    with Raw(cluster.url("a")) as peer:
        cluster.suspend("b")
        try:
            assert ask(peer, smaller, reqid).status == ConfigStatus.ACCEPTED
            assert ask(peer, smaller).status == ConfigStatus.BUSY
            assert ask(peer, smaller, reqid).status == ConfigStatus.ACCEPTED
        finally:
            cluster.resume("b")
        while (answer := peer.receive())[1:] == [b"\x01"]:
            assert answer[0] == reqid
        reply = decode_reply(ConfigUpdateReply, answer[1:])
        assert isinstance(reply, ConfigUpdateReply)
        assert (reply.status, ask(peer, smaller, reqid)) == (ConfigStatus.ACCEPTED, reply)
        assert isinstance(reply.argument, int)
    client = await js.call("client", [cluster.url("b")])
    assert (await js.call("config", client))["peers"] == [list(peer) for peer in cluster.peers("ab")]
    await js.call("update", client, new_reqid().hex(), "00")
    # The client of the package, too, changes members; c comes back with an old log.
    assert await js.call("configUpdate", client, new_reqid().hex(), cluster.peers("abc")) > reply.argument
    cluster.settled()


@pytest.mark.proves("our client → ours", "&")
@pytest.mark.proves("our client → JS", "&")
@pytest.mark.proves("our peer → ours", "^", "%")
@pytest.mark.proves("JS peer → ours", "^", "<")
@pytest.mark.parametrize(
    ("kinds", "joining"),
    [("jjj", "ooo"), pytest.param("ooo", "jjj", marks=pytest.mark.long)],
    ids=["js to ours", "ours to js"],
)
async def test_a_cluster_moves_to_the_other_program_while_it_is_written_to(
    make: Make, kinds: str, joining: str
) -> None:
    cluster = make(kinds, first="a")
    cluster.led_by("a")
    async with writer(cluster) as writing, RaftClient(cluster.urls, IDENT) as client:
        await writing.more(200)
        for leaving, coming, members in (("a", "d", "bcd"), ("b", "e", "cde"), ("c", "f", "def")):
            joiner = cluster.add(coming, KINDS[joining[0]])
            cluster.seed = dict(cluster.peers(leaving + members[:2]))
            await asyncio.to_thread(cluster.start, coming)
            # It reads the log before it is a member.
            await asyncio.to_thread(until, lambda url=joiner.url: last_index(url) > 0, f"{coming} follows")
            await client.change_members(cluster.peers(leaving + members[:2] + coming))
            await client.change_members(cluster.peers(members))
            await writing.more(50)
            cluster.kill(leaving)
            await writing.more(50)
    await asyncio.to_thread(check_logs, cluster, writing.acknowledged)
