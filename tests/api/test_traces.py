import asyncio
import contextlib
import gzip
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pavane.parts.rates import Bucket
from pavane_api.problems import BadRequest, TooLarge, TooManyRequests
from pavane_api.traces import receiver
from pavane_api.traces import store as traces
from pavane_api.traces.schemas import Span, SpanLink
from pavane_api.traces.store import PRUNE_EVERY_BYTES, TraceStore
from pavane_operator.kube import Identity, KubeClient, Resource
from tests.api.plane import plane
from tests.services.disks import no_file_beyond

SECOND_NS = 1_000_000_000
DERIVED = SpanLink(trace_id="d" * 32, span_id="d" * 16)


def span(
    trace: str, number: int, *, parent: int = 0, start: int = 0, links: tuple[SpanLink, ...] = (), **more: str
) -> Span:
    return Span(
        trace_id=trace * 32,
        span_id=f"{number:016x}",
        parent_span_id=f"{parent:016x}" if parent else "",
        name=more.get("name", f"span {number}"),
        kind=more.get("kind", "INTERNAL"),
        service=more.get("service", "pavane"),
        start_ns=start,
        end_ns=start + SECOND_NS,
        error=more.get("error", ""),
        links=list(links),
    )


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TraceStore]:
    opened = TraceStore(tmp_path / "traces.sqlite", retention_s=3600, spans_max=5000)
    await opened.open()
    yield opened
    await opened.close()


async def test_a_trace_holds_the_spans_of_its_id_in_order(store: TraceStore) -> None:
    await store.add([span("a", 2, parent=1, start=20), span("a", 1, start=10), span("b", 3)], now_ns=100)
    found = await store.trace("a" * 32)
    assert found is not None
    assert [item.span_id for item in found.spans] == [f"{1:016x}", f"{2:016x}"]
    assert not found.truncated


async def test_an_unknown_trace_is_none(store: TraceStore) -> None:
    assert await store.trace("e" * 32) is None


async def test_programs_that_share_only_a_derived_context_are_one_trace(store: TraceStore) -> None:
    client = [span("a", 1), span("a", 2, parent=1, links=(DERIVED,))]
    leader = [span("b", 3, links=(DERIVED,)), span("b", 4, parent=3)]
    follower = [span("c", 5, links=(DERIVED,))]
    await store.add([*client, *leader, *follower, span("f", 9)], now_ns=100)
    for trace in ("a", "b", "c"):
        found = await store.trace(trace * 32)
        assert found is not None
        assert {item.span_id for item in found.spans} == {f"{number:016x}" for number in (1, 2, 3, 4, 5)} - (
            set() if trace == "a" else {f"{1:016x}"}
        )


async def test_a_link_to_a_span_of_the_trace_connects(store: TraceStore) -> None:
    consumer = span("b", 2, links=(SpanLink(trace_id="a" * 32, span_id=f"{1:016x}"),))
    await store.add([span("a", 1), consumer, span("b", 3, parent=2)], now_ns=100)
    found = await store.trace("a" * 32)
    assert found is not None
    assert [item.name for item in found.spans] == ["span 1", "span 2", "span 3"]


async def test_a_batch_does_not_connect_requests_that_share_nothing_else(store: TraceStore) -> None:
    other = SpanLink(trace_id="e" * 32, span_id="e" * 16)
    mine, foreign = span("a", 1, links=(DERIVED,)), span("b", 2, links=(other,))
    batch = span("c", 3, links=(DERIVED, other))
    await store.add([mine, foreign, batch], now_ns=100)
    found = await store.trace("a" * 32)
    assert found is not None
    assert [item.name for item in found.spans] == ["span 1", "span 3"]


