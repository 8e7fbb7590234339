"""What `bench.ambrosia` runs: two immortals, or the two ends of gRPC; `python -m bench.ambrosia_app ROLE FOLDER`."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio

from pavane.ambrosia import Immortal, method, serve

IN_FLIGHT = 64
SIZES = {16: 32, 256: 32, 4096: 32, 65_536: 8}
"""Bytes of a call, and how many each of the callers in flight makes."""
ALONE = 100
"""Calls one after the other, for the latency."""
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


async def figures(worker: Worker) -> dict[str, float]:
    """Return the rate for each size, and the milliseconds of a call that is alone."""
    await rate(worker, 16, 2)  # streams, caches
    found = {str(size): await rate(worker, size, each) for size, each in SIZES.items()}
    began = time.perf_counter()
    await worker(16, ALONE)
    return {**found, "ms": (time.perf_counter() - began) / ALONE * 1000}


async def called(folder: str) -> None:
    """Serve `Echo` for ever."""
    async with serve(Echo, name="echo", log=folder) as echo:
        await echo.stopped()


async def calling(folder: str) -> None:
    """Print the figures of two immortals."""
    async with serve(Caller, name="caller", log=folder) as caller:

        async def worker(size: int, calls: int) -> None:
            await caller.call(Caller.work, size, calls)

        found = await figures(worker)
        await caller.call(Caller.haunt, DEAD_CALLS)
        found["256 beside a dead peer"] = await rate(worker, 256, SIZES[256])
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
    temporary = Path(folder, "port.tmp")
    temporary.write_text(str(port))
    temporary.rename(Path(folder, "port"))
    await server.wait_for_termination()


async def grpc_calling(folder: str) -> None:
    """Print the figures of gRPC."""
    port = Path(folder, "port").read_text()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        echo: Any = channel.unary_unary(f"/{SERVICE}/{METHOD}")

        async def worker(size: int, calls: int) -> None:
            data = bytes(size)
            for _ in range(calls):
                await echo(data)

        sys.stdout.write(json.dumps(await figures(worker)) + "\n")


ROLES = {"called": called, "calling": calling, "grpc-called": grpc_called, "grpc-calling": grpc_calling}

if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[1]](sys.argv[2]))
    os._exit(0)  # gRPC's threads have nothing more to say
