"""The attempt under way: its steps, the decisions of its user, and its time (docs/specs/operator.md 2.4, 2.5, 3)."""

from datetime import datetime, timedelta
from functools import cached_property

from pavane_operator.crds.common import rollout_id
from pavane_operator.crds.rollout import Strategy
from pavane_operator.crds.status import Blocker, Result, State
from pavane_operator.plan.port import PromotionStep
from pavane_operator.plan.snapshot import BEFORE_PROMOTION, ResourceSnapshot
from pavane_operator.plan.windows import is_open, opens_at

SERVE = "Serve"
"""Last step of a bootstrap: from here the public Service may let clients in (D10)."""
OUTSIDE_WINDOW = "OutsideWindow"
"""Reason of an attempt that waits for a window of its spec."""
NEVER_OPENS = "WindowNeverOpens"
"""The same where no window of its spec can be read, or will ever open."""
WINDOW_REASONS = frozenset({OUTSIDE_WINDOW, NEVER_OPENS})
HOLDING_REASONS = WINDOW_REASONS | {"Paused", "WaitingForApproval", "GateWaiting"}
"""Gate reasons whose time does not count towards the deadline."""


class Attempt(ResourceSnapshot):
    """A snapshot, and how far its promotion is."""

    @cached_property
    def steps(self) -> tuple[PromotionStep, ...]:
        """The steps of this promotion."""
        return self.kind.bootstrap_steps if self.bootstrap else self.kind.steps

    @property
    def step_name(self) -> str | None:
        """Name of the recorded step."""
        return self.rollout.step.name if self.rollout.step else None

    @cached_property
    def recorded_index(self) -> int:
        """Place of the recorded step among the steps; -1 while none is recorded."""
        names = [step.name for step in self.steps]
        if self.step_name == SERVE:
            return len(names)
        return names.index(self.step_name) if self.step_name in names else -1

    @cached_property
    def irreversible_recorded(self) -> bool:
        """Whether a step that cannot be taken back has been recorded."""
        if self.step_name == SERVE:
            return True
        return any(step.irreversible for step in self.steps[: self.recorded_index + 1])

    @cached_property
    def serves(self) -> bool:
        """Whether a step is recorded from which on the public Service leads to the next generation."""
        return any(step.serves for step in self.steps[: self.recorded_index + 1])

    @cached_property
    def irreversible(self) -> bool:
        """Whether nothing may abort the attempt any more: such a step is recorded, or its effect seen in the store."""
        return self.irreversible_recorded or (self.fence_moved and not self.bootstrap)

    @cached_property
    def fence_moved(self) -> bool:
        """Whether the effect of a step that cannot be taken back is seen in the store."""
        return any(step.irreversible and step.name in self.facts.steps_done for step in self.steps)

    # ---- decisions of the user and time

    @cached_property
    def forced(self) -> bool:
        """Whether the user forces this very attempt."""
        return self.spec.rollout.force_promote == self.next

    @cached_property
    def immediate(self) -> bool:
        """Whether the strategy does not wait for the new generation to catch up."""
        return self.spec.rollout.strategy is Strategy.IMMEDIATE

    @cached_property
    def holding(self) -> tuple[Blocker, ...]:
        """The stored gate blockers whose time does not count towards the deadline."""
        if self.state not in BEFORE_PROMOTION:
            return ()
        return tuple(blocker for blocker in self.rollout.blockers if blocker.reason in HOLDING_REASONS)

    @cached_property
    def deadline_passed(self) -> bool:
        """Whether the attempt should be promoting by now; time that it was held does not count, and it has not passed
        outside of all windows, nor while gates are good and only their own time is not over."""
        deadline = self.rollout.deadline
        if deadline is None or self.state not in BEFORE_PROMOTION:
            return False
        if self.held_reason == OUTSIDE_WINDOW or any(
            blocker.reason == "GateWaiting" for blocker in self.rollout.blockers
        ):
            return False
        return self.now >= deadline + self._held_until_now

    @property
    def _held_until_now(self) -> timedelta:
        return max(self.now - min((each.since for each in self.holding), default=self.now), timedelta())

    @cached_property
    def held_reason(self) -> str | None:
        """Why the attempt is held by its user now: `Paused`, `WaitingForApproval` or that of its windows; None if
        it is not."""
        control = self.spec.rollout
        if self.state not in BEFORE_PROMOTION or self.bootstrap or self.forced:
            return None
        approved = control.strategy is not Strategy.MANUAL or control.promote == self.next
        if not approved and self.state is State.CAUGHT_UP:
            return "WaitingForApproval"
        if control.paused:
            return "Paused"
        return self.window_reason if self.outside_window else None

    @property
    def window_reason(self) -> str:
        """Why an attempt waits outside of its windows."""
        return OUTSIDE_WINDOW if self.window_opens is not None else NEVER_OPENS

    @property
    def would_promote(self) -> bool:
        """Whether the attempt is as far as it has to be for its promotion."""
        return self.state is State.CAUGHT_UP or (self.immediate and self.state is State.CATCHING_UP)

    @cached_property
    def outside_window(self) -> bool:
        """Whether the windows of the spec keep the attempt from its promotion; a way back to a spec that has served
        waits for none."""
        windows = self.spec.rollout.windows
        return bool(windows) and not self.goes_back and not is_open(windows, self.now)

    @property
    def goes_back(self) -> bool:
        """Whether the spec is one that led to the active one."""
        written = rollout_id(self.kind.name, self.spec, as_written=True)  # as generations of release 0.1.0 have it
        return not {self.rollout.id, written}.isdisjoint(self._led_here)

    @property
    def _led_here(self) -> list[str]:
        """Ids of the specs that served one after the other until the active one did, as far as history tells: an undo
        leads back to one, and takes all behind it away. What a gate sent back is none of them."""
        path: list[str] = []
        for entry in reversed(self.status.history):
            if entry.result is Result.PROMOTED:
                path = [*path[: path.index(entry.id) if entry.id in path else None], entry.id]
            elif entry.result is Result.ROLLED_BACK and entry.id in path:
                path.remove(entry.id)
        return path[:-1]

    @cached_property
    def window_opens(self) -> datetime | None:
        """When the next window opens for an attempt that waits for one; None = never, or it does not wait."""
        return opens_at(self.spec.rollout.windows, self.now) if self.outside_window else None