async def test_the_list_is_newest_first_and_filters(store: TraceStore) -> None:
    await store.add(
        [
            span("a", 1, start=1, name="reconcile", service="pavane-operator"),
            span("b", 2, start=2, name="POST /entries", service="pavane-api"),
            span("b", 3, parent=2, start=3, error="it broke"),
        ],
        now_ns=100,
    )
    assert [item.trace_id[0] for item in await store.recent(limit=10)] == ["b", "a"]
    assert [item.trace_id[0] for item in await store.recent(limit=1)] == ["b"]
    assert [item.name for item in await store.recent(limit=10, service="pavane-operator")] == ["reconcile"]
    assert [item.name for item in await store.recent(limit=10, name="POST")] == ["POST /entries"]
    (failed,) = await store.recent(limit=10, errors_only=True)
    assert (failed.spans, failed.errors, failed.duration_ns) == (2, 1, SECOND_NS + 1)
    assert await store.recent(limit=10, min_duration_ns=2 * SECOND_NS) == []


async def test_the_list_leaves_out_what_the_trace_of_the_sender_shows(store: TraceStore) -> None:
    request = span("a", 1, start=1)
    client = span("a", 2, parent=1, links=(DERIVED,), kind="CLIENT")
    leader = span("b", 3, start=2, links=(DERIVED,), kind="SERVER")
    consumer = span("c", 4, start=3, links=(SpanLink(trace_id="b" * 32, span_id=f"{3:016x}"),))
    await store.add([request, client, leader, consumer], now_ns=100)
    assert [item.trace_id[0] for item in await store.recent(limit=10)] == ["a"]
    assert [item.trace_id[0] for item in await store.recent(limit=10, parts=True)] == ["c", "b", "a"]


async def test_the_list_has_the_first_of_what_came_without_its_sender(store: TraceStore) -> None:
    leader, follower = span("b", 3, start=2, links=(DERIVED,), kind="SERVER"), span("c", 4, start=3, links=(DERIVED,))
    await store.add([leader, follower], now_ns=100)
    assert [item.trace_id[0] for item in await store.recent(limit=10)] == ["b"]
    assert [item.trace_id[0] for item in await store.recent(limit=10, parts=True)] == ["c", "b"]


async def test_spans_survive_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        store = TraceStore(tmp_path / "traces.sqlite", retention_s=3600, spans_max=5000)
        await store.open()
        await store.add([span("a", 1, links=(DERIVED,))], now_ns=100)
        found = await store.trace("a" * 32)
        await store.close()
        assert found is not None
        assert found.spans[0].links == [DERIVED]


async def test_age_and_number_bound_what_is_kept(tmp_path: Path) -> None:
    store = TraceStore(tmp_path / "traces.sqlite", retention_s=10, spans_max=1500)
    await store.open()
    now = 1000 * SECOND_NS
    await store.add([span("a", 1, start=now - 12 * SECOND_NS, links=(DERIVED,))], now_ns=now - 11 * SECOND_NS)
    await store.add([span("b", number, start=now + number) for number in range(1, 2001)], now_ns=now)
    assert await store.trace("a" * 32) is None
    kept = await store.trace("b" * 32)
    await store.close()
    assert kept is not None
    assert len(kept.spans) == 1350  # a full store is emptied by a tenth
    assert kept.spans[0].start_ns == now + 651


def otlp(spans: int = 1) -> bytes:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    for key, value in (("service.name", "pavane-pod"), ("service.instance.id", "q-server-g1-0")):
        attribute = resource.resource.attributes.add()
        attribute.key, attribute.value.string_value = key, value
    scope = resource.scope_spans.add()
    for number in range(1, spans + 1):
        item = scope.spans.add()
        item.trace_id, item.span_id = b"\x01" * 16, number.to_bytes(8, "big")
        item.name, item.kind = "raft/RequestUpdate", item.SPAN_KIND_SERVER
        item.start_time_unix_nano, item.end_time_unix_nano = 5, 9
        item.status.code, item.status.message = item.status.STATUS_CODE_ERROR, "no quorum"
        link = item.links.add()
        link.trace_id, link.span_id = b"\x02" * 16, b"\x03" * 8
        attribute = item.attributes.add()
        attribute.key, attribute.value.int_value = "pavane.raft.term", 7
    return request.SerializeToString()


