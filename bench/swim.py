"""A group of our members beside one of memberlist, at the same time on loopback (docs/specs/swim.md 20)."""

import asyncio
import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.cluster import BenchError
from bench.options import Options
from bench.report import Measure, greatest_of, median_of
from e2e.kubernetes import tools
from pavane_cli import output

SIZES = (50, 100)
SETTLE_PER_MEMBER_S = 2  # until every pair has met and the walks after the boot are done (docs/specs/swim.md A5)
IDLE_S = 20
LOSSY_S = 60
LOSS_PERMILLE = 100
HEAVY_LOSS_PERMILLE = 300  # measured by itself: what a group did before is still going on in it
HEAVY_SETTLE_S = 20  # both see all long before
TIME_OUT_S = 1800
REFERENCE = Path(__file__).parent / "memberlist"

# Goals as ratios to memberlist (docs/specs/swim.md 25, A3, A5, A6).
CRASH_RATIO_MAX = 0.8
IDLE_BYTES_RATIO_MAX = 1.0
SUSPICIONS_RATIO_MAX = 0.1


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Run both groups side by side; without Go ours alone."""
    go = tools.go()
    program = None
    if go is None:
        output.note("memberlist is skipped: install Go (https://go.dev/dl/) to compare with it")
    else:
        program = folder / "memberlist"
        await _run([go, "build", "-o", str(program), "."], cwd=REFERENCE, answers=False)
    measures = []
    for size in SIZES:
        common = {"size": size, "changes": options.runs, "loss": LOSS_PERMILLE}
        found = await _side_by_side(program, common, SETTLE_PER_MEMBER_S * size, IDLE_S)
        measures += [measure for who, one in found.items() for measure in _alone(f"{size}: {who}", one)]
        if program is not None:
            measures += _compared(f"{size}: ", *found.values())
        heavy = {"size": size, "changes": 0, "loss": HEAVY_LOSS_PERMILLE}
        found = await _side_by_side(program, heavy, HEAVY_SETTLE_S, 1)
        for who, one in found.items():
            measures += _lossy(f"{size}: {who}", HEAVY_LOSS_PERMILLE, one["lossy"])
    return measures


async def _side_by_side(program: Path | None, common: dict[str, int], settle_s: int, idle_s: int) -> dict[str, Any]:
    """Run ours, and theirs if it was built, at the same time; returns what they print by who it is of."""
    times = {"settle": settle_s, "idle": idle_s, "lossy": LOSSY_S}
    runs = {"": _run([sys.executable, "-m", "bench.swim_group", *_flags(common | times)])}
    if program is not None:
        # Without the stream pings that hide lost datagrams; on a loss-free network they change nothing.
        theirs = common | {name: f"{seconds}s" for name, seconds in times.items()}
        runs["memberlist: "] = _run([str(program), *_flags(theirs), "--stream-pings=false"])
    found = await asyncio.gather(*runs.values(), return_exceptions=True)  # no program is left when the other fails
    for failed in found:
        if isinstance(failed, BaseException):
            raise failed
    return dict(zip(runs, found, strict=True))


def _flags(flags: Mapping[str, int | str]) -> list[str]:
    return [part for name, value in flags.items() for part in (f"--{name}", str(value))]


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
    idle = found["idle"]
    return [
        Measure(f"{who}all see all after the last start", found["boot_s"], "s"),
        median_of(f"{who}join known by all", "s", found["join_s"]),
        median_of(f"{who}leave known by all", "s", found["leave_s"]),
        median_of(f"{who}crash known by all", "s", found["crash_s"]),
        greatest_of(f"{who}crash known by all, slowest", "s", found["crash_s"]),
        Measure(f"{who}idle, datagrams per member and second", idle["datagrams"], ""),
        Measure(f"{who}idle, bytes of datagrams per member and second", idle["bytes"], "B"),
        Measure(f"{who}idle, bytes of streams per member and second", idle["stream_bytes"], "B"),
        Measure(f"{who}idle, CPU per member and second", idle["cpu_ms"], "ms"),
        *_lossy(who, LOSS_PERMILLE, found["lossy"]),
    ]


def _lossy(who: str, permille: int, lossy: dict[str, float]) -> list[Measure]:
    with_loss = f"{permille // 10} % loss"
    return [
        Measure(f"{who}{with_loss}, suspicions per member and minute", lossy["suspicions"], ""),
        Measure(f"{who}{with_loss}, falsely dead", lossy["falsely_dead"], ""),
        Measure(f"{who}{with_loss}, bytes per member and second", lossy["bytes"] + lossy["stream_bytes"], "B"),
        Measure(f"{who}{with_loss}, CPU per member and second", lossy["cpu_ms"], "ms"),
    ]


def _compared(of: str, ours: dict[str, Any], theirs: dict[str, Any]) -> list[Measure]:
    crash = statistics.median(ours["crash_s"]) / statistics.median(theirs["crash_s"])
    idle = ours["idle"]["bytes"] / theirs["idle"]["bytes"]
    measures = [
        Measure(f"{of}ours / memberlist: crash known by all", crash, "", CRASH_RATIO_MAX),
        Measure(f"{of}ours / memberlist: idle bytes", idle, "", IDLE_BYTES_RATIO_MAX),
        Measure(f"{of}ours / memberlist: idle CPU", ours["idle"]["cpu_ms"] / theirs["idle"]["cpu_ms"], ""),
    ]
    suspicions = theirs["lossy"]["suspicions"]
    if suspicions:
        ratio = ours["lossy"]["suspicions"] / suspicions
        measures.append(Measure(f"{of}ours / memberlist: suspicions under loss", ratio, "", SUSPICIONS_RATIO_MAX))
    return measures
