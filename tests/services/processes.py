"""Commands of ``pavane`` that run as processes of their own."""

import asyncio
import os
import sys
from contextlib import suppress

PIPE = asyncio.subprocess.PIPE
STARTED_S = 40.0


class Processes:
    """Processes by the names of what runs in them; all are gone when the test is over."""

    def __init__(self, **environment: str) -> None:
        self._environment = {**os.environ, **environment}
        self.running: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str, *arguments: str, limit: str = "") -> asyncio.subprocess.Process:
        """Start `pavane`; ``limit`` is a shell command for its process, such as a limit of the size of files."""
        command = [sys.executable, "-m", "pavane_cli.main", *arguments]
        if limit:
            command = ["sh", "-c", f'{limit}; exec "$@"', "sh", *command]
        process = await asyncio.create_subprocess_exec(*command, env=self._environment, stdout=PIPE, stderr=PIPE)
        self.running[name] = process
        return process

    async def stop_all(self) -> None:
        for process in self.running.values():
            with suppress(ProcessLookupError):
                process.kill()
            await process.communicate()


async def first_line(process: asyncio.subprocess.Process) -> str:
    """Return what it says first, which is that it is up."""
    assert process.stdout is not None
    async with asyncio.timeout(STARTED_S):
        return (await process.stdout.readline()).decode()


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    """Return exit code, standard output and standard error."""
    async with asyncio.timeout(STARTED_S):
        output, errors = await process.communicate()
    return process.returncode, output.decode(), errors.decode()