@pytest.mark.parametrize("encoding", ["", "identity", "gzip"])
def test_an_exporters_request_becomes_spans(encoding: str) -> None:
    body = gzip.compress(otlp()) if encoding == "gzip" else otlp()
    (decoded,) = receiver.decode(body, encoding)
    assert decoded == Span(
        trace_id="01" * 16,
        span_id=f"{1:016x}",
        name="raft/RequestUpdate",
        kind="SERVER",
        service="pavane-pod",
        instance="q-server-g1-0",
        start_ns=5,
        end_ns=9,
        error="no quorum",
        attributes={"pavane.raft.term": 7},
        links=[SpanLink(trace_id="02" * 16, span_id="03" * 8)],
    )


def test_spans_without_valid_ids_are_left_out() -> None:
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.add().name = "no ids"
    assert receiver.decode(request.SerializeToString(), "") == []


@pytest.mark.parametrize(
    ("body", "encoding", "error"),
    [
        (b"\xff\xff\xff", "", BadRequest),
        (b"no gzip", "gzip", BadRequest),
        (gzip.compress(otlp())[:-9], "gzip", BadRequest),
        (otlp(), "br", BadRequest),
        (bytes(receiver.BODY_BYTES_MAX + 1), "", TooLarge),
        (gzip.compress(bytes(receiver.BODY_BYTES_MAX + 1)), "gzip", TooLarge),
        (otlp(receiver.SPANS_MAX + 1), "", TooLarge),
    ],
)
def test_a_bad_request_is_refused_in_words(body: bytes, encoding: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        receiver.decode(body, encoding)


async def test_spans_of_the_future_displace_nothing(tmp_path: Path) -> None:
    store = TraceStore(tmp_path / "traces.sqlite", retention_s=3600, spans_max=1500)
    await store.open()
    now = 1000 * SECOND_NS
    await store.add([span("a", 1, start=now)], now_ns=now)
    # The year 2262, and what no column of SQLite holds.
    later = [span("b", number, start=2**63 - 2 * SECOND_NS) for number in range(1, 2001)]
    await store.add([*later, span("c", 1, start=2**64 - 1)], now_ns=now)
    kept = [await store.trace(trace * 32) for trace in "abc"]
    await store.close()
    assert [found is not None for found in kept] == [True, False, False]
    assert (tmp_path / "traces.sqlite").stat().st_mode & 0o777 == 0o600


def test_a_span_with_a_parent_of_any_length_is_dropped() -> None:
    request = ExportTraceServiceRequest.FromString(otlp(2))
    spans = request.resource_spans[0].scope_spans[0].spans
    spans[0].parent_span_id = b"x" * 1_000_000
    spans[1].parent_span_id = b"12345678"
    assert [found.parent_span_id for found in receiver.decode(request.SerializeToString(), "")] == [b"12345678".hex()]


async def test_what_arrived_first_goes_first_whatever_time_it_says(tmp_path: Path) -> None:
    store = TraceStore(tmp_path / "traces.sqlite", retention_s=3600, spans_max=1500)
    await store.open()
    now = 1000 * SECOND_NS
    # As far ahead as a clock may be: by their own time they would outlive all others.
    await store.add([span("b", number, start=now + 50 * SECOND_NS) for number in range(1, 1500)], now_ns=now)
    await store.add([span("a", number, start=now - SECOND_NS) for number in range(1, 1501)], now_ns=now + 1)
    kept = [await store.trace(trace * 32) for trace in "ab"]
    await store.close()
    assert [0 if found is None else len(found.spans) for found in kept] == [1350, 0]


async def test_bytes_bound_what_is_kept(tmp_path: Path) -> None:
    bytes_max = 4 << 20
    store = TraceStore(tmp_path / "traces.sqlite", retention_s=3600, spans_max=100_000, bytes_max=bytes_max)
    await store.open()
    for number in range(400):
        large = span("b", number + 1)
        large.attributes = {f"key {each}": "x" * 1000 for each in range(60)}
        await store.add([large], now_ns=SECOND_NS)
    kept = await store.trace("b" * 32)
    await store.close()
    assert kept is not None
    assert kept.spans[-1].span_id == f"{400:016x}"  # the newest is there
    size = sum(len(one.model_dump_json()) for one in kept.spans)
    assert size <= bytes_max + PRUNE_EVERY_BYTES + large_margin(kept.spans)


def large_margin(spans: list[Span]) -> int:
    """What the last span before a look may be over."""
    return len(spans[0].model_dump_json())


async def test_spans_that_share_a_link_hold_nobody_up(store: TraceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "QUERY_S_MAX", 0.2)
    shared = [
        Span(
            trace_id=f"{number:032x}", span_id=f"{number:016x}", name="x", kind="INTERNAL", service="s",
            start_ns=1, end_ns=2, links=[DERIVED],
        )
        for number in range(1, 15001)
    ]  # fmt: skip
    await store.add(shared, now_ns=SECOND_NS)
    await store.add([span("a", 1, start=3, name="mine")], now_ns=SECOND_NS)
    assert (await store.recent(limit=1))[0].name == "mine"
    found = await store.trace("a" * 32)
    assert found is not None
    assert [each.name for each in found.spans] == ["mine"]


async def test_a_file_of_another_format_is_made_anew(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "traces.sqlite")) as former:
        former.executescript("CREATE TABLE span (trace_id TEXT); INSERT INTO span VALUES ('x'); CREATE TABLE link (a)")
    store = TraceStore(tmp_path / "traces.sqlite", retention_s=3600, spans_max=1500)
    await store.open()
    await store.add([span("a", 1)], now_ns=SECOND_NS)
    assert await store.trace("a" * 32) is not None
    await store.close()


