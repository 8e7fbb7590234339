"""The clients of the npm package, driven from Python."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from tests.interop.raw import IDENT

LINE_BYTES = 64 << 20  # one answer: a log of entries in hex


class JsError(Exception):
    """A call failed; ``fields`` are those of the error object."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(f"{fields.get('name')}: {fields.get('text')}")
        self.fields = fields


class Javascript:
    """A process of ``zmq-raft/client.js``; its methods are those of that file."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def read(self) -> None:
        """Hand out answers until the process ends."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            waiting = self._waiting.pop(said["call"])
            if waiting.done():
                continue
            if "error" in said:
                waiting.set_exception(JsError(said["error"]))
            else:
                waiting.set_result(said["result"])
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(EOFError("the JavaScript process ended; its errors are on standard error"))

    async def call(self, method: str, *arguments: object) -> Any:
        """Return what a method of client.js returns; raises JsError."""
        assert self._process.stdin is not None
        number = next(self._numbers)
        result = self._waiting[number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"call": number, "method": method, "arguments": arguments})
        self._process.stdin.write(line.encode() + b"\n")
        return await result


@asynccontextmanager
async def javascript(node: str, package: Path) -> AsyncIterator[Javascript]:
    """Run the driver; it ends with the block."""
    script = Path(__file__).parent / "zmq-raft" / "client.js"
    process = await asyncio.create_subprocess_exec(
        *(node, "--no-deprecation", script, package, IDENT.decode()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES,
    )
    driver = Javascript(process)
    reading = asyncio.create_task(driver.read())
    try:
        yield driver
    finally:
        process.kill()
        await process.wait()
        await reading
