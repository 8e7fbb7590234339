"""What `bench.ambrosia` runs: two immortals, or the two ends of gRPC; `python -m bench.ambrosia_app ROLE FOLDER`."""

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio

from bench.machine import cpu_s
from pavane.ambrosia import Immortal, method, serve

IN_FLIGHT = 64
SIZES = {16: 200, 256: 200, 4096: 50, 65_536: 8}
"""Bytes of a call, and how many each of the callers in flight makes."""
RUNS = 3
"""Of each size; the median counts."""
ALONE = (20, 20)
"""So often so many calls one after the other, for the latency."""
DEAD_CALLS = 2_000
SERVICE, METHOD = "bench.Echo", "echo"
Worker = Callable[[int, int], Awaitable[object]]


class Echo(Immortal):
    """Is called."""

    handled: int = 0

    @method
    def echo(self, data: bytes) -> int:
        """Count the call; a short answer."""
        self.handled += 1
        return len(data)


class Caller(Immortal):
    """Calls."""

    done: int = 0

    @method
    async def work(self, size: int, calls: int) -> None:
        """Call one after the other."""
        data = bytes(size)
        for _ in range(calls):
            await self.call(Echo.echo, "echo", data)

    @method
    def haunt(self, calls: int) -> None:
        """Call an immortal that never was."""
        for _ in range(calls):
            self.fork(Echo.echo, "nobody", bytes(1024))


async def rate(worker: Worker, size: int, each: int) -> float:
    """Return calls per second with `IN_FLIGHT` callers."""
    began = time.perf_counter()
    await asyncio.gather(*(worker(size, each) for _ in range(IN_FLIGHT)))
    return IN_FLIGHT * each / (time.perf_counter() - began)


async def figures(worker: Worker, processes: dict[str, int]) -> dict[str, Any]:
    """Return for each size the rate and each process's µs of CPU per call, and the milliseconds of a call alone."""
    await rate(worker, 16, 2)  # streams, caches
    found: dict[str, Any] = {}
    for size, each in SIZES.items():
        before = {name: cpu_s(pid) for name, pid in processes.items()}
        found[str(size)] = statistics.median([await rate(worker, size, each) for _ in range(RUNS)])
        calls = RUNS * IN_FLIGHT * each
        found[f"{size} CPU"] = {name: (cpu_s(pid) - before[name]) / calls * 1e6 for name, pid in processes.items()}
    times = []
    for _ in range(ALONE[0]):
        began = time.perf_counter()
        await worker(16, ALONE[1])
        times.append((time.perf_counter() - began) / ALONE[1] * 1000)
    return {**found, "ms": statistics.median(times)}


def coordinator_of(folder: str, name: str) -> int:
    """Return the process of an immortal's coordinator."""
    row = json.loads(Path(folder, "registry", f"{name}.json").read_bytes())
    return int(row["process"].rpartition(":")[2])


def left(folder: str, name: str) -> str:
    """Return what the one that is called has left in a file."""
    return Path(folder, name).read_text(encoding="utf-8")


def leave(folder: str, name: str, text: str) -> None:
    """Leave it, as a whole."""
    temporary = Path(folder, f"{name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.rename(Path(folder, name))


async def called(folder: str) -> None:
    """Serve `Echo` for ever."""
    leave(folder, "pid", f"{os.getpid()}")
    async with serve(Echo, name="echo", log=folder) as echo:
        await echo.stopped()


async def calling(folder: str) -> None:
    """Print the figures of two immortals."""
    async with serve(Caller, name="caller", log=folder) as caller:

        async def worker(size: int, calls: int) -> None:
            await caller.call(Caller.work, size, calls)

        await rate(worker, 16, 2)  # the other one is there
        processes = {
            "caller": os.getpid(),
            "its coordinator": coordinator_of(folder, "caller"),
            "the other coordinator": coordinator_of(folder, "echo"),
            "called": int(left(folder, "pid")),
        }
        found = await figures(worker, processes)
        await caller.call(Caller.haunt, DEAD_CALLS)
        beside = [await rate(worker, 256, SIZES[256]) for _ in range(RUNS)]
        found["256 beside a dead peer"] = statistics.median(beside)
        sys.stdout.write(json.dumps(found) + "\n")


async def _answer(request: bytes, _: object) -> bytes:
    return len(request).to_bytes(4, "little")


async def grpc_called(folder: str) -> None:
    """Serve gRPC for ever; the port is left in the folder."""
    server = grpc.aio.server()
    handler: Any = grpc.unary_unary_rpc_method_handler(_answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    leave(folder, "pid", f"{os.getpid()}")
    leave(folder, "port", f"{port}")
    await server.wait_for_termination()


async def grpc_calling(folder: str) -> None:
    """Print the figures of gRPC."""
    processes = {"caller": os.getpid(), "called": int(left(folder, "pid"))}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{left(folder, 'port')}") as channel:
        echo: Any = channel.unary_unary(f"/{SERVICE}/{METHOD}")

        async def worker(size: int, calls: int) -> None:
            data = bytes(size)
            for _ in range(calls):
                await echo(data)

        sys.stdout.write(json.dumps(await figures(worker, processes)) + "\n")


ROLES = {"called": called, "calling": calling, "grpc-called": grpc_called, "grpc-calling": grpc_calling}

if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[1]](sys.argv[2]))
    os._exit(0)  # gRPC's threads have nothing more to say
