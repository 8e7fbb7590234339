"""Every codec vector of the protocol, both ways (docs/specs/raft.md 18.1)."""

import json
from pathlib import Path
from typing import Any

import pytest

from pavane.raft.wire.decoder import Drop, Reply, Request, decode_broadcast, decode_reply, decode_request
from pavane.raft.wire.entry import LogEntry, bootstrap_entry, decode_blob, encode_blob
from pavane.raft.wire.frames import decode_uint, encode_uint
from pavane.raft.wire.msgpack import Value, decode, encode_js
from pavane.raft.wire.pv import (
    PvAppend,
    PvAppendReply,
    PvHello,
    PvHelloReply,
    PvKv,
    PvNow,
    PvReply,
    PvVote,
    PvVoteReply,
)
from pavane.raft.wire.pv_update import PvUpdate, PvUpdateReply, UpdateItem, UpdateResult
from pavane.raft.wire.replies import (
    AppendEntriesReply,
    ConfigStatus,
    ConfigUpdateReply,
    EntriesStatus,
    InstallSnapshotReply,
    RequestConfigReply,
    RequestEntriesReply,
    RequestUpdateReply,
    RequestVoteReply,
    SnapshotPart,
    UpdateStatus,
)
from pavane.raft.wire.reqid import rollout_reqid
from pavane.raft.wire.requests import (
    PeerPoll,
    RequestConfig,
    RequestEntries,
    RequestUpdate,
    RequestVote,
    StateBroadcast,
)

VECTORS = json.loads((Path(__file__).parent / "vectors" / "raft.json").read_text())
EXTENSION = VECTORS["extension"]
IDENT = b"s3cr3t"
STATE_ENTRY = bytes.fromhex("5956dc8826f27e10dcccab20002a000000000000666f6f")
REQID = STATE_ENTRY[:12]
HELLO_INFO: dict[str, Value] = {
    "v": 1,
    "peer": "1",
    "inst": bytes(8),
    "feat": 15,
    "stage": 4,
    "gen": 1,
    "term": 7,
    "machine": "KeyValue",
    "level": 1,
    "now": 0x1941F297C00,
}


def views(frames: list[str]) -> tuple[memoryview, ...]:
    return tuple(memoryview(bytes.fromhex(frame)) for frame in frames)


def hexes(frames: tuple[bytes | memoryview, ...]) -> list[str]:
    return [bytes(frame).hex() for frame in frames]


@pytest.mark.parametrize("vector", VECTORS["uint"], ids=lambda vector: vector["hex"])
def test_uint(vector: dict[str, Any]) -> None:
    frame = bytes.fromhex(vector["hex"])
    assert encode_uint(vector["value"]) == frame
    assert decode_uint(memoryview(frame)) == vector["value"]


@pytest.mark.parametrize("vector", VECTORS["msgpack"], ids=lambda vector: vector["hex"][:20])
def test_msgpack(vector: dict[str, Any]) -> None:
    frame = bytes.fromhex(vector["hex"])
    assert encode_js(vector["value"]) == frame
    value = decode(memoryview(frame))
    assert value == vector["value"]
    assert type(value) is type(vector["value"])


@pytest.mark.parametrize("vector", VECTORS["entry"], ids=lambda vector: vector["hex"][:24])
def test_entry(vector: dict[str, Any]) -> None:
    entry = LogEntry(
        bytes.fromhex(vector["reqid_hex"]), vector["type"], vector["term"], bytes.fromhex(vector["data_hex"])
    )
    assert entry.encode().hex() == vector["hex"]
    assert LogEntry.decode(memoryview(bytes.fromhex(vector["hex"]))) == entry


def request_of(vector: dict[str, Any]) -> Request:
    fields = vector["fields"]
    match vector["message"]:
        case "RequestVote":
            return RequestVote(fields["candidate"], fields["term"], fields["last_index"], fields["last_term"])
        case "RequestUpdate":
            return RequestUpdate(bytes.fromhex(fields["data_hex"]))
        case "RequestEntries":
            return RequestEntries(fields["prev_index"], fields["count"])
        case other:
            raise AssertionError(f"no request for {other}")


def reply_of(vector: dict[str, Any]) -> Reply:
    fields = vector["fields"]
    match vector["message"]:
        case "RequestVote":
            return RequestVoteReply(fields["term"], fields["granted"])
        case "AppendEntries":
            return AppendEntriesReply(fields["term"], fields["success"])
        case "InstallSnapshot":
            return InstallSnapshotReply(fields["term"])
        case "RequestUpdate" if fields["status"]:
            return RequestUpdateReply(UpdateStatus.DONE, index=fields["arg"])
        case "RequestUpdate":
            return RequestUpdateReply(UpdateStatus.NOT_LEADER, leader=fields["arg"])
        case "ConfigUpdate":
            return ConfigUpdateReply(ConfigStatus(fields["status"]), fields.get("arg"))
        case "RequestEntries":
            part = None if fields["arg"] is None else SnapshotPart(*fields["arg"])
            payload = tuple(bytes.fromhex(frame) for frame in fields.get("payload_hex", []))
            return RequestEntriesReply(EntriesStatus(fields["status"]), fields["index"], payload, part=part)
        case "RequestConfig":
            peers = tuple((peer, url) for peer, url in fields["peers"])
            return RequestConfigReply(fields["is_leader"], fields["leader_id"], peers)
        case other:
            raise AssertionError(f"no reply for {other}")


