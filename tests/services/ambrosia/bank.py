"""The bank of the examples as processes: accounts that tests start, kill and ask."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2

from tests.services.eventually import eventually

BANK = Path(__file__).parents[3] / "examples" / "bank"
WAIT_S = 60.0


class Account:
    """One account: `pavane ambrosia run`, and its coordinator."""

    def __init__(
        self,
        folder: Path,
        name: str,
        environment: Mapping[str, str] | None = None,
        application: str = "bank:Account",
        options: Sequence[str] = (),
    ) -> None:
        self.folder, self.name, self.application = folder, name, application
        self._options = options
        self._environment = dict(environment or {})
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = [sys.executable, "-m", "pavane_cli.main", "ambrosia", "run", self.application, "--name", self.name]
        with (self.folder / f"{self.name}.out").open("ab") as out:
            self.process = await asyncio.create_subprocess_exec(
                *command,
                "--log",
                str(self.folder),
                *self._options,
                cwd=BANK,
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", **self._environment},
            )

    def coordinator(self) -> int:
        row = json.loads((self.folder / "registry" / f"{self.name}.json").read_text())
        return int(row["process"].rpartition(":")[2])

    async def kill(self, *what: str) -> None:
        """Kill, and wait until both have ended: each ends when it loses the other."""
        coordinator = self.coordinator()
        if "coordinator" in what:
            kill(coordinator)
        if "application" in what and self.process is not None:
            self.process.kill()
        if self.process is not None:
            await self.process.wait()
        await eventually(lambda: not alive(coordinator), WAIT_S)

    async def ask(self, verb: str, path: str, key: str = "", body: Any = None, **more: str) -> Any:
        """Repeat until it answers, as a client with a key may; ``more`` are headers."""
        async with asyncio.timeout(WAIT_S), httpx2.AsyncClient(trust_env=False, timeout=WAIT_S) as client:
            while True:
                with contextlib.suppress(httpx2.HTTPError, FileNotFoundError):
                    address = (self.folder / f"{self.name}.http").read_text().strip()
                    headers = {"Idempotency-Key": key, **more} if key else more
                    answer = await client.request(verb, f"http://{address}{path}", headers=headers, json=body)
                    if answer.status_code != 503:
                        return answer.json()
                await asyncio.sleep(0.05)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
