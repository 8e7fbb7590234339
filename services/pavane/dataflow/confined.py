"""User's SQL in processes of its own: what it does to one of them, it does to nobody else (docs/specs/compute.md 16.7).

DuckDB's own limits do not hold: functions of text and lists allocate what no limit counts, and some cannot be
interrupted. So the system holds them: an address space, processor time, and an end. A process answers one query after
another; one whose query ended badly is replaced.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import pyarrow as pa

from pavane.dataflow.evaluating import Evaluator, Limits, QueryError, QueryTooLarge, QueryTooSlow
from pavane.dataflow.rows import stream_of

if TYPE_CHECKING:
    from pavane.dataflow.querying import Query

START_S = 30.0
"""Until a process is ready; it takes 0.6 s on an idle machine."""
GRACE_S = 1.0
"""Between the end of a query's time, at which it is interrupted, and that of its process."""
LENGTH_BYTES = 8
READ_BYTES = 1 << 20
"""Of an answer at once."""
_STATM = Path("/proc/self/statm")
_ERRORS: dict[str, type[QueryError]] = {each.__name__: each for each in (QueryError, QueryTooLarge, QueryTooSlow)}


class Confined:
    """Answers queries in up to so many processes at once; further ones wait. For one event loop."""

    def __init__(self, limits: Limits | None = None, processes: int = 1) -> None:
        self._limits = limits or Limits()
        self._turns = asyncio.Semaphore(processes)
        self._idle: list[_Child] = []
        self._busy = 0
        self._ending: set[asyncio.Task[None]] = set()

    def warm(self) -> None:
        """Start a process unless there is one: the first query then waits less."""
        if not self._idle and not self._busy:
            self._idle.append(_Child(self._limits))

    async def answer(self, query: Query, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the rows of a query over rows and how often each is there. Raises `QueryError`.

        Who stops waiting ends the query.
        """
        sql = await asyncio.to_thread(query.translated)
        async with self._turns:
            child = self._free()
            self._busy += 1
            sound = False
            try:
                table = await child.answer(sql, tables)
                sound = True
                return table
            except QueryError as error:
                sound = type(error) is QueryError
                raise query.placed(error) from error
            finally:
                self._busy -= 1
                if not sound:
                    self._end(child)
                    child = _Child(self._limits)  # at once: the next query is not to wait for its start
                self._idle.append(child)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the processes."""
        while self._idle:
            self._end(self._idle.pop())
        await asyncio.gather(*self._ending)

    def _free(self) -> _Child:
        while self._idle:
            child = self._idle.pop()
            if child.usable:
                return child
            self._end(child)
        return _Child(self._limits)

    def _end(self, child: _Child) -> None:
        task = asyncio.create_task(child.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class _Child:
    """A process that answers queries, as its parent sees it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._ready = False
        self._starting = asyncio.create_task(self._start())

    async def _start(self) -> Process:
        # One arena: each further one would take 64 MB of the address space that the limit counts.
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        given = json.dumps(asdict(self._limits))
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, given, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment,
            limit=READ_BYTES,
        )  # fmt: skip

    @property
    def usable(self) -> bool:
        """Whether it is not known to have died, for which the next query could not help."""
        if not self._starting.done():
            return True
        return self._starting.exception() is None and self._starting.result().returncode is None

    async def answer(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Raises `QueryError`, and its subclasses where the process is of no further use."""
        try:
            process = await asyncio.shield(self._starting)
        except OSError as error:
            raise QueryTooLarge(f"a process for queries cannot start: {error}") from error
        frames = await asyncio.to_thread(_request, sql, tables)
        try:
            if not self._ready:
                async with asyncio.timeout(START_S):
                    await self._frame(process)
                self._ready = True
            limit = None if self._limits.seconds is None else self._limits.seconds + GRACE_S
            async with asyncio.timeout(limit):
                return await self._exchange(process, frames)
        except TimeoutError as error:
            if not self._ready:
                raise QueryTooSlow(f"no process for queries started within {START_S:g} s: ask again") from error
            raise QueryTooSlow(self._limits.no_time) from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise self._died(await process.wait()) from error

    async def _exchange(self, process: Process, frames: list[bytes | pa.Buffer]) -> pa.Table:
        assert process.stdin is not None  # noqa: S101 - it was asked for
        for frame in frames:
            process.stdin.write(len(frame).to_bytes(LENGTH_BYTES))
            process.stdin.write(memoryview(frame))
            await process.stdin.drain()
        told = json.loads(await self._frame(process))
        if told["error"] is not None:
            raise _ERRORS[told["error"]](told["text"])
        return pa.ipc.open_stream(await self._frame(process)).read_all()

    async def _frame(self, process: Process) -> bytes:
        assert process.stdout is not None  # noqa: S101 - it was asked for
        return await process.stdout.readexactly(int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES)))

    def _died(self, code: int) -> QueryError:
        if code == -signal.SIGXCPU:
            return QueryTooSlow(self._limits.no_time)
        if not self._ready:
            return QueryTooLarge(
                f"a process for queries cannot start here (exit code {code}): it lacks memory or files"
            )
        return QueryTooLarge(f"{self._limits.no_room}: its process ended with code {code}")

    async def close(self) -> None:
        """End it, whatever it does."""
        try:
            process = await self._starting
        except OSError:
            return  # it never was
        if process.returncode is None:
            process.kill()
        await process.communicate()


