"""A pod starts programs while gRPC works in it, as PySpark starts Java: with a function between fork and exec."""

import subprocess
import sys

FORKS = 60
"""With the fork handlers of gRPC about eight of them die."""
POD = """
import asyncio, subprocess, sys
from pavane.pods import main
main.run()  # which names no pod here; gRPC is imported later, as in a pod
import grpc.aio

async def echo(requests, _):
    async for request in requests:
        yield request

def start():
    def nothing():
        pass
    programs = [sys.executable, "-S", "-c", ""]
    return [subprocess.Popen(programs, preexec_fn=nothing).wait() for _ in range(int(sys.argv[1]))]

async def talk(port, done):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream("/test.Test/echo")()
        while not done.is_set():
            await call.write(b"x")
            await call.read()
        await call.done_writing()

async def run():
    server, done = grpc.aio.server(), asyncio.Event()
    method = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", {"echo": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    talking = [asyncio.create_task(talk(port, done)) for _ in range(4)]
    print(sum(code != 0 for code in await asyncio.to_thread(start)), flush=True)
    done.set()
    await asyncio.gather(*talking)
    await server.stop(0)

asyncio.run(run())
"""


def test_programs_that_a_pod_starts_do_not_die_of_grpc() -> None:
    command = [sys.executable, "-c", POD, str(FORKS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.stdout == "0\n", done.stderr[-2000:]