@pytest.mark.parametrize("damage", [b"x" * 5000, b"SQLite format 3\0" + b"\x10\0\1\1\0@  " + b"x" * 9000])
async def test_a_damaged_file_is_made_anew(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "traces.sqlite").write_bytes(damage)
    store = TraceStore(tmp_path / "traces.sqlite", retention_s=3600, spans_max=1500)
    await store.open()
    await store.add([span("a", 1)], now_ns=SECOND_NS)
    assert await store.trace("a" * 32) is not None
    await store.close()


async def test_while_there_is_no_room_for_traces_all_else_works_and_they_are_refused_in_words(tmp_path: Path) -> None:
    place = tmp_path / "api"
    place.write_text("in the place of its folder")
    async with plane(tmp_path) as api:
        token = await api.service_account_token("quickstart", "pavane-otlp")
        headers = {"Content-Type": "application/x-protobuf", "Authorization": f"Bearer {token}"}

        async def sent(trace: bytes, spans: int) -> httpx2.Response:
            return await api.http.post("/v1/traces", content=export_of(trace, spans=spans), headers=headers)

        assert (await api.http.get("/api/v1/namespaces/default/raftclusters")).status_code == 200
        refused = await sent(b"a", 1)
        assert refused.status_code == 503
        assert "traces.sqlite cannot be used" in Status.FromString(refused.content).message
        place.unlink()
        assert (await sent(b"b", 1)).status_code == 200
        with no_file_beyond(256 * 1024):
            refused = await sent(b"c", 2000)
            assert refused.status_code == 503
            assert "traces.sqlite cannot be used" in Status.FromString(refused.content).message
        assert (await sent(b"d", 1)).status_code == 200
        found = {item["trace_id"] for item in (await api.http.get("/api/v1/traces?parts=true")).json()["items"]}
        assert found >= {(b"b" * 16).hex(), (b"d" * 16).hex()}
        assert (b"c" * 16).hex() not in found


def test_what_a_terminal_would_obey_reaches_nobody() -> None:
    request = ExportTraceServiceRequest.FromString(otlp())
    (item,) = request.resource_spans[0].scope_spans[0].spans
    item.name, item.status.message = "\x1b[2Jname\u202e", "\x1b]0;title\x07"
    item.attributes[0].key, item.attributes[0].value.string_value = "\x9bkey", "a\nb"
    (found,) = receiver.decode(request.SerializeToString(), "")
    texts = [found.name, found.error, *found.attributes, *map(str, found.attributes.values())]
    assert all(text.isprintable() for text in texts), texts
    assert found.name == "\N{REPLACEMENT CHARACTER}[2Jname\N{REPLACEMENT CHARACTER}"