def _request(sql: str, tables: Mapping[str, pa.Table]) -> list[bytes | pa.Buffer]:
    written = [stream_of(table) for table in tables.values()]
    return [json.dumps({"sql": sql, "tables": list(tables), "bytes": sum(map(len, written))}).encode(), *written]


# --- in the child -----------------------------------------------------------------------------------------------------


def _work() -> None:
    limits = Limits(**json.loads(sys.argv[1]))
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints is no answer
    evaluator = Evaluator(limits)
    evaluator.answer("SELECT 1", {})  # what is loaded late is loaded before it counts
    held = _address_space_bytes()
    _send(answers, b"")
    while (head := _receive(asked)) is not None:
        request = json.loads(head)
        _confine(held + request["bytes"] + limits.memory_bytes, limits.seconds)
        told: dict[str, Any] = {"error": None}
        table = None
        try:
            tables = {name: pa.ipc.open_stream(_receive(asked)).read_all() for name in request["tables"]}
            table = stream_of(evaluator.answer(request["sql"], tables))
        except QueryError as error:
            told = {"error": type(error).__name__, "text": error.text}
        except MemoryError:
            told = {"error": QueryTooLarge.__name__, "text": limits.no_room}
        _send(answers, json.dumps(told).encode(), *([] if table is None else [table]))


def _confine(space_bytes: int, seconds: float | None) -> None:
    """Let this process have so much memory, and processor time for a query, from the system itself."""
    if _STATM.exists():  # elsewhere nobody knows what it has already
        resource.setrlimit(resource.RLIMIT_AS, (space_bytes, resource.RLIM_INFINITY))
    if seconds is not None:  # the parent, who ends it earlier, may be gone
        whole = int(time.process_time() + seconds + GRACE_S) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (whole, resource.RLIM_INFINITY))


def _address_space_bytes() -> int:
    return int(_STATM.read_text("ascii").split()[0]) * resource.getpagesize() if _STATM.exists() else 0


def _receive(source: BinaryIO) -> bytes | None:
    """Return the next frame, None at the end."""
    length = source.read(LENGTH_BYTES)
    return source.read(int.from_bytes(length)) if len(length) == LENGTH_BYTES else None


def _send(target: BinaryIO, *frames: bytes | pa.Buffer) -> None:
    for frame in frames:
        target.write(len(frame).to_bytes(LENGTH_BYTES))
        target.write(frame)
    target.flush()


if __name__ == "__main__":
    _work()
