"""Who leads the simulated compute cluster: own generation against the catalog's, and the way to the right to write.

All of it is decided by compare-and-set in the catalog and in the tick log (docs/specs/compute.md 11); nothing counts
before it was read back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from pavane.compute.core.controller import ControllerCore
from pavane.compute.wire.common import CLOSED, Token
from pavane.compute.wire.responses import Blocker
from pavane.wire import LocalProtocolError

EXIT_FENCED = 0


class Outcome(Enum):
    """What became of the compare-and-set of the token."""

    PUT = "put"
    FENCED = "fenced"  # the stored token is not smaller
    DEFINITIONS_MOVED = "definitions moved"  # since those that run here were read


@dataclass(frozen=True, slots=True)
class PutToken:
    """Put ``token`` if the stored one is smaller and ``definitions`` is still their revision; then ``token_put``."""

    token: Token
    definitions: int


@dataclass(frozen=True, slots=True)
class ReadDefinitions:
    """Read the definitions again, run what they say, then ``definitions``."""


@dataclass(frozen=True, slots=True)
class FenceTicks:
    """Append a fence with ``token`` to the tick log, then ``ticks_fenced``."""

    token: Token


@dataclass(frozen=True, slots=True)
class AllowSinks:
    """``ControllerCore.tick`` with the floor, ``ControllerCore.allow_writes``, and mint from now on."""

    token: Token
    floor: int


@dataclass(frozen=True, slots=True)
class Exit:
    """End the process."""

    code: int
    reason: str


Effect = PutToken | ReadDefinitions | FenceTicks | AllowSinks | Exit


class _State(Enum):
    FOLLOWING = "following"
    PUTTING = "putting the token"
    FENCING = "fencing the tick log"
    LEADING = "leading"
    GONE = "gone"


class Leadership:
    """The right to write of one controller; ``boot`` is its own number in the catalog, raised at each start."""

    def __init__(self, generation: int, boot: int) -> None:
        self.token = Token(generation, boot)
        self.revision: int | None = None
        self._state = _State.FOLLOWING
        self._permitted = False
        self._ready = False

    @property
    def writes(self) -> bool:
        """Whether the catalog and the tick log carry our token: definitions may be changed, ticks minted."""
        return self._state is _State.LEADING

    @property
    def gone(self) -> bool:
        """Whether a successor has fenced us."""
        return self._state is _State.GONE

    def found(self, stored: Token | None, revision: int) -> tuple[Effect, ...]:
        """Take what a linearizable read of the catalog found at the start; ``None`` = no token."""
        self.revision = revision
        if stored is None or stored.generation == self.token.generation:
            self._permitted = self._ready = True
        elif stored.generation > self.token.generation:
            return self._go(f"fenced by the token {stored}")
        return self._proceed()

    def permitted(self) -> tuple[Effect, ...]:
        """Take the operator's AllowWrites. Again has no effect."""
        self._permitted = True
        return self._proceed()

    def definitions(self, revision: int, *, ready: bool) -> tuple[Effect, ...]:
        """Note that the definitions of this revision run here, and whether all of them have caught up."""
        self.revision, self._ready = revision, ready
        return self._proceed()

    def seen(self, stored: Token) -> tuple[Effect, ...]:
        """Take a token that a watch of the catalog, a chain or the tick log showed."""
        return self._go(f"fenced by the token {stored}") if stored > self.token else ()

    def token_put(self, outcome: Outcome) -> tuple[Effect, ...]:
        """Take the result of ``PutToken``. After a lost answer, put the token again: the same one counts as put."""
        if self._state is not _State.PUTTING:
            return ()
        match outcome:
            case Outcome.PUT:
                self._state = _State.FENCING
                return (FenceTicks(self.token),)
            case Outcome.DEFINITIONS_MOVED:
                self._state, self._ready = _State.FOLLOWING, False
                return (ReadDefinitions(),)
        return self._go("the catalog holds a token that is not smaller")

    def ticks_fenced(self, last: int) -> tuple[Effect, ...]:
        """Note that the tick log carries our token; ``last`` is the tick it ends with."""
        if self._state is not _State.FENCING:
            return ()
        self._state = _State.LEADING
        return (AllowSinks(self.token, last),)

    def _proceed(self) -> tuple[Effect, ...]:
        if self._state is not _State.FOLLOWING or not (self._permitted and self._ready):
            return ()
        if self.revision is None:
            raise LocalProtocolError("the right to write was asked for before the definitions were read")
        self._state = _State.PUTTING
        return (PutToken(self.token, self.revision),)

    def _go(self, reason: str) -> tuple[Effect, ...]:
        if self._state is _State.GONE:
            return ()
        self._state = _State.GONE
        return (Exit(EXIT_FENCED, reason),)


class CaughtUp:
    """Whether a read-only generation may take over: all collections close to the live ones, for some time.

    ``allowed_lag`` is in ticks, ``stability_s`` in seconds.
    """

    def __init__(self, allowed_lag: int = 100, stability_s: float = 5.0) -> None:
        self.allowed_lag = allowed_lag
        self.stability_s = stability_s
        self._since: float | None = None

    def blockers(
        self, core: ControllerCore, live: Mapping[str, int], tick: int, replicas: frozenset[str], now: float
    ) -> tuple[Blocker, ...]:
        """Return what is missing, nothing when all is well.

        ``live`` holds the write frontiers of the generation that serves, ``tick`` is the present one, ``replicas``
        are those that should be connected, ``now`` is in seconds.
        """
        found = [
            Blocker("ReplicaOffline", f"replica {name} is not connected", {"name": name})
            for name in sorted(replicas - core.connected.keys())
        ]
        for id_, collection in core.collections.items():
            if collection.dropped or id_.startswith("t"):
                continue
            lag = live.get(id_, tick) - collection.output
            if not collection.hydrated:
                found.append(Blocker("NotHydrated", f"{id_} has not reached the tick it starts at", {"id": id_}))
            elif live.get(id_) != CLOSED and lag > self.allowed_lag:
                found.append(Blocker("Lagging", f"{id_} is {lag} ticks behind", {"id": id_, "lag": str(lag)}))
        if found:
            self._since = None
            return tuple(found)
        if self._since is None:
            self._since = now
        left = self.stability_s - (now - self._since)
        text = f"all is well, for {left:.1f} s more"
        return (Blocker("WithinStabilityPeriod", text, {"left": f"{left:.1f}"}),) if left > 0 else ()
