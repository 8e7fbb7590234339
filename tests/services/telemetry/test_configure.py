"""Exporting spans, in processes of their own because OpenTelemetry is configured once per process."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

EXPORTING = """
from opentelemetry import trace
from pavane import telemetry
assert telemetry.configure("raft-server", {"pavane.generation": 3})
assert telemetry.configure("another")
context = telemetry.derived("raft", "", b"id")
with trace.get_tracer("test").start_as_current_span("raft/append", links=[telemetry.link(context)]):
    pass
telemetry.shutdown()
"""
RENEWED = """
import os, pathlib
from opentelemetry import trace
from pavane import telemetry
assert telemetry.configure("raft-server")
for renewed in ("second", "third"):
    with trace.get_tracer("test").start_as_current_span("raft/append"):
        pass
    assert trace.get_tracer_provider().force_flush()
    pathlib.Path(os.environ["PAVANE_OTLP_TOKEN_FILE"]).write_text(renewed)
"""
SAMPLED = """
from opentelemetry import trace
from pavane import telemetry
assert telemetry.configure("raft-server")
tracer = trace.get_tracer("test")
links = [telemetry.link(telemetry.derived("raft", "", bytes([number]))) for number in range(64)]

def kept(name):
    spans = [tracer.start_span(name, links=[link]) for link in links]
    return [number for number, span in enumerate(spans) if span.is_recording()]

sent, taken = kept("raft/RequestUpdate"), kept("raft/append")
assert sent == taken, (sent, taken)
assert 0 < len(sent) < 64
unsent = [link for number, link in enumerate(links) if number not in sent]
assert not tracer.start_span("raft/apply", links=unsent).is_recording()
assert tracer.start_span("raft/apply", links=[*unsent, links[sent[0]]]).is_recording()
with trace.use_span(tracer.start_span("raft/append", links=unsent)):
    assert not tracer.start_span("raft/inner", links=[links[sent[0]]]).is_recording()
"""
UNSENT = """
import gc
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from pavane import telemetry
from pavane.telemetry import sdk
sdk.EXPORT_TIMEOUT_SECONDS = 0.5  # less than the pause before a repetition
assert telemetry.configure("raft-server")
gc.disable()  # as for what was there when everything was looked at
for _ in range(3):
    with trace.get_tracer("test").start_as_current_span("raft/append"):
        pass
trace.get_tracer_provider().shutdown()
kept = [each for each in gc.get_objects() if isinstance(each, ReadableSpan)]
assert not kept, kept
"""
BATCHES = """
import gc
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanKind
from pavane import telemetry
from pavane.telemetry.room import PARTS_MAX
assert telemetry.configure("waltz-storage")
spans, context = telemetry.FinishedSpans("test"), telemetry.derived("waltz", "", b"id")
for _ in range(3 * PARTS_MAX // 32):
    spans.add("waltz/store", SpanKind.CONSUMER, 1, [telemetry.link(context) for _ in range(32)], {"n": 32})
kept = sum(isinstance(each, Link) for each in gc.get_objects())
assert PARTS_MAX // 2 < kept < PARTS_MAX, kept
"""
MANY = """
from opentelemetry import trace
from opentelemetry.trace import SpanKind
from pavane import telemetry
from pavane.telemetry.room import SPANS_MAX
assert telemetry.configure("waltz-storage")
spans = telemetry.FinishedSpans("test")
for _ in range(3):
    for _ in range(SPANS_MAX):
        spans.add("waltz/append", SpanKind.SERVER, 1, [], {"n": 1})
    assert trace.get_tracer_provider().force_flush()
"""
SILENT = """
import sys
from pavane import telemetry
from opentelemetry import trace
assert not telemetry.configure("raft-server")
with trace.get_tracer("test").start_as_current_span("raft/append") as span:
    assert not span.is_recording()
telemetry.shutdown()
assert "opentelemetry.sdk" not in sys.modules
"""
WITHOUT_EXTRA = """
import sys
sys.modules["opentelemetry.exporter.otlp.proto.http.trace_exporter"] = None
from pavane import telemetry
assert not telemetry.configure("raft-server")
"""


@pytest.fixture
def authorized() -> list[str | None]:
    """What the collector was sent as Authorization, request by request."""
    return []


@pytest.fixture
def collector(authorized: list[str | None]) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A collector that keeps (path, body) of what it is sent."""
    received: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            authorized.append(self.headers["authorization"])
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Be silent."""

    server = ThreadingHTTPServer(("127.64.97.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.64.97.1:{server.server_address[1]}", received
    server.shutdown()
    server.server_close()
    thread.join()


def run(program: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**env, **variables},
        check=True,
        capture_output=True,
        text=True,
        timeout=50,
    )


def test_spans_arrive_with_links_and_resource(collector: tuple[str, list[tuple[str, bytes]]]) -> None:
    endpoint, received = collector
    run(EXPORTING, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_RESOURCE_ATTRIBUTES="k8s.pod.name=db-server-g3-0")
    ((path, body),) = received
    assert path == "/v1/traces"
    (resource_spans,) = ExportTraceServiceRequest.FromString(body).resource_spans
    attributes = {item.key: item.value for item in resource_spans.resource.attributes}
    assert attributes["service.name"].string_value == "raft-server"
    assert attributes["pavane.generation"].int_value == 3
    assert attributes["k8s.pod.name"].string_value == "db-server-g3-0"
    (span,) = resource_spans.scope_spans[0].spans
    assert span.name == "raft/append"
    assert [item.key for item in span.links[0].attributes] == ["pavane.trace.derived"]


def test_the_token_of_a_file_goes_with_each_batch(
    collector: tuple[str, list[tuple[str, bytes]]], authorized: list[str | None], tmp_path: Path
) -> None:
    endpoint, _ = collector
    file = tmp_path / "token"
    file.write_text("first\n")
    to = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "PAVANE_OTLP_TOKEN_FILE": str(file)}
    run(RENEWED, **to)
    run(EXPORTING, **to, OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20mine")
    run(EXPORTING, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    assert authorized == ["Bearer first", "Bearer second", "Bearer mine", None]


def test_nothing_is_kept_of_spans_that_could_not_be_sent() -> None:
    run(UNSENT, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")


def test_spans_of_large_batches_wait_in_bounded_memory_while_a_collector_does_not_answer() -> None:
    with socket.create_server(("127.64.97.1", 0)) as mute:
        errors = run(BATCHES, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.64.97.1:{mute.getsockname()[1]}").stderr
    assert errors.count("spans dropped so far") == 1


def test_spans_that_were_sent_make_room_for_more(collector: tuple[str, list[tuple[str, bytes]]]) -> None:
    endpoint, received = collector
    errors = run(MANY, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint).stderr
    requests = [ExportTraceServiceRequest.FromString(body) for _, body in received]
    assert sum(len(each.resource_spans[0].scope_spans[0].spans) for each in requests) == 3 * 8192, errors


def test_both_ends_of_a_message_decide_alike_whether_it_is_sampled() -> None:
    settings = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}
    run(SAMPLED, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", **settings)


def test_without_an_endpoint_the_sdk_is_not_even_imported() -> None:
    assert run(SILENT).stderr == ""


def test_without_the_extra_one_line_says_what_to_install() -> None:
    errors = run(WITHOUT_EXTRA, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1").stderr
    assert errors.count("\n") == 1
    assert "pavane[otel]" in errors


def test_a_collector_that_is_away_does_not_hold_up_the_end() -> None:
    run(EXPORTING, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
