"""What the stage server needs of the program behind it: the port that each pod role implements."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pavane.compute.wire.common import Token
from pavane.compute.wire.responses import Blocker


@dataclass(frozen=True, slots=True)
class RoleReport:
    """What a role says about itself; stage, generation and token are added by the server.

    ``progress`` and ``target`` are in the kind's unit (docs/specs/compute.md 6), the write times are Unix times in
    milliseconds, 0 = none; ``write_gap_ms`` is for roles that take the right to write part by part. ``fence`` is the
    greatest token in the store, told by a role that reads it there.
    """

    progress: int = 0
    target: int = 0
    blockers: tuple[Blocker, ...] = ()
    leads: bool = False
    done: bool = False
    first_write_ms: int = 0
    last_write_ms: int = 0
    write_gap_ms: int = 0
    fence: Token | None = None


class Role(Protocol):
    """A pod's program. The hooks are called one at a time; an exception of one ends the process."""

    @property
    def kind(self) -> str:
        """``CreateInstance.kind`` of this role, for example ``raft``."""

    @property
    def generation(self) -> int:
        """The pod's own generation number."""

    @property
    def unit(self) -> str:
        """What ``progress`` and ``target`` count, for example ``entries``."""

    @property
    def live_settings(self) -> frozenset[str]:
        """Keys of UpdateConfiguration that may change at any time."""

    @property
    def told_settings(self) -> frozenset[str]:
        """Keys that count only while a stream tells the expected state; they are handed to ``read_write``."""

    @property
    def token(self) -> Token | None:
        """The greatest token on the pod's volume."""

    def configure(self, settings: Mapping[str, str]) -> None:
        """Apply live settings."""

    async def read_only(self) -> None:
        """Begin to follow and to serve reads."""

    async def read_write(self, token: Token, told: Mapping[str, str]) -> bool:
        """Store ``token`` durably, then begin to write; returns whether the role did.

        A role that must not write yet stays read-only, returns ``False`` and says why in the blockers of its report.
        """

    def report(self) -> RoleReport:
        """Return the present moment; called often, so it costs little."""
