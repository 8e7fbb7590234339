"""Members that others run, beside those of a SwimGroup: processes of their own, and what they see."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from pavane.swim.core.outputs import Happened
from tests.services.swim.standalone import Members


class Foreigners:
    """They follow their group from the time when they are made."""

    def __init__(self, processes: Members, names: Sequence[str]) -> None:
        self.names = names
        self._processes = processes
        self._events: dict[str, list[tuple[str, int]]] = {name: [] for name in names}

    @property
    def seed(self) -> str:
        """Address of the first one."""
        return self._processes.addresses[self.names[0]]

    async def follow(self, name: str) -> None:
        """Note all that this one hears, for as long as it runs."""
        watching = self._processes.asked(name, "watch")
        await anext(watching)  # the list as it stands
        async for event in watching:
            if "member" in event:
                self._events[name].append((event["event"], event["member"]["id"]))

    async def tables(self) -> list[set[int]]:
        """Of whom each of them knows."""
        return [set(await self._processes.sees(name)) for name in self.names]

    def heard(self, kind: Happened) -> list[set[int]]:
        """Of whom each of them heard this."""
        return [{id_ for event, id_ in events if event == kind} for events in self._events.values()]


@contextlib.asynccontextmanager
async def foreigners(group: str, key: str, count: int) -> AsyncIterator[Foreigners]:
    """So many of them, of which all know the first, with the times of a network: tests keep this machine busy."""
    names = [f"f{number}" for number in range(count)]
    with tempfile.TemporaryDirectory() as folder:  # a short path, for their sockets
        keys = Path(folder, "keys")
        keys.write_text(f"{key}\n")
        processes = Members(Path(folder), profile="lan")
        try:
            for name in names:
                await processes.up(name, "--group", group, "--keys-file", str(keys))
            found = Foreigners(processes, names)
            async with asyncio.TaskGroup() as tasks:
                following = [tasks.create_task(found.follow(name)) for name in names]
                yield found
                assert not any(task.done() for task in following), "a foreign member ended"
                for task in following:
                    task.cancel()
        finally:
            await processes.stop_all()
