"""Everything that the rows of the table ask, worked out once per plan (docs/specs/operator.md 2).

The classes build on one another: what is there (`snapshot`), how far a promotion is (`attempt`), what should be there
(`intent`), and here what is there compared with what should be there.
"""

from datetime import datetime
from functools import cached_property

from pavane.wire.stages import Stage
from pavane_operator.crds.gates import OnFailure
from pavane_operator.crds.rollout import parse_repair
from pavane_operator.crds.status import GateStatus, State, Verdict
from pavane_operator.crds.values import parse_duration
from pavane_operator.plan.children import (
    STATEFUL_SET,
    find,
    is_missing_or_drifted,
    pods_of_sets,
    template_drifted,
)
from pavane_operator.plan.intent import Intent
from pavane_operator.plan.model import Pod, Problem
from pavane_operator.plan.questions import WORST_FIRST, Question, gate_status, question
from pavane_operator.plan.snapshot import BEFORE_PROMOTION, repair_of


class ResourceView(Intent):
    """What is there compared with what should be there."""

    # ---- pods

    def expected_pods(self, generation: int) -> tuple[str, ...]:
        """Names of the pods that a generation should have and that the operator leads."""
        return pods_of_sets(each for each in self.manifests(generation) if not self.follows(each))

    def expected_followers(self, generation: int) -> tuple[str, ...]:
        """Names of the pods that those are to lead."""
        return pods_of_sets(each for each in self.manifests(generation) if self.follows(each))

    def complete(self, generation: int, *, stage: Stage) -> bool:
        """Whether every pod of the generation is there and has reached the stage."""
        reached = {pod.name for pod in self.live_pods(generation) if pod.stage and pod.stage.stage >= stage}
        expected = self.expected_pods(generation)
        return bool(expected) and reached.issuperset(expected)

    @cached_property
    def next_answers(self) -> bool:
        """Whether every pod of the next generation has an address and answers on its stage port (D2)."""
        answering = {pod.name for pod in self.live_pods(self.next) if pod.address and pod.stage and pod.stage.connected}
        expected = self.expected_pods(self.next)
        return bool(expected) and answering.issuperset(expected)

    def ready(self, generation: int) -> bool:
        """Whether every pod of the generation is there and Ready."""
        ready = {pod.name for pod in self.running_pods(generation) if pod.ready}
        expected = (*self.expected_pods(generation), *self.expected_followers(generation))
        return bool(expected) and ready.issuperset(expected)

    @cached_property
    def streams(self) -> frozenset[str]:
        """Names of the pods that need a stage stream now (docs/specs/operator.md 5.8)."""
        if self.state is State.ABORTING:
            return frozenset()
        if self.state is State.IDLE:
            pods = [
                pod
                for pod in self.live_pods(self.active)
                if pod.stage is not None
                and pod.stage.stage < Stage.READ_WRITE
                and all(blocker.reason != "StateLost" for blocker in pod.stage.blockers)
            ]
        elif self.state in BEFORE_PROMOTION:
            pods = self.live_pods(self.next)
        else:
            pods = [pod for pod in self.observed.pods if not (pod.deleting or pod.follows)]
        return frozenset(pod.name for pod in pods if pod.address)

    @cached_property
    def joining(self) -> list[Pod]:
        """Live pods of the active generation that the store, as far as is known, does not count on yet."""
        members = self.facts.members
        counts_on_none = members is not None and not members
        return [] if counts_on_none else [pod for pod in self.live_pods(self.active) if pod.name not in (members or ())]

    def settles_at(self, pod: Pod) -> datetime | None:
        """When the pod will have been within lag for the whole stability period; None while it is not."""
        since = pod.stage.within_lag_since if pod.stage is not None and pod.stage.connected else None
        return since and since + parse_duration(self.spec.rollout.caught_up.stability_period)

    def has_settled(self, pod: Pod) -> bool:
        """Whether the pod has been within lag for the whole stability period."""
        time = self.settles_at(pod)
        return time is not None and time <= self.now

    @cached_property
    def stable_at(self) -> datetime | None:
        """When every pod of n will have been within lag for the whole stability period; None while one is not."""
        pods = {pod.name: pod for pod in self.live_pods(self.next)}
        times = [self.settles_at(pods[name]) if name in pods else None for name in self.expected_pods(self.next)]
        known = [time for time in times if time is not None]
        return max(known) if known and len(known) == len(times) else None

    @cached_property
    def caught_up(self) -> bool:
        """Whether the next generation has caught up (D5)."""
        return self.stable_at is not None and self.stable_at <= self.now

    @cached_property
    def drifted(self) -> list[str]:
        """StatefulSets that serve and whose template is not that of their revision any more (4.3)."""
        if self.state is not State.IDLE or not self.active:
            return []
        return [
            manifest.name
            for manifest in (*self.manifests(self.active), *self.standing)
            if manifest.kind == STATEFUL_SET
            and (live := find(self.observed.children, manifest.kind, manifest.name)) is not None
            and template_drifted(manifest, live)
            # A repair changes our own intent, and so the hash beside the template: then it is nobody else's change.
            and not is_missing_or_drifted(manifest, self.observed.children)
        ]

    # ---- gates of the spec (2.5)

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """What is asked now: of a generation that has caught up, and of one that bakes."""
        skipped = self.bootstrap or (self.state is State.CAUGHT_UP and (self.forced or self.immediate))
        if self.state not in (State.CAUGHT_UP, State.BAKING) or skipped:
            return ()
        asked = self.active if self.state is State.BAKING else self.next
        running = {pod.name: pod.address or "" for pod in self.running_pods(asked)}
        missing = dict.fromkeys((*self.expected_pods(asked), *self.expected_followers(asked)), "")
        addresses = tuple(sorted((missing | running).values()))  # one that is missing says nothing: inconclusive
        about = {"namespace": self.resource.namespace, "name": self.resource.name, "generation": str(asked)}
        now = [gate for gate in self.spec.rollout.gates if gate.phase is None or gate.phase.value == self.state.value]
        return tuple(question(gate, addresses, about) for gate in now)

    @cached_property
    def gates(self) -> dict[str, GateStatus]:
        """How each gate that is asked stands, by its name."""
        stored = {each.name: each for each in self.rollout.gates}
        seen = self.observed.gates
        told = (gate_status(each, seen.get(each), stored.get(each.gate.name), self.now) for each in self.questions)
        return {each.name: each for each in told}

    @property
    def closed_gates(self) -> list[GateStatus]:
        """Those that have not passed, the worst first."""
        closed = [each for each in self.gates.values() if each.verdict is not Verdict.PASSED]
        return sorted(closed, key=lambda each: WORST_FIRST.index(each.verdict))

    @property
    def failed_gate(self) -> GateStatus | None:
        """One for which the attempt, or with its way back the generation that bakes, is to be given up."""
        ending = {each.name for each in self.spec.rollout.gates if each.on_failure not in (None, OnFailure.HOLD)}
        if self.state is State.BAKING:
            ending = {each.name for each in self.spec.rollout.gates if each.on_failure is OnFailure.SWITCH_BACK}
        failed = (each for each in self.closed_gates if each.verdict is Verdict.FAILED)
        return next((each for each in failed if each.name in ending), None)

    @property
    def sent_back(self) -> GateStatus | None:
        """The gate that sends the right to write back to the former generation, unless the user says otherwise."""
        decided = self.want != self.have or self.spec.rollout.retry == self.active
        return self.failed_gate if self.state is State.BAKING and not decided else None

    # ---- what cannot be, and repairs in place

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """Why the spec cannot be rolled out (B4), or the generation that it names not be repaired (2.13)."""
        found = self.kind.renderer.problems(self.resource, self.observed.references)
        if self.observed.certificates.problem is not None:
            found = (*found, self.observed.certificates.problem)
        found += tuple(
            Problem(
                "KeysLost",
                f"Secret {manifest.name} is gone, and pods rest on what it held: create it again as it was, from a "
                "backup or from a pod that still runs (see Lost keys in the operations guide)",
            )
            for manifest in self.lost_secrets
            if (manifest.kind, manifest.name) not in self.observed.remembered
        )
        if self.repair is None or not self.repair_is_new:
            return found
        revision = self.revision(self.repair[0])
        refused = None if revision is None else self.kind.renderer.repair_problem(self.resource, revision)
        return found if refused is None else (*found, refused)

    @cached_property
    def repair(self) -> tuple[int, int] | None:
        """Which generation the spec asks to repair, and for which time, where that is possible now (2.13)."""
        named = parse_repair(self.spec.rollout.repair)
        if named is None or self.state not in (State.IDLE, State.PROMOTING):
            return None
        promoting = self.state is State.PROMOTING
        if named[0] == self.active:  # once it has lost the fence nobody needs it any more
            return None if promoting and (self.fence_moved or self.selected == self.next) else named
        return named if promoting and named[0] == self.next else None

    @cached_property
    def repair_is_new(self) -> bool:
        """Whether the repair has not begun and is needed: its revision does not stand, and a pod is not Ready."""
        if self.repair is None:
            return False
        generation, time = self.repair
        revision = self.revision(generation)
        return revision is not None and repair_of(revision) < time and not self.ready(generation)

    @cached_property
    def unrepaired(self) -> list[Pod]:
        """Pods of a generation under repair that are not Ready and come from a template before it."""
        if self.repair is None:
            return []
        revision = self.revision(self.repair[0])
        repair = repair_of(revision) if revision is not None else 0
        return [pod for pod in self.running_pods(self.repair[0]) if not pod.ready and pod.repair < repair]
