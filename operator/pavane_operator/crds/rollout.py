"""`spec.rollout`: how a new generation becomes the active one (docs/specs/operator.md 1.3)."""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from pavane_operator.crds.base import COUNTER_MAX, NO_DEFAULT_KEY, Mark, Model, Name, marked, rule, rules
from pavane_operator.crds.gates import GATES_MAX_ITEMS, GateSpec
from pavane_operator.crds.values import Duration
from pavane_operator.crds.windows import WINDOWS_MAX_ITEMS, Window

LAG_MAX = 1_000_000_000
"""Largest allowed lag: beyond it *caught up* says nothing."""
CRASH_LIMIT_MAX = 1000
"""Back-off between restarts grows to five minutes, so more would be days."""
REPAIR_PATTERN = r"^[1-9][0-9]{0,14}(\.[1-9][0-9]{0,3})?$"
"""Number of a generation, then which repair of it; nobody repairs one generation ten thousand times."""
REPAIR_MAX_CHARACTERS = 20
"""What the pattern allows at most."""


class Strategy(StrEnum):
    """When a new generation is promoted."""

    WHEN_CAUGHT_UP = "WhenCaughtUp"
    MANUAL = "Manual"
    IMMEDIATE = "Immediate"


class OnDeadline(StrEnum):
    """What happens when an attempt takes too long."""

    HOLD = "Hold"
    ABORT = "Abort"


class CaughtUpSpec(Model):
    """When a generation counts as caught up."""

    allowed_lag: int = Field(default=100, ge=0, le=LAG_MAX, json_schema_extra=marked(Mark.CONTROL))
    """How far each pod may lag behind, in the kind's unit."""
    stability_period: Duration = Field(
        default="5s",
        json_schema_extra=marked(
            Mark.CONTROL,
            **rules(rule("duration(self) <= duration('1h')", "stabilityPeriod must be between 0s and 1h")),
        ),
    )
    """How long each pod must stay within that lag without interruption, 0s to 1h."""


_BAKING_GATES = rule(
    "!has(self.gates) || has(self.bake) || !self.gates.exists(g, "
    "(has(g.onFailure) && g.onFailure == 'SwitchBack') || (has(g.phase) && g.phase == 'Baking'))",
    "onFailure SwitchBack and phase Baking need rollout.bake",
)


class RolloutSpec(Model):
    """How a new generation becomes the active one, and your decisions about the current attempt."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("!has(self.bake)", "rollout.bake is not available for this kind yet: remove it, undo rolls out anew"),
            _BAKING_GATES,
        )
    )

    strategy: Strategy = Field(default=Strategy.WHEN_CAUGHT_UP, json_schema_extra=marked(Mark.CONTROL))
    """WhenCaughtUp promotes automatically. Manual waits for `promote`. Immediate promotes as soon as all pods are
    read-only; writes may then pause until the new generation has caught up."""
    paused: bool = Field(default=False, json_schema_extra=marked(Mark.CONTROL, **{NO_DEFAULT_KEY: True}))
    """Start no new attempt. A running attempt keeps catching up but is not promoted."""
    promote: int | None = Field(default=None, ge=1, le=COUNTER_MAX, json_schema_extra=marked(Mark.CONTROL))
    """Number of the attempt (`status.nextGeneration`) that you approve under Manual."""
    force_promote: int | None = Field(default=None, ge=1, le=COUNTER_MAX, json_schema_extra=marked(Mark.CONTROL))
    """Number of the attempt to promote even if it has not caught up, is not approved or is paused. The safety minimum
    still applies."""
    abort: int | None = Field(default=None, ge=1, le=COUNTER_MAX, json_schema_extra=marked(Mark.CONTROL))
    """Number of the attempt to abort."""
    retry: int | None = Field(default=None, ge=1, le=COUNTER_MAX, json_schema_extra=marked(Mark.CONTROL))
    """Number of the failed attempt (`status.failed.generation`) to try again."""
    repair: Annotated[str, Field(pattern=REPAIR_PATTERN, max_length=REPAIR_MAX_CHARACTERS)] | None = Field(
        default=None, json_schema_extra=marked(Mark.CONTROL)
    )
    """`n` or `n.k`: re-render the pods of generation n (active or being promoted) in place from this spec, for the k-th
    time. Pods that are not Ready are replaced and keep their volumes; all others stay."""
    restart: Name = Field(default="", json_schema_extra=marked(Mark.POD, **{NO_DEFAULT_KEY: True}))
    """Any text. Changing it rolls out a new generation with an otherwise unchanged spec."""
    caught_up: CaughtUpSpec = Field(default_factory=CaughtUpSpec)
    """When a generation counts as caught up."""
    deadline: Duration = Field(default="30m", json_schema_extra=marked(Mark.CONTROL))
    """Maximum time from the start of an attempt to its promotion, without time paused or waiting for approval or a
    window. It ends no attempt that only waits for the rest of `for` of gates that are good."""
    on_deadline: OnDeadline = Field(default=OnDeadline.HOLD, json_schema_extra=marked(Mark.CONTROL))
    """Hold keeps trying and sets Stalled; Abort aborts the attempt."""
    crash_limit: int = Field(default=5, ge=0, le=CRASH_LIMIT_MAX, json_schema_extra=marked(Mark.CONTROL))
    """Container restarts of one new pod before the attempt is aborted; 0 means never."""
    retire_delay: Duration = Field(default="30s", json_schema_extra=marked(Mark.CONTROL))
    """How long the fenced old generation stays, so that clients can follow."""
    bake: Duration | None = Field(
        default=None,
        json_schema_extra=marked(
            Mark.CONTROL,
            **rules(
                rule(
                    "duration(self) >= duration('1s') && duration(self) <= duration('24h')",
                    "bake must be between 1s and 24h",
                )
            ),
        ),
    )
    """How long the old generation, with its pods and volumes, follows the new one, 1s to 24h: a spec that goes back to
    it meanwhile takes one hand-over. Of RaftClusters, WaltzClusters and ComputeClusters."""
    gates: list[GateSpec] = Field(
        default_factory=list,
        max_length=GATES_MAX_ITEMS,
        json_schema_extra=marked(
            Mark.CONTROL, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        ),
    )
    """What the new generation must show once it has caught up, before it is promoted, and while it bakes: then the bake
    is over only when all have passed. With Immediate, and in the first rollout, they are not asked before."""
    windows: list[Window] = Field(
        default_factory=list, max_length=WINDOWS_MAX_ITEMS, json_schema_extra=marked(Mark.CONTROL)
    )
    """A new generation catches up at any time and is promoted within one of these only. They hold up neither the first
    rollout, a way back to a spec that has served, nor what `forcePromote` names. Without any it is promoted at any
    time."""


class BakedRollout(RolloutSpec):
    """How a new generation becomes the active one, and your decisions about the current attempt."""

    model_config = ConfigDict(json_schema_extra=rules(_BAKING_GATES))


def parse_repair(text: str | None) -> tuple[int, int] | None:
    """Which generation `repair` names, and for which time; None where it names none."""
    if text is None:
        return None
    generation, _, time = text.partition(".")
    return int(generation), int(time or 1)
