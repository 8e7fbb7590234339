"""Spans of peers: one view over client, leader and followers, and not a byte more on the wire (15.2)."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
import zmq
import zmq.asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.core.outputs import (
    Appended,
    ConfigurationChanged,
    RoleChanged,
    SnapshotChanged,
    Standing,
    TransferChanged,
    VoteReceived,
)
from pavane.raft.machines.commands import LeaseGrant
from pavane.raft.server import RaftServer
from pavane.raft.state.configuration import Configuration
from pavane.raft.state.roles import Role
from pavane.raft.tracing import LINKS_MAX, Tracing
from pavane.raft.wire.frames import decode_bool
from pavane.telemetry import derived
from tests.services.eventually import eventually
from tests.services.raft.peers import free_urls

IDENT = b"s3cr3t"
REQID = bytes.fromhex("67748580cc9e8be6f1e14f2f")
WAIT_MS = 20_000
MEMBERS = (("1", "tcp://127.0.0.1:1"),)
ENDED = "raft/lease-expire"
Spans: TypeAlias = Callable[[str], list[ReadableSpan]]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """Switch tracing on and return a look-up of finished spans by name."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return lambda name: [span for span in exporter.get_finished_spans() if span.name == name]


def value(span: ReadableSpan, name: str) -> int:
    assert span.attributes is not None
    found = span.attributes[f"pavane.raft.{name}"]
    assert isinstance(found, int)
    return found


def links_of(span: ReadableSpan) -> set[int]:
    return {link.context.trace_id for link in span.links}


async def test_client_leader_and_followers_link_to_the_same_context(tmp_path: Path, spans: Spans) -> None:
    members = tuple(zip("123", free_urls(3), strict=True))
    async with AsyncExitStack() as stack:
        servers = []
        for peer, url in members:
            config = Config(peer, IDENT, url=url, peers=members, election_min=300, election_max=600)
            server = RaftServer(config, data=tmp_path / peer, bind=url)
            stack.push_async_callback(server.stop)
            await server.start()
            servers.append(server)
        async with RaftClient([url for _, url in members], IDENT) as client:
            reqid = client.new_reqid()
            index = await client.update(b"data", reqid=reqid)
            await eventually(lambda: all(server.status().applied == index for server in servers))
    wanted = derived("raft", "", reqid).trace_id
    served = [span for span in spans("raft/RequestUpdate") if wanted in links_of(span)]
    assert trace.SpanKind.SERVER in {span.kind for span in served}
    assert len([span for span in spans("raft/append") if wanted in links_of(span)]) == 2
    assert len([span for span in spans("raft/apply") if wanted in links_of(span)]) == 3
    assert spans("raft/election")


async def test_a_command_is_called_the_same_by_client_and_leader(tmp_path: Path, spans: Spans) -> None:
    [url] = free_urls(1)
    config = Config("1", IDENT, url=url, peers=(("1", url),), machine="KeyValue")
    server = RaftServer(config, data=tmp_path, bind=url)
    await server.start()
    try:
        async with RaftClient([url], IDENT) as client:
            reqid = client.new_reqid()
            await client.kv.put(b"k", b"v", reqid=reqid)
    finally:
        await server.stop()
    wanted = derived("raft", "", reqid).trace_id
    kinds = [span.kind for span in spans("raft/pv.kv") if wanted in links_of(span)]
    assert sorted(kind.name for kind in kinds) == ["CLIENT", "SERVER"]


async def conversation(folder: Path) -> list[list[bytes]]:
    """Return every frame that a lone peer answers to a fixed series of requests."""
    config = Config("1", IDENT, url=MEMBERS[0][1], peers=MEMBERS, request_id_ttl_s=10**9)
    server = RaftServer(config, data=folder, bind="tcp://127.0.0.1:0")
    await server.start()
    context = zmq.asyncio.Context()
    asking = context.socket(zmq.DEALER)
    asking.set(zmq.LINGER, 0)
    asking.set(zmq.RCVTIMEO, WAIT_MS)
    try:
        await eventually(lambda: server.status().role is Role.LEADER)
        asking.connect(server.bound)
        heard: list[list[bytes]] = []
        await asking.send_multipart([REQID, b"=", IDENT, b"data"])
        while not heard or len(heard[-1]) < 3 or not decode_bool(heard[-1][1]):
            frames = await asking.recv_multipart()
            # A slow disk brings the same "accepted" several times.
            heard += [frames] if frames not in heard else []
        for request in ([b"1", b"^", IDENT], [b"2", b"<", IDENT, b"\x00"], [b"3", b"%", IDENT]):
            await asking.send_multipart(request)
            heard.append(await asking.recv_multipart())
        return heard
    finally:
        context.destroy(linger=0)
        await server.stop()


