"""A command of the operator and what the pod does about it are one trace (docs/specs/compute.md 2.1)."""

import subprocess
import sys

from pavane.compute.wire.codec import decode_command, encode_command
from pavane.compute.wire.commands import CreateTimely
from pavane.compute.wire.common import NONCE_BYTES, Epoch

# In a process of its own, because OpenTelemetry is configured once per process.
PROGRAM = """
import asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pavane.compute.wire.common import Epoch, Token
from pavane.stage.client import StageStream
from pavane.stage.role import RoleReport
from pavane.stage.server import StageServer
from pavane.wire import Stage

class Role:
    kind, generation, unit, token = "raft", 3, "entries", None
    live_settings = told_settings = frozenset()
    async def read_only(self):
        with trace.get_tracer("role").start_as_current_span("role/read_only"):
            pass
    async def read_write(self, token, told):
        return True
    def report(self):
        return RoleReport()

async def main():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    server = StageServer(Role(), print, host="127.64.94.1", port=0)
    await server.start()
    with trace.get_tracer("test").start_as_current_span("reconcile RaftCluster"):
        async with StageStream(f"127.64.94.1:{server.port}", epoch=Epoch(1, 1), kind="raft", generation=3) as stream:
            await stream.lead_up()
            await stream.allow_writes(Token(3, 1))
            await stream.wait_for(lambda report: report.stage is Stage.READ_WRITE)
    await server.stop()
    spans = {span.context.span_id: span for span in exporter.get_finished_spans()}
    for span in spans.values():
        parent = spans.get(span.parent.span_id) if span.parent else None
        print(span.kind.name, span.name, "<-", parent.name if parent else "", span.attributes.get("rpc.method"))

asyncio.run(main())
"""
METHOD = "pavane.compute.v1.ProtoCompute/CommandResponseStream"


def test_commands_and_their_effects_are_one_trace() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=50)
    lines = set(done.stdout.splitlines())
    for command in ("InitializationComplete", "AllowWrites"):
        assert f"CLIENT stage/{command} <- reconcile RaftCluster {METHOD}" in lines
        assert f"SERVER stage/{command} <- stage/{command} {METHOD}" in lines
    assert not any("CreateTimely" in line or "CreateInstance" in line for line in lines)
    assert "INTERNAL role/read_only <- stage/InitializationComplete None" in lines


def test_without_tracing_a_command_has_no_trace() -> None:
    command = CreateTimely(Epoch(1, 1), bytes(NONCE_BYTES))
    assert decode_command(encode_command(command)) == (command, "")
