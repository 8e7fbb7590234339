"""The codec of libtribe against its vectors (docs/specs/swim.md 4)."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
@settings(max_examples=500, deadline=None)
def test_any_bytes_parse_or_are_refused(data: bytes) -> None:
    try:
        found = decode(data)
    except RemoteProtocolError:
        return
    assert decode(encode(found)) == found
