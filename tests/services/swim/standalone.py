"""Standalone members of SWIM groups, as processes."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from pavane.swim.config import id_of_name
from pavane.swim.control import ask
from tests.services.processes import STARTED_S, Processes, ended, first_line


class Members(Processes):
    """Members as processes of one user, whose control sockets are in ``folder``."""

    def __init__(self, folder: Path, profile: str = "local") -> None:
        super().__init__(XDG_RUNTIME_DIR=str(folder), COLUMNS="200")
        self.folder = folder
        self.profile = profile
        self.addresses: dict[str, str] = {}

    async def up(self, name: str, *options: str) -> None:
        """Start a member, with the first one as its seed, and wait until it is up."""
        seeds = [option for address in [*self.addresses.values()][:1] for option in ("--seed", address)]
        options = ("--name", name, "--bind", "127.0.0.1:0", "--profile", self.profile, *seeds, *options)
        up, who, self.addresses[name] = (await first_line(await self.start(name, "swim", "member", *options))).split()
        assert (up, who) == ("up", name)

    async def call(self, *arguments: str) -> tuple[int | None, str, str]:
        """Run a command; returns exit code, output and errors."""
        return await ended(await self.start(" ".join(arguments), "swim", *arguments))

    def asked(self, name: str, what: str) -> AsyncGenerator[dict[str, Any], None]:
        """Return what ``name`` answers by its control socket."""
        return ask(self.folder / "pavane-swim" / f"{name}.sock", {"do": what})

    async def sees(self, name: str) -> dict[int, str]:
        """Return the members that ``name`` sees."""
        answer = await anext(self.asked(name, "members"))
        return {member["id"]: member["state"] for member in answer["members"]}

    async def agree(self, *names: str) -> None:
        wanted = {id_of_name(name): "alive" for name in names}
        for name in names:
            async with asyncio.timeout(STARTED_S):
                while await self.sees(name) != wanted:
                    await asyncio.sleep(0.02)

    async def end(self, name: str, number: int) -> int | None:
        process = self.running.pop(name)
        process.send_signal(number)
        return (await ended(process))[0]
