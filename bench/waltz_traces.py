"""What tracing costs a log: pipelined appends with spans off, of 1 % and of all appends (docs/specs/waltz.md 15).

Client, server and storage nodes are processes; all export to one collector, a process that reads and forgets. Runs take
turns, so that whatever else the machine does befalls all three. The CPU of the collector is not counted, but it takes
its share of a small machine.
"""

import asyncio
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.cluster import STOP_TIMEOUT_S, BenchError
from bench.options import Options
from bench.raft import MICRO
from bench.report import Measure, median_of
from bench.waltz import Log
from bench.waltz_node import HOST
from tests.services.ports import free_ports

RATIOS = {"off": "", "1 %": "0.01", "100 %": "1"}
APPENDS = 60_000  # of a run: three seconds and more, for spans are sent each second
LEAST_SHARE = 0.95  # of the throughput, at 1 %
CLIENT_S = 120.0


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Throughput and CPU of each ratio, and the throughput beside the one without tracing."""
    rates: dict[str, list[float]] = {name: [] for name in RATIOS}
    costs: dict[str, dict[str, list[float]]] = {name: {} for name in RATIOS}
    with _collector() as endpoint:
        for number in range(options.runs):
            ratios = list(RATIOS.items())
            turn = number % len(ratios)  # what comes first finds the disk idle
            for name, ratio in ratios[turn:] + ratios[:turn]:
                rate, spent = await asyncio.to_thread(_run, folder / f"{number}-{name[:3]}", ratio, endpoint)
                rates[name].append(rate)
                for who, seconds in spent.items():
                    costs[name].setdefault(who, []).append(seconds / APPENDS * MICRO)
    found = [median_of(f"appends of 100 B, tracing {name}", "/s", each) for name, each in rates.items()]
    for name in ("1 %", "100 %"):
        shares = [rate / off for rate, off in zip(rates[name], rates["off"], strict=True)]
        least = LEAST_SHARE if name == "1 %" else None
        found.append(Measure(f"{name} / off", statistics.median(shares), "", samples=shares, least=least))
    for name, roles in costs.items():
        found += [median_of(f"CPU per append: {who}, tracing {name}", "µs", each) for who, each in roles.items()]
    return found


def _run(folder: Path, ratio: str, endpoint: str) -> tuple[float, dict[str, float]]:
    """Return appends per second, and the CPU seconds of each role meanwhile."""
    environment = dict(os.environ)
    if ratio:
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
        environment["OTEL_TRACES_SAMPLER"] = "parentbased_traceidratio"
        environment["OTEL_TRACES_SAMPLER_ARG"] = ratio
    log = Log(folder, environment)
    log.start()
    try:
        command = [sys.executable, "-m", "bench.waltz_node", "client", log.address, str(APPENDS)]
        client = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with client:
            assert client.stdin is not None
            assert client.stdout is not None
            client.stdout.readline()  # it is warm
            before = log.cpu_s()
            client.stdin.write("\n")
            client.stdin.flush()
            rate, own_cpu = (float(word) for word in client.stdout.readline().split() or ("0", "0"))
            spent = {who: seconds - before[who] for who, seconds in log.cpu_s().items()}
            client.communicate(timeout=CLIENT_S)
    finally:
        log.stop()
    if not rate:
        raise BenchError(f"the client ended with code {client.returncode}")
    return rate, {**spent, "client": own_cpu}


@contextmanager
def _collector() -> Iterator[str]:
    """Run the collector; gives its endpoint."""
    (port,) = free_ports(1)
    process = subprocess.Popen([sys.executable, "-m", "bench.trace_sink", str(port)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # it listens
        yield f"http://{HOST}:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=STOP_TIMEOUT_S)
