"""A process as Kubernetes sees it: exit code, last words, answer to signals, log lines."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import asyncio, logging, os, signal, sys
from opentelemetry.trace import get_tracer, set_span_in_context, NonRecordingSpan, use_span
import structlog
from pavane import telemetry
from pavane.runtime.process import Process, run

async def waits(process):
    print("up", flush=True)
    end = await process.ended()
    print("stopped in order", end.code, flush=True)

async def task_fails(process):
    async def broken():
        raise ValueError("no disk")
    process.spawn(broken(), name="storage")
    await process.ended()
    print("stopped in order", flush=True)

async def task_returns(process):
    process.spawn(asyncio.sleep(0), name="reader")
    await process.ended()

async def body_fails(process):
    raise RuntimeError("half open")

async def body_returns(process):
    return

async def exits(process):
    process.exit(3, "incompatible settings")
    process.exit(4, "later")
    await process.ended()

async def task_is_cancelled(process):
    async def waiting():
        try:
            await asyncio.Event().wait()
        finally:
            print("task cancelled", flush=True)
    process.spawn(waiting(), name="waiting")
    await asyncio.sleep(0)
    process.exit(0)
    await process.ended()

async def logs(process):
    with use_span(NonRecordingSpan(telemetry.derived("raft", "", b"id"))):
        logging.getLogger("one").warning("plain %s", "text")
        structlog.get_logger("two").info("structured", index=7)
    process.exit(0)
    await process.ended()

raise SystemExit(run(globals()[sys.argv[1]], service="test"))
"""


def start(tmp_path: Path, body: str) -> "subprocess.Popen[str]":
    env = {**os.environ, "PAVANE_TERMINATION_LOG": str(tmp_path / "termination")}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, body],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, list[dict[str, Any]]]:
    output, errors = process.communicate(timeout=30)
    return process.returncode, output, [json.loads(line) for line in errors.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, "waits")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    assert finish(process)[:2] == (0, "stopped in order 0\n")
    assert not (tmp_path / "termination").exists()


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        ("task_fails", 1, "storage ended: ValueError('no disk')"),
        ("task_returns", 1, "reader ended"),
        ("body_fails", 1, "RuntimeError: half open"),
        ("body_returns", 1, "the body of the process ended unasked"),
        ("exits", 3, "incompatible settings"),
    ],
)
def test_the_reason_of_an_end_is_left_for_kubernetes(tmp_path: Path, body: str, code: int, reason: str) -> None:
    assert finish(start(tmp_path, body))[0] == code
    assert (tmp_path / "termination").read_text() == reason


def test_a_failed_task_stops_the_rest_in_order(tmp_path: Path) -> None:
    code, output, lines = finish(start(tmp_path, "task_fails"))
    assert (code, output) == (1, "stopped in order\n")
    assert any("no disk" in line.get("exception", "") for line in lines)


def test_tasks_are_cancelled_at_the_end(tmp_path: Path) -> None:
    assert finish(start(tmp_path, "task_is_cancelled"))[:2] == (0, "task cancelled\n")


def test_log_lines_are_json_and_carry_the_ids_of_their_span(tmp_path: Path) -> None:
    _, _, (first, second) = finish(start(tmp_path, "logs"))
    assert (first["event"], first["level"], first["logger"]) == ("plain text", "warning", "one")
    assert (second["event"], second["index"]) == ("structured", 7)
    assert first["trace_id"] == second["trace_id"] != "0" * 32
    assert len(first["span_id"]) == 16
