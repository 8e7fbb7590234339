"""An operator in memory that executes the planner's plans on a model cluster, and may be killed at each call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pavane.wire.stages import Stage
from pavane_operator.crds.status import State, Step
from pavane_operator.kinds.computecluster.promotion import told
from pavane_operator.plan.clock import within_lag_since
from pavane_operator.plan.model import (
    Action,
    ActionFailure,
    AdvanceStage,
    AllowWrites,
    ApplyChild,
    CreateChild,
    DeleteChild,
    Facts,
    Leave,
    MarkResource,
    Observed,
    Plan,
    Pod,
    PodBlocker,
    Problem,
    RunStep,
    StageView,
    StepCall,
    Undo,
)
from pavane_operator.plan.planner import plan
from pavane_operator.plan.questions import Question, Standing, fold
from pavane_operator.plan.snapshot import BEFORE_PROMOTION, release_of
from tests.operator.model_cluster import ConflictError, ModelPod, RejectedError, World
from tests.operator.model_cluster_kind import FENCE, PERMIT, SCALE, SETTINGS


@dataclass
class Stream:
    asked: Stage | None = None
    since: datetime | None = None


class Operator:
    """Executes plans as the runtime does. Its memory is lost when it is killed."""

    def __init__(self, world: World, call: Callable[[], None], seen: set[tuple[State, str]]) -> None:
        self.world = world
        self._call = call
        """Called before every call to the cluster and after the last one of a plan; may raise KilledError."""
        self._seen = seen
        self.streams: dict[str, Stream] = {}
        self.wanted: frozenset[str] = frozenset()
        self.step_call: StepCall | None = None
        self.failure: ActionFailure | None = None
        self.written_at: datetime | None = None
        self.made: set[tuple[str, str]] = set()
        """Since the status was written last; see `Reconciler`."""
        self.questions: tuple[Question, ...] = ()
        self.asked: dict[Question, Standing] = {}

    def observe(self) -> Observed:
        world = self.world
        pods = tuple(self._pod(pod) for pod in world.pods.values())
        seen = Observed(fresh=True, pods=pods)
        return Observed(
            fresh=True,
            children=world.children(),
            pods=pods,
            facts=told(world.resource(), seen, {}, "works") if world.pods_tell else self._facts(),
            service_pods=world.ready_service_pods(),
            users=None if world.deleted_at is None or release_of(world.status) is not None else world.users,
            gates=self._ask(),
            failure=self.failure,
            step_call=self.step_call,
            status_written_at=self.written_at,
        )

    def _ask(self) -> dict[Question, Standing]:
        """Ask what the last plan wants to know, once a moment; a new question knows nothing of former answers."""
        now, asked = self.world.now, self.asked
        self.asked = {
            each: asked[each]
            if each in asked and asked[each].at == now
            else fold(asked.get(each), self.world.answer(each), each.gate, now)
            for each in self.questions
        }
        return self.asked

    def _pod(self, pod: ModelPod) -> Pod:
        return Pod(
            name=pod.name,
            uid=pod.uid,
            resource_version="1",
            generation=pod.generation,
            address=pod.address,
            ready=self.world.ready(pod),
            deleting=pod.deleting,
            restarts=pod.restarts,
            waiting_reason=pod.waiting_reason,
            repair=pod.repair,
            stage=self._stage(pod),
        )

    def _stage(self, pod: ModelPod) -> StageView | None:
        world = self.world
        silent = pod.generation in world.faults.unreachable or pod.waiting_reason is not None
        if pod.address is None or silent:
            self.streams.pop(pod.uid, None)
            return None
        stream = self.streams.setdefault(pod.uid, Stream()) if pod.name in self.wanted else None
        if stream is not None:
            allowed = world.parsed_spec().rollout.caught_up.allowed_lag
            progress = pod.progress if pod.stage >= Stage.READ_ONLY else None
            stream.since = within_lag_since(
                stream.since, progress=progress, target=world.entries, allowed_lag=allowed, now=world.now
            )
        beyond = world.faults.fence_beyond if pod.generation > world.fence else 0
        blocked = (
            (PodBlocker("FenceTooLow", "a greater fence is stored", {"stored": str(beyond)}),)
            if beyond and pod.generation <= beyond
            else ()
        )
        if pod.lost:
            blocked = (PodBlocker("StateLost", "the volume was empty"),)
        holder, number = pod.read if world.pods_tell else (world.fence, world.fence)
        return StageView(
            stage=pod.stage,
            connected=stream is not None,
            asked=stream.asked if stream else None,
            progress=pod.progress,
            target=world.entries,
            leads=pod.generation == holder,
            done=pod.generation not in (0, holder) and pod.generation <= number and pod.stage < Stage.READ_ONLY,
            fence=beyond or number or None,
            blockers=blocked,
            within_lag_since=stream.since if stream else None,
            first_write_ms=pod.generation * 1000 + 40 if pod.generation == world.fence else None,
            last_write_ms=pod.generation * 1000 + 1000 if pod.generation < world.fence else None,
            write_gap_ms=world.part_gaps.get(pod.name),
        )

    def _facts(self) -> Facts:
        world = self.world
        if world.faults.store_silent:
            return Facts()
        coming = world.status.next_generation or 0
        done = set()
        if world.writable(coming):
            done.add(PERMIT.name)
        if coming and world.fence == coming and world.status.active_generation:
            done.add(FENCE.name)
        alive = [pod for pod in world.pods_of(coming) if pod.stage >= Stage.READ_ONLY]
        safe = (not coming or len(alive) * 2 > world.replicas_of(coming)) and world.writable(world.fence)
        everybody = all(pod.stage is Stage.READ_WRITE for pod in world.pods_of(coming))
        found = Facts(
            leads=bool(coming) and world.fence == coming and world.writable(coming) and (world.served or everybody),
            safety=None if safe else Problem("NoQuorum", "no majority"),
            steps_done=frozenset(done),
            request_expired=self._refused_as_expired(),
            members=frozenset(world.members) if world.writable(world.fence) else None,
            removed=frozenset(world.removed & world.pods.keys() - world.members),
            stops_last=world.leader,
            due=SCALE if world.status.active_generation and not coming and world.next_members() is not None else None,
            fence=world.fence or None,
            down=None if world.writable(world.fence) else Problem("NoQuorum", "no majority"),
        )
        if not world.fence_is_number:
            return found
        return replace(found, members=frozenset(), removed=frozenset(), left=world.left, due=None)

    def _refused_as_expired(self) -> bool:
        rollout = self.world.status.rollout
        step = rollout.step if rollout else None
        return step is not None and step.at in self.world.expired

    def turn(self) -> Plan:
        """One plan, executed."""
        world = self.world
        resource, observed = world.resource(), self.observe()
        decided = plan(world.kind, resource, observed, world.now, SETTINGS)
        self._seen.add((world.state, decided.row))
        self._check_plan(decided)
        self.wanted = decided.streams
        self.questions = decided.questions
        for uid in [uid for uid in self.streams if not self._keeps(uid)]:
            del self.streams[uid]
        made = [each.manifest for each in decided.actions if isinstance(each, CreateChild | ApplyChild)]
        makes = {(each.kind, each.name) for each in made} - {(child.kind, child.name) for child in observed.children}
        only_makes = 0 < len(decided.actions) == len(makes - self.made)
        try:
            for action in decided.actions:
                self._call()
                self._execute(action)
            self.made |= makes
            skips = only_makes or any(isinstance(each, MarkResource) for each in decided.actions)
            if decided.status is not None and not skips:
                self._call()
                world.write_status(decided.status.dump(), resource.resource_version)
                self.written_at = world.now
                self.made.clear()
            if not decided.empty:
                self._call()
        except ConflictError:
            return decided
        except RejectedError:
            self.failure = ActionFailure("Rejected", "refused, as the test asked", rejected=True)
            return decided
        if decided.actions or decided.status is not None:
            self.failure = None
        return decided

    def _keeps(self, uid: str) -> bool:
        return any(pod.uid == uid and pod.name in self.wanted for pod in self.world.pods.values())

    def _check_plan(self, decided: Plan) -> None:
        rollout = self.world.status.rollout
        before = rollout.state if rollout else State.IDLE
        if decided.status is not None and decided.status.rollout is not None:
            after = decided.status.rollout
            moved = after.state is not before and after.state not in (State.IDLE, *BEFORE_PROMOTION)
            claimed = before is State.IDLE and after.state is State.CREATING_NEXT
            stepped = rollout is not None and after.state is before and _mark_of(after.step) != _mark_of(rollout.step)
            if moved or claimed or stepped:
                assert decided.actions == (), "a write-ahead plan has other actions"
        waits = decided.empty and before not in (State.IDLE, State.BAKING) and self.world.deleted_at is None
        if waits:
            assert decided.wake_at is not None, f"{before} has no wake-up"
            assert rollout is not None
            assert rollout.blockers, f"{before} waits without a blocker ({decided.row})"

    def _execute(self, action: Action) -> None:
        world = self.world
        match action:
            case MarkResource():
                world.mark(action)
            case CreateChild(manifest):
                world.put(manifest, create=True, resource_version=None)
            case ApplyChild(manifest, resource_version):
                world.put(manifest, create=False, resource_version=resource_version)
            case DeleteChild():
                world.remove(action)
            case AdvanceStage() | AllowWrites():
                until = Stage.READ_WRITE if isinstance(action, AllowWrites) else Stage.READ_ONLY
                world.advance(action, until)
                self.streams[world.pods[action.pod].uid].asked = until
            case RunStep():
                self._run_step(action)
            case Undo(generation):
                world.undone.append(generation)
            case Leave():
                assert not world.pods
                world.left = True

    def _run_step(self, action: RunStep) -> None:
        world = self.world
        message = world.run_step(action)
        retry_at = world.now + timedelta(seconds=0.5)
        self.step_call = StepCall(action.name, action.at, running=False, retry_at=retry_at, message=message)


def _mark_of(step: Step | None) -> tuple[str, datetime] | None:
    return None if step is None else (step.name, step.at)