def export_of(trace: bytes, names: str = "default", spans: int = 1) -> bytes:
    """An OTLP request with spans of now that say they are of a namespace."""
    request, now = ExportTraceServiceRequest(), time.time_ns()
    resource = request.resource_spans.add()
    attribute = resource.resource.attributes.add()
    attribute.key, attribute.value.string_value = "k8s.namespace.name", names
    scope = resource.scope_spans.add()
    for number in range(1, spans + 1):
        item = scope.spans.add()
        item.trace_id, item.span_id, item.name = trace * 16, number.to_bytes(8, "big"), "x"
        item.start_time_unix_nano = item.end_time_unix_nano = now
    return request.SerializeToString()


async def test_a_stranger_displaces_nothing(tmp_path: Path) -> None:
    settings = {"trace_spans_max": 1500, "trace_requests_per_s": 5.0}
    async with plane(tmp_path, **settings) as api, httpx2.AsyncClient(base_url=api.http.base_url) as stranger:
        kind = {"Content-Type": "application/x-protobuf"}
        of_pod = {**kind, "Authorization": f"Bearer {await api.service_account_token('quickstart', 'pavane-otlp')}"}
        of_rest = {**kind, "Authorization": f"Bearer {await api.service_account_token('other', 'pavane-api')}"}
        sent = await stranger.post("/v1/traces", content=export_of(b"a"), headers=of_pod)
        assert sent.status_code == 200, sent.text
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic eDp4"}, of_rest):
            for _ in range(3):
                flood = export_of(b"b", spans=1500)
                refused = await stranger.post("/v1/traces", content=flood, headers={**kind, **headers})
                assert (refused.status_code, refused.headers["content-type"]) == (401, "application/x-protobuf")
                assert "kubectl create token NAME --audience pavane-otlp" in Status.FromString(refused.content).message
        # Nor did he use up what may come in a second.
        assert (await stranger.post("/v1/traces", content=export_of(b"c"), headers=of_pod)).status_code == 200
        found = {item["trace_id"] for item in (await api.http.get("/api/v1/traces?parts=true")).json()["items"]}
        assert found >= {(b"a" * 16).hex(), (b"c" * 16).hex()}
        assert (b"b" * 16).hex() not in found
        assert api.app.state.exports == {200: 2, 401: 12}


