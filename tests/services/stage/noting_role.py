"""A small role for tests of the stage port: it remembers what it was told."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from pavane.compute.wire.common import Token
from pavane.stage.role import RoleReport


@dataclass
class NotingRole:
    kind: str = "raft"
    generation: int = 3
    unit: str = "entries"
    live_settings: frozenset[str] = frozenset({"snapshot.entries"})
    told_settings: frozenset[str] = frozenset({"bootstrap", "initial"})
    token: Token | None = None
    may_write: bool = True
    latest: RoleReport = field(default_factory=RoleReport)
    calls: list[object] = field(default_factory=list)
    gate: asyncio.Event | None = None
    at_gate: bool = False

    def configure(self, settings: Mapping[str, str]) -> None:
        self.calls.append(("configure", dict(settings)))

    async def read_only(self) -> None:
        if self.gate is not None:
            self.at_gate = True
            await self.gate.wait()
        self.calls.append("read_only")

    async def read_write(self, token: Token, told: Mapping[str, str]) -> bool:
        self.calls.append(("read_write", token, dict(told)))
        return self.may_write

    def report(self) -> RoleReport:
        return self.latest