async def test_the_wire_is_the_same_with_tracing_on_and_off(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    silent = await conversation(tmp_path / "off")
    spans: Spans = request.getfixturevalue("spans")
    assert await conversation(tmp_path / "on") == silent
    assert spans("raft/RequestUpdate")


def test_a_large_batch_has_a_limited_number_of_links(spans: Spans) -> None:
    tracing = Tracing("1")
    reqids = tuple(bytes([number]) * 12 for number in range(1, 100))
    tracing.event(Appended(1, 99, 7, "follower", reqids), term=3)
    assert spans("raft/append") == []
    tracing.stored(6)
    assert spans("raft/append") == []
    tracing.stored(7)
    [span] = spans("raft/append")
    assert len(span.links) == LINKS_MAX
    assert span.attributes is not None
    assert (span.attributes["pavane.raft.index"], span.attributes["pavane.raft.term"]) == (99, 3)


def attributes(span: ReadableSpan) -> dict[str, object]:
    found = {name.removeprefix("pavane.raft."): value for name, value in (span.attributes or {}).items()}
    return {name: value for name, value in found.items() if name not in {"peer", "term", "reason"}}


def test_an_election_is_one_span_from_time_out_to_role(spans: Spans) -> None:
    tracing = Tracing("1")
    kinds = (("2", "ours"), ("3", "js"))
    for event in (
        RoleChanged(Role.FOLLOWER, Role.PRE_CANDIDATE, 1, "timeout"),
        Standing(kinds),
        RoleChanged(Role.PRE_CANDIDATE, Role.CANDIDATE, 2, "prevote"),
        Standing(kinds),
        VoteReceived("1"),
        RoleChanged(Role.CANDIDATE, Role.PRE_CANDIDATE, 2, "timeout"),  # nobody else answered: once more
        Standing(kinds),
        RoleChanged(Role.PRE_CANDIDATE, Role.CANDIDATE, 3, "prevote"),
        Standing(kinds),
        VoteReceived("1"),
        VoteReceived("3"),
    ):
        tracing.event(event, term=3)
    assert spans("raft/election") == []
    tracing.event(RoleChanged(Role.CANDIDATE, Role.LEADER, 3, "elected"), term=3)
    [span] = spans("raft/election")
    assert attributes(span) == {"role": "Leader", "prevote": "passed", "votes": 2, "kinds": "2=ours, 3=js"}


@pytest.mark.parametrize(
    ("courses", "prevote"),
    [
        ([(Role.FOLLOWER, Role.PRE_CANDIDATE), (Role.PRE_CANDIDATE, Role.FOLLOWER)], "refused"),
        ([(Role.FOLLOWER, Role.CANDIDATE), (Role.CANDIDATE, Role.FOLLOWER)], "skipped"),
    ],
)
def test_an_election_that_brings_nothing_says_how_far_it_came(
    spans: Spans, courses: list[tuple[Role, Role]], prevote: str
) -> None:
    tracing = Tracing("1")
    for old, new in courses:
        tracing.event(RoleChanged(old, new, 2, "because"), term=2)
    [span] = spans("raft/election")
    assert attributes(span) == {"role": "Follower", "prevote": prevote, "votes": 0}


JOINT, FINAL = Configuration((("2", "tcp://127.0.0.1:2"),), MEMBERS), Configuration((("2", "tcp://127.0.0.1:2"),))


@pytest.mark.parametrize(
    "told",
    [
        (("effective", 5, JOINT), ("committed", 5, JOINT), ("effective", 6, FINAL), ("committed", 6, FINAL)),
        (("effective", 5, JOINT), ("effective", 6, FINAL), ("committed", 6, FINAL)),  # both at once
    ],
)
def test_a_change_of_members_is_a_span_with_a_child_for_each_step(
    spans: Spans, told: tuple[tuple[str, int, Configuration], ...]
) -> None:
    tracing = Tracing("1")
    for step in told[:-1]:
        tracing.event(ConfigurationChanged(*step), term=1)
    assert spans("raft/configuration") == []
    tracing.event(ConfigurationChanged(*told[-1]), term=1)
    [whole] = spans("raft/configuration")
    [joint], [final] = spans("raft/configuration-joint"), spans("raft/configuration-final")
    assert (value(joint, "index"), value(final, "index")) == (5, 6)
    for span in (whole, joint, final):
        assert span.status.status_code is not StatusCode.ERROR
        assert span is whole or span.parent == whole.context


def test_a_change_that_is_rolled_back_is_an_error(spans: Spans) -> None:
    tracing = Tracing("1")
    tracing.event(ConfigurationChanged("effective", 5, JOINT), term=1)
    tracing.event(ConfigurationChanged("effective", 6, FINAL), term=1)
    tracing.event(ConfigurationChanged("rolled_back", 6, FINAL), term=1)
    assert spans("raft/configuration") == []  # the joint one still stands, and whoever leads may finish it
    tracing.event(ConfigurationChanged("rolled_back", 5, JOINT), term=2)
    for name in ("raft/configuration", "raft/configuration-joint", "raft/configuration-final"):
        [span] = spans(name)
        assert span.status.status_code is StatusCode.ERROR


async def test_a_learner_follows_until_it_has_everything(tmp_path: Path, spans: Spans) -> None:
    url, other = free_urls(2)
    member = RaftServer(Config("1", IDENT, url=url, peers=(("1", url),)), data=tmp_path / "1", bind=url)
    learner = RaftServer(Config("2", IDENT, url=other, seeds=(url,)), data=tmp_path / "2", bind=other)
    await member.start()
    try:
        async with RaftClient([url], IDENT) as client:
            last = [await client.update(b"data") for _ in range(3)][-1]
            await learner.start()
            await eventually(lambda: spans("raft/follow"))
            [caught_up] = spans("raft/follow")
            assert attributes(caught_up) == {"index": last, "step": "caught_up"}
            await eventually(lambda: member.status().roles == {"leader": 1, "follower": 0, "learner": 1})
            # What comes later belongs to it as well; it follows once.
            again = await client.update(b"data")
            await eventually(lambda: learner.status().applied == again)
        assert len(spans("raft/follow")) == 1
    finally:
        await learner.stop()
        await member.stop()


def test_a_transfer_that_fails_is_an_error(spans: Spans) -> None:
    tracing = Tracing("1")
    tracing.event(TransferChanged("2", "started"), term=1)
    tracing.event(TransferChanged("2", "failed"), term=1)
    [span] = spans("raft/transfer")
    assert span.status.status_code.name == "ERROR"


def test_without_a_provider_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    tracing = Tracing("1")
    monkeypatch.setattr(tracing, "_tracer", None)
    tracing.event(RoleChanged(Role.FOLLOWER, Role.CANDIDATE, 2, "time-out"), term=2)
    tracing.event(Appended(1, 1, 7, "follower", (REQID,)), term=2)
    tracing.stored(7)
    assert tracing.now_ns() == 0
    tracing.close()


def test_snapshot_is_a_span_of_its_own_time_and_a_damaged_one_an_error(spans: Spans) -> None:
    tracing = Tracing("1")
    for what in ("taken", "sent", "installed", "bad"):
        tracing.event(SnapshotChanged(what, 40, 2.0), 7)
    [taken] = spans("raft/snapshot")
    assert taken.attributes is not None
    assert taken.attributes["pavane.raft.index"] == 40
    assert taken.start_time is not None
    assert taken.end_time is not None
    assert taken.end_time - taken.start_time >= 2e9
    *good, bad = spans("raft/install")
    assert [span.status.is_ok for span in (*good, bad)] == [True, True, False]


async def test_leases_that_are_over_end_in_a_span_that_links_to_the_entry(tmp_path: Path, spans: Spans) -> None:
    (url,) = free_urls(1)
    server = RaftServer(Config("1", IDENT, url=url, peers=(("1", url),), machine="KeyValue"), data=tmp_path, bind=url)
    await server.start()
    try:
        async with RaftClient([url], IDENT) as client:
            for _ in range(2):
                await client.kv.command(LeaseGrant(200, b""))
            await eventually(lambda: sum(value(span, "leases") for span in spans(ENDED)) == 2)
            entries = [entry async for entry in client.entries()]
    finally:
        await server.stop()
    ended = {value(span, "index"): links_of(span) for span in spans(ENDED)}
    reqids = {entry.index: {derived("raft", "", bytes(entry.reqid)).trace_id} for entry in entries}
    assert ended == {index: reqids[index] for index in ended}
    assert max(ended) == entries[-1].index
