"""Three NATS servers with JetStream, and a client of as much of its protocol as a publish needs."""

import asyncio
import contextlib
import itertools
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

from bench.cluster import START_TIMEOUT_S, STOP_TIMEOUT_S, BenchError
from bench.machine import cpu_s
from tests.services.ports import free_ports

HOST = "127.0.0.1"
STREAM, SUBJECT = "BENCH", "bench"
CALL_S = 10.0
LINE_BYTES = 1 << 20


def found_server() -> str | None:
    """Return the program; Debian has it outside of users' paths."""
    return shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")


def syncs(program: str) -> bool:
    """Whether this version can sync each record before it acknowledges it; before 2.10 there is no setting for that."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v(\d+)\.(\d+)", said)
    return found is not None and (int(found[1]), int(found[2])) >= (2, 10)


class Connection:
    """A connection that publishes and waits for the acknowledgement of the stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._inbox = b"_INBOX.%x" % id(self)
        self._numbers = itertools.count()
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._unsent: list[bytes] = []
        self._listening = asyncio.create_task(self._listen(), name="nats")

    @classmethod
    async def open(cls, port: int) -> "Connection":
        """Connect."""
        reader, writer = await asyncio.open_connection(HOST, port, limit=LINE_BYTES)
        self = cls(reader, writer)
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        writer.write(b"CONNECT %s\r\nSUB %s.* 1\r\n" % (json.dumps(options).encode(), self._inbox))
        return self

    async def publish(self, data: bytes) -> None:
        """Publish one message and wait until the stream has it."""
        answer = await self.request(SUBJECT, data)
        if b'"seq"' not in answer:
            raise BenchError(f"JetStream did not take a message: {answer.decode(errors='replace')}")

    async def request(self, subject: str, data: bytes) -> bytes:
        """Publish and return the answer. What one turn of the loop publishes is one write."""
        number = b"%d" % next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(b"PUB %s %s.%s %d\r\n%s\r\n" % (subject.encode(), self._inbox, number, len(data), data))
        return await answer

    async def close(self) -> None:
        """Close it."""
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        self._writer.write(b"".join(unsent))

    async def _listen(self) -> None:
        while line := await self._reader.readline():
            verb, *words = line.split()
            if verb == b"PING":
                self._writer.write(b"PONG\r\n")
            elif verb in (b"MSG", b"HMSG"):
                body = await self._reader.readexactly(int(words[-1]) + 2)
                answer = self._waiting.pop(words[0].rpartition(b".")[2], None)
                if answer is not None and not answer.done():
                    answer.set_result(body[:-2])
            elif verb == b"-ERR":
                raise BenchError(f"NATS: {line.decode(errors='replace').strip()}")


class NatsCluster:
    """Servers on loopback, each with a folder below ``folder``, and a stream with a replica on each."""

    def __init__(self, program: str, folder: Path, servers: int) -> None:
        self._program, self._folder = program, folder
        ports = free_ports(2 * servers)
        self._ports, self._routes = ports[:servers], ports[servers:]
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the servers."""
        self._folder.mkdir(parents=True)
        sync = ", sync_interval: always" if syncs(self._program) else ""
        routes = ", ".join(f'"nats://{HOST}:{port}"' for port in self._routes)
        for number, (port, route) in enumerate(zip(self._ports, self._routes, strict=True)):
            file = self._folder / f"{number}.conf"
            file.write_text(
                f'listen: "{HOST}:{port}"\nserver_name: n{number}\n'
                f'jetstream {{ store_dir: "{self._folder / str(number)}"{sync} }}\n'
                f'cluster {{ name: bench, listen: "{HOST}:{route}", routes: [{routes}] }}\n',
                encoding="utf-8",
            )
            with (self._folder / f"{number}.log").open("ab") as log:
                command = [self._program, "-c", str(file)]
                self._processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    async def until_up(self) -> None:
        """Wait until the stream is made."""
        config = {"name": STREAM, "subjects": [SUBJECT], "storage": "file", "num_replicas": len(self._ports)}
        deadline = time.monotonic() + START_TIMEOUT_S
        said = "no connection"
        while time.monotonic() < deadline:
            if any(process.poll() is not None for process in self._processes):
                raise BenchError(f"a NATS server ended: {(self._folder / '0.log').read_text(encoding='utf-8')[-500:]}")
            with contextlib.suppress(OSError, TimeoutError):
                connection = await Connection.open(self._ports[0])
                try:
                    async with asyncio.timeout(CALL_S):
                        said = (
                            await connection.request(f"$JS.API.STREAM.CREATE.{STREAM}", json.dumps(config).encode())
                        ).decode(errors="replace")
                    if '"error"' not in said and '"did_create"' in said:
                        return
                finally:
                    await connection.close()
            await asyncio.sleep(0.2)
        raise BenchError(f"JetStream makes no stream: {said[:500]}")

    async def connect(self) -> Connection:
        """Return a connection to the first server."""
        return await Connection.open(self._ports[0])

    def cpu_s(self) -> dict[str, float]:
        """CPU time so far, in seconds: of this process, and of all servers together."""
        return {"client": time.process_time(), "all servers": sum(cpu_s(one.pid) for one in self._processes)}

    def stop(self) -> None:
        """Stop the servers."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(STOP_TIMEOUT_S)
