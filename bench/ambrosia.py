"""Immortals beside gRPC without resilience: calls per second and latency (docs/specs/ambrosia.md 21).

Two immortals have a coordinator each, so they are four processes, and every call is fsynced twice: where it arrives,
and its answer where it was made. gRPC is two processes and remembers nothing. All share the machine.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.ambrosia_app import IN_FLIGHT, SIZES
from bench.cluster import STOP_TIMEOUT_S, BenchError
from bench.machine import look
from bench.options import Options
from bench.report import Measure

RUN_S = 150.0
READY_S = 30.0
DEAD_SHARE = 0.9
"""A dead peer costs others at most a tenth."""
TIMES = 5.0
"""What the goal is, for the calls of these sizes: so many times the calls of grpc.aio."""
SMALL, LARGE = ("16", "256"), "65536"
ALONE_MS = 1.0
"""The goal for a call that is alone: this and two fsyncs."""


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Rates and latencies of both, and what a dead peer costs."""
    del options
    fsync_ms = look(folder).fsync_ms
    immortals = await asyncio.to_thread(_run, folder / "immortals", "called", "calling")
    plain = await asyncio.to_thread(_run, folder / "grpc", "grpc-called", "grpc-calling")
    found: list[Measure] = []
    for size in map(str, SIZES):
        found += [
            Measure(f"calls of {size} B, {IN_FLIGHT} in flight, immortals", immortals[size], "/s"),
            Measure(f"calls of {size} B, {IN_FLIGHT} in flight, grpc.aio", plain[size], "/s"),
            Measure(
                f"immortals / grpc.aio, {size} B",
                immortals[size] / plain[size],
                "",
                least=TIMES if size in SMALL else None,
            ),
            *_cpu(f"immortals, {size} B", immortals[f"{size} CPU"]),
            *_cpu(f"grpc.aio, {size} B", plain[f"{size} CPU"]),
        ]
    dead = immortals["256 beside a dead peer"]
    return [
        *found,
        Measure(f"immortals, {LARGE} B", immortals[LARGE] * int(LARGE) / 1e6, "MB/s"),
        Measure("one call at a time, median, immortals", immortals["ms"], "ms", 2 * fsync_ms + ALONE_MS),
        Measure("one call at a time, median, grpc.aio", plain["ms"], "ms"),
        Measure("256 B beside a dead peer / without", dead / immortals["256"], "", least=DEAD_SHARE),
    ]


def _cpu(what: str, each: dict[str, float]) -> list[Measure]:
    """What a call costs each process, and all of them."""
    found = [Measure(f"CPU of a call, {what}: {name}", value, "µs") for name, value in each.items()]
    return [*found, Measure(f"CPU of a call, {what}: all", sum(each.values()), "µs")]


def _run(folder: Path, called: str, calling: str) -> dict[str, Any]:
    folder.mkdir(parents=True)
    with _process(folder, called) as server:
        if called.startswith("grpc"):
            _wait_for(folder / "port", server)
        try:
            done = subprocess.run(_command(calling, folder), capture_output=True, text=True, timeout=RUN_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"{calling} took more than {RUN_S:.0f} s; {folder} has its log") from error
    if done.returncode:
        raise BenchError(f"{calling} failed: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _command(role: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "bench.ambrosia_app", role, str(folder)]


@contextmanager
def _process(folder: Path, role: str) -> Iterator["subprocess.Popen[bytes]"]:
    with (folder / f"{role}.out").open("wb") as out:
        process = subprocess.Popen(_command(role, folder), stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)


def _wait_for(path: Path, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(int(READY_S * 10)):
        if path.exists():
            return
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise BenchError(f"the gRPC server did not start; {path.parent} has its log")
