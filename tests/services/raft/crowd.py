"""A program that is many clients at once, in plain ZMTP 3: ``crowd.py URL SECRET IDLE STOPPED``.

The idle ones ask one question and answer heartbeats from then on. The stopped ones ask for the whole log and read
nothing of it. When all are connected and the idle ones have their answer it says ``ready``.
"""

import asyncio
import sys
from collections.abc import Callable

from pavane.raft.wire.requests import RequestConfig, RequestEntries
from tests.services.raft.lock_holder import say

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
PING, PONG = b"\x04PING", b"\x04\x05\x04PONG"
AT_ONCE = 100  # connections being made: more would overflow the listener's backlog


def message(*parts: bytes | memoryview) -> bytes:
    """Short frames, all but the last marked as having more behind them."""
    last = len(parts) - 1
    return b"".join(bytes([at < last, len(part)]) + bytes(part) for at, part in enumerate(parts))


class Member(asyncio.Protocol):
    """One client: greets, says that it is a DEALER, asks, and then reads or does not."""

    def __init__(self, question: bytes, *, reads: bool) -> None:
        self._question = question
        self._reads = reads
        self._step = 0
        self._seen = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(GREETING)

    def data_received(self, data: bytes) -> None:
        if PING in data:
            self._transport.write(PONG)
        if self.done.done():
            return
        self._seen += data
        steps: list[Callable[[], bool]] = [
            lambda: self._after(len(GREETING), READY),
            lambda: self._after(len(READY), self._question),
            lambda: bool(self._seen),
        ]
        while self._step < len(steps) and steps[self._step]():
            self._step += 1
        if self._step == 2 and not self._reads:
            self._transport.pause_reading()
        if self._step == 3 or (self._step == 2 and not self._reads):
            self._seen = b""
            self.done.set_result(None)

    def _after(self, length: int, answer: bytes) -> bool:
        if len(self._seen) < length:
            return False
        self._seen = self._seen[length:]
        self._transport.write(answer)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the peer hung up"))


async def main(url: str, secret: str, idle: str, stopped: str) -> None:
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    ask = message(b"ask", *RequestConfig().encode(secret.encode()))
    read = message(b"read", *RequestEntries(0).encode(secret.encode()))
    turn = asyncio.Semaphore(AT_ONCE)

    async def join(question: bytes, *, reads: bool) -> Member:
        async with turn:
            _, member = await asyncio.get_running_loop().create_connection(
                lambda: Member(question, reads=reads), host, int(port)
            )
            await member.done
        return member

    members = await asyncio.gather(
        *(join(ask, reads=True) for _ in range(int(idle))), *(join(read, reads=False) for _ in range(int(stopped)))
    )
    say(f"ready {len(members)}")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