def vectors_of(direction: str) -> list[Any]:
    chosen = [v for v in VECTORS["frames"] if v["direction"] == direction and v["message"] != "StateBroadcast"]
    assert chosen
    return [pytest.param(vector, id=f"{vector['message']}-{'-'.join(vector['frames'])[:40]}") for vector in chosen]


@pytest.mark.parametrize("vector", vectors_of("request"))
def test_request(vector: dict[str, Any]) -> None:
    message = request_of(vector)
    assert hexes(message.encode(IDENT)) == vector["frames"]
    message_id = b"\x01" if vector["message"] == "RequestVote" else REQID
    assert decode_request((message_id, *views(vector["frames"])), IDENT) == message


@pytest.mark.parametrize("vector", vectors_of("response"))
def test_reply(vector: dict[str, Any]) -> None:
    message = reply_of(vector)
    assert hexes(message.encode()) == vector["frames"]
    assert decode_reply(type(message), views(vector["frames"])) == message


def test_broadcast() -> None:
    (vector,) = [v for v in VECTORS["frames"] if v["message"] == "StateBroadcast"]
    fields = vector["fields"]
    entries = tuple(bytes.fromhex(entry) for entry in fields["entries_hex"])
    message = StateBroadcast(fields["term"], fields["last_applied"], entries)
    assert hexes(message.encode(IDENT)) == vector["frames"]
    assert decode_broadcast(views(vector["frames"]), IDENT) == message


def test_broadcast_of_a_longer_topic_is_foreign() -> None:
    frames = StateBroadcast(1, 1).encode(IDENT + b"-other")
    assert isinstance(decode_broadcast(frames, IDENT), Drop)


OWN_MESSAGES: dict[tuple[str, str], Request | Reply] = {
    ("pv.hello", "request"): PvHello("2", 7, bytes(range(1, 9)), {"v": 1, "feat": 15}),
    ("pv.hello", "response"): PvHelloReply(bytes(range(1, 9)), HELLO_INFO),
    ("pv.vote", "request"): PvVote("2", 8, 300, 6, 0),
    ("pv.vote", "response"): PvVoteReply(7, False, 4),
    ("pv.append", "request"): PvAppend("1", 7, 300, 6, 299, decode_blob(bytes.fromhex(EXTENSION["blob"]["hex"]))),
    ("pv.append heartbeat", "request"): PvAppend("1", 7, 302, 43, 302),
    ("pv.append", "response"): PvAppendReply(7, True, 302),
    ("pv.append conflict", "response"): PvAppendReply(7, False, 0, (280, 5)),
    ("pv.now", "request"): PvNow("1", 7, 302, 302),
    ("RequestConfig poll by a peer", "request"): RequestConfig(PeerPoll("2", 7)),
    ("pv.update", "request"): PvUpdate((UpdateItem(REQID, b"foo"),)),
    ("pv.update", "response"): PvUpdateReply(None, (UpdateResult(REQID, 0, 1234),)),
    ("pv.kv", "request"): PvKv(bytes.fromhex("940190919401c40161c401310090")),
    ("pv.kv", "response"): PvReply(0, [0, 7, [True, [[1, 1]]]]),
}


@pytest.mark.parametrize("vector", EXTENSION["frames"], ids=lambda v: f"{v['message']}-{v['direction']}")
def test_own_message(vector: dict[str, Any]) -> None:
    message = OWN_MESSAGES[vector["message"], vector["direction"]]
    frames = views(vector["frames"])
    if vector["direction"] == "request":
        assert isinstance(message, Request)
        assert hexes(message.encode(IDENT)) == vector["frames"]
        message_id = REQID if vector["message"] == "pv.kv" else b"\x01"
        assert decode_request((message_id, *frames), IDENT) == message
    else:
        assert not isinstance(message, Request)
        assert hexes(message.encode()) == vector["frames"]
        assert decode_reply(type(message), frames) == message


def test_blob() -> None:
    vector = EXTENSION["blob"]
    entries = tuple(bytes.fromhex(entry) for entry in vector["entries_hex"])
    assert encode_blob(entries).hex() == vector["hex"]
    assert decode_blob(memoryview(bytes.fromhex(vector["hex"]))) == entries


def test_rollout_reqid() -> None:
    vector = EXTENSION["rollout_reqid"]
    assert rollout_reqid(vector["uid"], vector["n"], vector["step"], vector["at_s"]).hex() == vector["hex"]


def test_bootstrap_entry() -> None:
    vector = EXTENSION["bootstrap_entry"]
    assert bootstrap_entry([(peer, url) for peer, url in vector["initial"]]).hex() == vector["hex"]
