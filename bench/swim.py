"""A group of our members beside one of memberlist, at the same time on loopback (docs/specs/swim.md 20)."""

import asyncio
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from bench.cluster import BenchError
from bench.options import Options
from bench.report import Measure, greatest_of, median_of
from pavane_cli import output

SIZE = 50
LOSS_PERMILLE = 100
SETTLE_S = 2 * SIZE  # until every pair has met and the walks after the boot are done (docs/specs/swim.md A5)
IDLE_S = 20
LOSSY_S = 60
TIME_OUT_S = 1800
REFERENCE = Path(__file__).parent / "memberlist"

# Goals as ratios to memberlist (docs/specs/swim.md 25, A3, A5, A6).
CRASH_RATIO_MAX = 0.8
IDLE_BYTES_RATIO_MAX = 1.0
SUSPICIONS_RATIO_MAX = 0.1


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Run both groups side by side; without Go ours alone."""
    common = {"size": SIZE, "changes": options.runs, "loss": LOSS_PERMILLE}
    ours = [sys.executable, "-m", "bench.swim_group", *_flags(common, settle=SETTLE_S, idle=IDLE_S, lossy=LOSSY_S)]
    go = shutil.which("go")
    if go is None:
        output.note("memberlist is skipped: install Go (https://go.dev/dl/) to compare with it")
        return _alone("", await _run(ours))
    program = folder / "memberlist"
    await _run([go, "build", "-o", str(program), "."], cwd=REFERENCE, answers=False)
    # Without the stream pings that hide lost datagrams; on a loss-free network they change nothing.
    theirs = [
        str(program),
        *_flags(common, settle=f"{SETTLE_S}s", idle=f"{IDLE_S}s", lossy=f"{LOSSY_S}s"),
        "--stream-pings=false",
    ]
    found, reference = await asyncio.gather(_run(ours), _run(theirs))
    return [*_alone("", found), *_alone("memberlist: ", reference), *_compared(found, reference)]


def _flags(common: dict[str, int], **more: int | str) -> list[str]:
    return [part for name, value in {**common, **more}.items() for part in (f"--{name}", str(value))]


async def _run(command: list[str], *, cwd: Path | None = None, answers: bool = True) -> Any:
    """Run a program and return the JSON that it prints; raises ``BenchError``."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(TIME_OUT_S):
            printed, errors = await process.communicate()
    except BaseException:
        process.kill()
        raise
    if process.returncode:
        raise BenchError(f"{Path(command[0]).name} failed: {errors.decode(errors='replace').strip()[-500:]}")
    return json.loads(printed) if answers else None


def _alone(who: str, found: dict[str, Any]) -> list[Measure]:
    idle, lossy = found["idle"], found["lossy"]
    with_loss = f"{LOSS_PERMILLE // 10} % loss"
    return [
        Measure(f"{who}all see all after the last start", found["boot_s"], "s"),
        median_of(f"{who}join known by all of {SIZE}", "s", found["join_s"]),
        median_of(f"{who}leave known by all", "s", found["leave_s"]),
        median_of(f"{who}crash known by all", "s", found["crash_s"]),
        greatest_of(f"{who}crash known by all, slowest", "s", found["crash_s"]),
        Measure(f"{who}idle, datagrams per member and second", idle["datagrams"], ""),
        Measure(f"{who}idle, bytes of datagrams per member and second", idle["bytes"], "B"),
        Measure(f"{who}idle, bytes of streams per member and second", idle["stream_bytes"], "B"),
        Measure(f"{who}idle, CPU per member and second", idle["cpu_ms"], "ms"),
        Measure(f"{who}{with_loss}, suspicions per member and minute", lossy["suspicions"], ""),
        Measure(f"{who}{with_loss}, falsely dead", lossy["falsely_dead"], ""),
        Measure(f"{who}{with_loss}, bytes per member and second", lossy["bytes"] + lossy["stream_bytes"], "B"),
        Measure(f"{who}{with_loss}, CPU per member and second", lossy["cpu_ms"], "ms"),
    ]


def _compared(ours: dict[str, Any], theirs: dict[str, Any]) -> list[Measure]:
    crash = statistics.median(ours["crash_s"]) / statistics.median(theirs["crash_s"])
    idle = ours["idle"]["bytes"] / theirs["idle"]["bytes"]
    measures = [
        Measure("ours / memberlist: crash known by all", crash, "", CRASH_RATIO_MAX),
        Measure("ours / memberlist: idle bytes", idle, "", IDLE_BYTES_RATIO_MAX),
        Measure("ours / memberlist: idle CPU", ours["idle"]["cpu_ms"] / theirs["idle"]["cpu_ms"], ""),
    ]
    suspicions = theirs["lossy"]["suspicions"]
    if suspicions:
        ratio = ours["lossy"]["suspicions"] / suspicions
        measures.append(Measure("ours / memberlist: suspicions under loss", ratio, "", SUSPICIONS_RATIO_MAX))
    return measures