async def test_while_the_store_is_behind_further_spans_are_refused_and_kept_nowhere(store: TraceStore) -> None:
    behind = threading.Event()
    waiting = asyncio.create_task(store._run(behind.wait))
    taken = receiver.Receiver(store, cast("Any", None), None, "pavane-system", Bucket(1e6), Counter())

    async def body() -> AsyncIterator[bytes]:
        yield export_of(b"a")

    try:
        under_way = [asyncio.create_task(taken.take(body(), "", None)) for _ in range(receiver.UNDER_WAY_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests, match="behind"):
            await taken.take(body(), "", None)
    finally:
        behind.set()
    await asyncio.gather(waiting, *under_way)
    await taken.take(body(), "", None)
    assert taken.exports == {200: receiver.UNDER_WAY_MAX + 1}


async def test_slow_senders_hold_up_nobody(store: TraceStore) -> None:
    taken = receiver.Receiver(store, cast("Any", None), None, "pavane-system", Bucket(1e6), Counter())
    ends = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        await ends.wait()
        yield export_of(b"b")

    async def quick() -> AsyncIterator[bytes]:
        yield export_of(b"a")

    sending = [asyncio.create_task(taken.take(slow(), "", None)) for _ in range(receiver.UNDER_WAY_MAX)]
    await asyncio.sleep(0)
    await taken.take(quick(), "", None)
    ends.set()
    await asyncio.gather(*sending)
    assert taken.exports == {200: receiver.UNDER_WAY_MAX + 1}


async def test_a_pods_spans_are_of_its_namespace_whatever_they_say(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        kind = {"Content-Type": "application/x-protobuf"}
        for trace, namespace in ((b"a", "default"), (b"b", "pavane-system")):
            token = await api.service_account_token("sender", "pavane-otlp", namespace)
            headers = {**kind, "Authorization": f"Bearer {token}"}
            sent = await api.http.post("/v1/traces", content=export_of(trace, "secret"), headers=headers)
            assert sent.status_code == 200, sent.text
        for namespace, traces_of in (("default", [b"a"]), ("secret", [b"b"])):
            items = (await api.http.get(f"/api/v1/traces?namespace={namespace}&parts=true")).json()["items"]
            assert [item["trace_id"] for item in items if item["name"] == "x"] == [(t * 16).hex() for t in traces_of]


async def test_no_token_is_asked_for_when_told_so(tmp_path: Path) -> None:
    async with plane(tmp_path, trace_tokens=False) as api, httpx2.AsyncClient(base_url=api.http.base_url) as anyone:
        kind = {"Content-Type": "application/x-protobuf"}
        assert (await anyone.post("/v1/traces", content=export_of(b"a"), headers=kind)).status_code == 200


async def test_a_duration_that_no_trace_can_have_is_refused(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        for value in ("1e13", "inf", "nan", "-1"):
            assert (await api.http.get(f"/api/v1/traces?min_duration_ms={value}")).status_code == 422, value
        assert (await api.http.get("/api/v1/traces?min_duration_ms=1e9")).status_code == 200


async def test_who_sees_one_namespace_sees_only_its_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = KubeClient.access_review

    async def review(self: KubeClient, caller: Identity, verb: str, resource: Resource, **where: Any) -> bool:
        """As RBAC answers of a Role in one namespace, which the embedded server has not."""
        if caller.user.endswith(":reader"):
            return (verb, resource.plural, where["namespace"]) == ("get", "waltzclusters", "default")
        return await ask(self, caller, verb, resource, **where)

    monkeypatch.setattr(KubeClient, "access_review", review)
    async with plane(tmp_path) as api:
        export = ExportTraceServiceRequest()
        now = time.time_ns()
        of = {"a": "default", "b": "secret", "c": "", "d": "default", "e": "secret"}
        for trace, namespace in of.items():
            resource = export.resource_spans.add()
            if namespace and trace != "d":
                attribute = resource.resource.attributes.add()
                attribute.key, attribute.value.string_value = "k8s.namespace.name", namespace
            item = resource.scope_spans.add().spans.add()
            item.trace_id, item.span_id, item.name = trace.encode() * 16, b"12345678", trace
            item.start_time_unix_nano = item.end_time_unix_nano = now
            if trace == "d":  # a request by REST names it in its path
                path = item.attributes.add()
                path.key, path.value.string_value = "url.path", "/api/v1/namespaces/default/raftclusters/q"
            if trace == "e":
                link = item.links.add()
                link.trace_id, link.span_id = b"a" * 16, b"12345678"
        kind = {"Content-Type": "application/x-protobuf"}
        assert (await api.http.post("/v1/traces", content=export.SerializeToString(), headers=kind)).is_success
        token = await api.service_account_token("reader")
        one = {"Authorization": f"Bearer {token}"}
        refused = await api.http.get("/api/v1/traces", headers=one)
        assert (refused.status_code, refused.json()["title"]) == (403, "Not allowed")
        assert (await api.http.get("/api/v1/traces?namespace=secret", headers=one)).status_code == 403
        seen = (await api.http.get("/api/v1/traces?namespace=default&parts=true", headers=one)).json()["items"]
        assert {item["name"] for item in seen} == {"a", "d"}
        everything = (await api.http.get("/api/v1/traces?parts=true")).json()["items"]
        assert {item["name"] for item in everything} >= set(of)

        async def shown(trace: str, headers: dict[str, str]) -> list[str] | int:
            answer = await api.http.get(f"/api/v1/traces/{(trace.encode() * 16).hex()}", headers=headers)
            return [each["name"] for each in answer.json()["spans"]] if answer.is_success else answer.status_code

        assert await shown("a", {}) == ["a", "e"]
        assert await shown("a", one) == ["a"]  # what links to it from elsewhere is not his
        assert [await shown(trace, one) for trace in "bcde"] == [404, 404, ["d"], 404]
