"""The codec of libtribe against its vectors, and a group that speaks it (docs/specs/swim.md 4)."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pavane.swim.config import Config, Encoding, RequireToken, ViewKind
from pavane.swim.errors import ConfigError
from pavane.swim.wire.libtribe import decode, encode
from pavane.swim.wire.messages import (
    Broadcast,
    JoinAck,
    JoinNak,
    JoinRedirect,
    JoinReq,
    Leave,
    Message,
    PingRequest,
    PingResponse,
)
from pavane.swim.wire.payload import Payload, decode_payload
from pavane.swim.wire.values import UNSPECIFIED, Address, NodeId, NodeInfo
from pavane.wire import LocalProtocolError, RemoteProtocolError
from tests.sim.swim.world import World

ROWS = json.loads((Path(__file__).parent / "vectors.json").read_text())["libtribe"]
ACCEPTED = [row for row in ROWS if row["verdict"] == "accept"]
DROPPED = [row for row in ROWS if row["verdict"] == "drop"]


def message(fields: dict[str, Any]) -> Message:
    match fields["message"]:
        case "JoinReq":
            src = NodeInfo(fields["src"]["id"], fields["src"]["gen"], UNSPECIFIED)
            return JoinReq(src, bytes.fromhex(fields["token_hex"]), bytes.fromhex(fields["auth_hex"]))
        case "JoinAck":
            return JoinAck(NodeInfo(fields["desc"]["id"], fields["desc"]["gen"], UNSPECIFIED))
        case "JoinRedirect":
            return JoinRedirect(Address.parse(fields["address"]), fields["domain"], fields["code"], fields["etag"])
        case "JoinNak":
            return JoinNak(fields["domain"], fields["code"], fields["etag"])
        case name:
            assert name == "PingRequest"
            ids = NodeId(fields["srcId"]["id"], 0), NodeId(fields["targetId"]["id"], 0)
            return PingRequest(*ids, fields["ttl"], decode_payload(bytes.fromhex(fields["payload_hex"])))


@pytest.mark.parametrize("row", ACCEPTED, ids=lambda row: row["name"])
def test_what_the_library_writes_is_read(row: dict[str, Any]) -> None:
    wire = bytes.fromhex(row["hex"])
    expected = message(row["fields"])
    assert decode(wire) == expected
    if row["fields"].get("lengths") != "u64":
        assert encode(expected) == wire


@pytest.mark.parametrize("row", DROPPED, ids=lambda row: row["name"])
def test_what_it_should_not_write_is_dropped(row: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        decode(bytes.fromhex(row["hex"]))
    assert refused.value.reason == row["reason"]


@pytest.mark.parametrize(
    "sent",
    [
        PingResponse(NodeId(1, 0), NodeId(2, 7), 3, Payload(seq=9, dead=(NodeId(4, 5),))),
        PingResponse(NodeId(1, 0), NodeId(2, 7), 3),
        Broadcast(NodeInfo(1, 2, UNSPECIFIED)),
    ],
)
def test_the_rest_is_read_as_it_was_written(sent: Message) -> None:
    assert decode(encode(sent)) == sent
    assert type(decode(encode(sent))) is type(sent)


def test_there_is_no_leave() -> None:
    with pytest.raises(LocalProtocolError):
        encode(Leave(NodeInfo(1, 1, UNSPECIFIED)))


@given(st.one_of(st.binary(max_size=100), st.sampled_from([bytes.fromhex(row["hex"]) for row in ROWS]).flatmap(
    lambda data: st.integers(0, len(data)).map(lambda size: data[:size])
)))  # fmt: skip
@settings(max_examples=500)
def test_any_bytes_parse_or_are_refused(data: bytes) -> None:
    try:
        found = decode(data)
    except RemoteProtocolError:
        return
    assert decode(encode(found)) == found


def test_a_group_that_speaks_it_forms_notices_a_crash_and_a_leave_and_heals() -> None:
    world = World(50, encoding=Encoding.LIBTRIBE, require_token=RequireToken.OFF)
    said: set[type[Message]] = set()
    world.tap = lambda process, to, datagram: said.add(type(decode(datagram)))
    members = world.group(6)
    world.kill(members[1])
    world.must(world.all_see_all, 20, "the crash is known")
    world.leave(members[2])
    world.must(world.all_see_all, 2, "the leave is known")
    assert sum(process.core.counts["deaths"] for process in members[3:]) + members[0].core.counts["deaths"] >= 1
    world.cut([members[3]], [members[4]], both=False)
    world.run(30)
    assert world.all_see_all()  # helpers pass pings on
    assert sum(process.core.counts["relayed"] for process in members) > 0
    world.cuts.clear()
    for process in (members[0], members[3], members[4]):
        peer = process.core._node.members.get(members[5].core.info.id)
        assert peer is not None
        process.core._node.members.forget(peer)
    world.must(world.all_see_all, 20, "who was forgotten by all is told so and joins again")
    assert said == {JoinReq, JoinAck, PingRequest, PingResponse}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"require_token": RequireToken.OFF, "keys": (bytes(32),)},
        {"require_token": RequireToken.OFF, "view": ViewKind.PARTIAL},
    ],
)
def test_it_goes_without_tokens_keys_and_partial_views(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="libtribe"):
        Config(encoding=Encoding.LIBTRIBE, **config).validate()
