"""A small Kubernetes, pods and a store in memory that execute plans: what the planner is tested against."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pavane.wire.stages import Stage
from pavane_operator.crds.common import CommonSpec
from pavane_operator.crds.status import State, Status
from pavane_operator.kinds.raft.scaling import Membership, next_members
from pavane_operator.plan.model import (
    FINALIZER,
    GENERATION_LABEL,
    LAST_GENERATION_ANNOTATION,
    REPLICAS_ANNOTATION,
    UID_LABEL,
    AdvanceStage,
    AllowWrites,
    Child,
    DeleteChild,
    Manifest,
    MarkResource,
    Resource,
    RunStep,
)
from pavane_operator.plan.port import Kind
from pavane_operator.plan.questions import Answer, Question
from tests.operator.model_cluster_kind import KIND, NAME, SCALE, START, UID, body_of, spec_of


class KilledError(Exception):
    """The operator was killed at this call."""


class ConflictError(Exception):
    """A precondition failed."""


class RejectedError(Exception):
    """The API server refused an object for good."""


@dataclass
class ModelPod:
    name: str
    generation: int
    uid: str
    stage: Stage = Stage.CREATION
    address: str | None = None
    restarts: int = 0
    progress: int = 0
    deleting: bool = False
    waiting_reason: str | None = None
    told: bool = False
    """Got a bootstrap's members."""
    repair: int = 0
    lost: bool = False
    """Its volume was empty although the store counts on it."""
    read: tuple[int, int] = (0, 0)
    """Who has the fence, and the greatest number that ever had it, as the pod has read it last."""


@dataclass
class Faults:
    """What goes wrong, by generation number."""

    crash: set[int] = field(default_factory=set)
    """Pods of these generations crash, unless they were repaired."""
    crashing_pods: set[str] = field(default_factory=set)
    """The same for single pods."""
    bad_repairs: int = 0
    """So many repairs do not help."""
    unpullable: set[int] = field(default_factory=set)
    unschedulable: set[str] = field(default_factory=set)
    """Names of pods that no node takes."""
    lagging: set[int] = field(default_factory=set)
    unreachable: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    fence_beyond: int = 0
    step_refusals: int = 0
    expired_requests: int = 0
    store_silent: bool = False
    answers: dict[str, bool | None] = field(default_factory=dict)
    """By name of a gate, what it answers; well, where nothing is said. None = nothing that can be judged."""


class World:
    """The cluster: survives the operator. Every change is checked against the invariants of 2.11."""

    def __init__(self, kind: Kind = KIND) -> None:
        self.kind = kind
        self.now = START
        self.spec: dict[str, Any] = {"rollout": {"caughtUp": {"stabilityPeriod": "2s"}, "retireDelay": "3s"}}
        self.metadata_generation = 1
        self._parsed: tuple[dict[str, Any] | None, Status | None] | None = None
        self.stored_status: dict[str, Any] | None = None
        self.finalizers: tuple[str, ...] = ()
        self.annotations: dict[str, str] = {}
        self.deleted_at: datetime | None = None
        self.gone = False
        self.version = 1
        self.resource_version = "1"
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.pods: dict[str, ModelPod] = {}
        self.tokens: set[str] = set()
        """Names of volumes that carry a token of AllowWrites."""
        self.fence = 0
        self.members: set[str] = set()
        """Pods that the store counts on; the greatest name leads."""
        self.left: int | None = None
        """The generation that the fence was taken from to go back to a former one."""
        self.fence_is_number = False
        """The store knows no members: what tells is the number of the generation, as in a WaltzCluster."""
        self.pods_tell = False
        """The operator does not see the store: what pods have read there tells, which may be late."""
        self.removed: set[str] = set()
        """Pods whose volumes say that they were members."""
        self.served = False
        self.entries = 10_000
        self.part_gaps: Mapping[str, int] = {}
        """By pod: the longest time that a part of the state had no writer, where parts move one by one."""
        self.faults = Faults()
        self.claimed: list[int] = []
        self.steps_run = 0
        self.expired: set[datetime] = set()
        """Times of requests that the store refuses as too old, for ever."""
        self.undone: list[int] = []
        self.left = False
        self.kills_begin = False
        self.users: tuple[str, ...] | None = None
        """Who refers to it."""
        self.stuck = False
        """Pods do not go away."""
        self.removed_before = 0
        """Highest number of a former resource of this name, on its retained volumes."""

    # ---- what users and tests do

    def change(self, **fields: Any) -> None:
        self.spec = {**self.spec, **fields}
        self.metadata_generation += 1
        self._touched()

    def rollout(self, **fields: Any) -> None:
        self.change(rollout={**self.spec["rollout"], **fields})

    def begin_kills(self) -> None:
        """From here on a scenario differs from others, so it is worth killing the operator."""
        self.kills_begin = True

    def drop_finalizer(self) -> None:
        self.finalizers = ()
        self._touched()

    def delete(self) -> None:
        if self.deleted_at is None:
            self.deleted_at = self.now
            self._touched()
            self.gone = not self.finalizers

    @property
    def status(self) -> Status:
        return self._parsed_status() or Status()

    def _parsed_status(self) -> Status | None:
        if self._parsed is None or self._parsed[0] is not self.stored_status:
            self._parsed = (self.stored_status, Status.parse(self.stored_status))
        return self._parsed[1]

    @property
    def state(self) -> State:
        rollout = self.status.rollout
        return rollout.state if rollout else State.IDLE

    @property
    def selected(self) -> int | None:
        service = self.objects.get(("Service", NAME))
        return int(service["spec"]["selector"][GENERATION_LABEL]) if service else None

    def condition(self, name: str) -> tuple[str, str] | None:
        found = next((each for each in self.status.conditions if each.type == name), None)
        return (found.status.value, found.reason) if found else None

    @property
    def switching_back(self) -> bool:
        coming, active = self.status.next_generation or 0, self.status.active_generation or 0
        lost = self.state is State.BAKING and self.fence < active  # its status was, on the way back
        return lost or (self.state is State.PROMOTING and 0 < coming < active)

    def resource(self) -> Resource:
        return Resource(
            kind=self.kind.name,
            name=NAME,
            namespace="default",
            uid=UID,
            resource_version=self.resource_version,
            metadata_generation=self.metadata_generation,
            spec=self.parsed_spec(),
            status=self._parsed_status(),
            finalizers=self.finalizers,
            annotations=dict(self.annotations),
            deleted_at=self.deleted_at,
        )

    def parsed_spec(self) -> CommonSpec:
        return spec_of(self.kind.definition.spec, json.dumps(self.spec))

    def children(self) -> tuple[Child, ...]:
        return tuple(
            Child(kind, name, body["metadata"]["uid"], body["metadata"]["resourceVersion"], body)
            for (kind, name), body in self.objects.items()
        )

    def writable(self, generation: int) -> bool:
        ready = {pod.name for pod in self.pods_of(generation) if pod.stage is Stage.READ_WRITE and not pod.lost}
        if generation and generation == self.fence:
            return len(ready & self.members) * 2 > len(self.members)
        return len(ready) * 2 > self.replicas_of(generation)

    def replicas_of(self, generation: int) -> int:
        live = self.objects.get(("StatefulSet", f"{NAME}-server-g{generation}"))
        return live["spec"]["replicas"] if live else int(self.spec.get("replicas", 3))

    @property
    def leader(self) -> str | None:
        return max(self.members, default=None) if self.writable(self.fence) else None

    def lose_volume(self, name: str) -> None:
        """The pod's volume is empty when it comes up again."""
        self.restart(name)
        self.pods[name].lost = True
        self.tokens.discard(name)
        self.removed.discard(name)

    def next_members(self) -> frozenset[str] | None:
        """What a kind's promotion would ask the store for."""
        pods = self.pods_of(self.fence)
        near = {pod.name for pod in pods if pod.progress == self.entries and pod.name not in self.removed}
        lost = {pod.name for pod in pods if pod.lost}
        writing = {pod.name for pod in pods if pod.stage is Stage.READ_WRITE}
        return next_members(
            Membership(
                current=self.members,
                own=self.members,
                wanted=[f"{NAME}-server-g{self.fence}-{ordinal}" for ordinal in range(self.spec.get("replicas", 3))],
                sound=(near & writing) - lost,
                lost=lost,
                ready=near & (writing | lost),
            )
        )

    def pods_of(self, generation: int) -> list[ModelPod]:
        return [pod for pod in self.pods.values() if pod.generation == generation and not pod.deleting]

    def answer(self, question: Question) -> Answer:
        """What a gate says now."""
        return Answer(self.faults.answers.get(question.gate.name, True), value="1", message="as the test says")

    # ---- what the operator's calls do

    def write_status(self, status: dict[str, Any], resource_version: str) -> None:
        if resource_version != self.resource_version:
            raise ConflictError
        former = self.status
        self.stored_status = {
            **status,
            "generations": _as_kept(self.stored_status, status, "generations", "number"),
            "conditions": _as_kept(self.stored_status, status, "conditions", "type"),
        }
        self._touched()
        claimed = self.status.next_generation
        if claimed is not None and claimed != former.next_generation and claimed not in self.claimed:
            assert claimed > max([*self.claimed, self.removed_before, self.fence]), "I3: a number was used again"
            assert not self.served or self.replicas_of(self.fence), "an attempt began beside a suspended generation"
            self.claimed.append(claimed)
        if former.active_generation != self.status.active_generation and self.status.active_generation:
            rebuilt = former.active_generation is None and self.state is State.BAKING  # on the way back
            assert rebuilt or self.status.active_generation == self.fence, "active before it has the fence"

    def mark(self, action: MarkResource) -> None:
        if action.finalizer:
            self.finalizers = (FINALIZER,)
            if action.last_generation is not None:
                self.annotations[LAST_GENERATION_ANNOTATION] = str(action.last_generation)
        else:
            assert self.deleted_at is not None, "the finalizer of a living resource was removed"
            self.finalizers = ()
            self.gone = True
        self._touched()

    def put(self, manifest: Manifest, *, create: bool, resource_version: str | None) -> None:
        key = (manifest.kind, manifest.name)
        number = manifest.body["metadata"]["labels"].get(GENERATION_LABEL)
        assert number is None or int(number) in self.claimed, "I3: not claimed before use"
        if manifest.kind == "StatefulSet" and number is not None and int(number) in self.faults.rejected:
            raise RejectedError
        live = self.objects.get(key)
        if live is not None and create:
            return
        if live is not None and resource_version not in (None, live["metadata"]["resourceVersion"]):
            raise ConflictError
        if live is not None and manifest.kind == "StatefulSet" and self.state in (State.PROMOTING, State.RETIRING):
            noted = [each["metadata"]["annotations"][REPLICAS_ANNOTATION] for each in (live, manifest.body)]
            assert noted[0] == noted[1], "a change of size did not wait for the end of the promotion"
        body = copy.deepcopy(dict(manifest.body))
        self.version += 1
        body["metadata"] = {
            **body["metadata"],
            "uid": live["metadata"]["uid"] if live else f"uid-{self.version}",
            "resourceVersion": str(self.version),
            "creationTimestamp": self.now.isoformat(),
        }
        self.objects[key] = body
        self._check_service()

    def remove(self, action: DeleteChild) -> None:
        if action.kind == "Pod":
            replaced = self.pods.get(action.name)
            if replaced is not None and replaced.uid == action.uid:
                assert not self.ready(replaced), "a pod that is Ready was replaced"
                replaced.deleting = True
            return
        live = self.objects.get((action.kind, action.name))
        if live is None:
            return
        if (live["metadata"]["uid"], live["metadata"]["resourceVersion"]) != (action.uid, action.resource_version):
            raise ConflictError
        number = live["metadata"]["labels"].get(GENERATION_LABEL)
        if action.kind == "PersistentVolumeClaim":
            pod = action.name.removeprefix("data-")
            assert pod not in self.pods, "a volume was deleted under its pod"
            assert live["metadata"]["labels"][UID_LABEL] == UID, "a volume of a former resource was deleted"
            needed = self.served and self.deleted_at is None and pod in self.members
            assert not needed, "I5: the volume of a member was deleted"
            self.tokens.discard(pod)
            self.removed.discard(pod)
        elif self.deleted_at is None and self.served:
            assert number is None or int(number) != self.fence, f"I4, I5: {action} of the generation that writes"
        del self.objects[(action.kind, action.name)]
        self._check_service()

    def run_step(self, action: RunStep) -> str:
        """The error of the call; empty when it went well."""
        rollout = self.status.rollout
        assert rollout is not None
        assert rollout.step is not None
        state = State.IDLE if action.name == SCALE else State.PROMOTING
        recorded = (rollout.state, rollout.step.name, rollout.step.at)
        assert recorded == (state, action.name, action.at), "not recorded before it was taken"
        self.steps_run += 1
        if action.at in self.expired or len(self.expired) < self.faults.expired_requests:
            self.expired.add(action.at)
            return "expired"
        if self.faults.step_refusals:
            self.faults.step_refusals -= 1
            return "refused, as the test asked"
        if action.name == SCALE:
            return self._scale()
        if not self.writable(action.generation) or not self.writable(self.fence):
            return "no quorum"
        if action.generation != self.fence:
            self.left = self.fence if action.generation < self.fence else self.left
            self.fence = action.generation
            self._change({f"{NAME}-server-g{self.fence}-{i}" for i in range(self.replicas_of(self.fence))})
        return ""

    def _scale(self) -> str:
        target = self.next_members()
        if target is not None:
            assert self.writable(self.fence), "a change without a quorum"
            assert not (target - self.members) & self.removed, "a member came back on its old volume"
            for name in target - self.members:
                self.pods[name].lost = False
            self._change(set(target))
        return ""

    def _change(self, members: set[str]) -> None:
        self.removed |= {name for name in self.members - members if not (pod := self.pods.get(name)) or not pod.lost}
        self.removed -= members
        self.members = members

    def advance(self, action: AdvanceStage | AllowWrites, until: Stage) -> None:
        pod = self.pods.get(action.pod)
        if pod is None or pod.address is None:
            raise ConflictError
        rollout = self.status.rollout
        if until is Stage.READ_WRITE:
            permitted = (
                rollout is not None and rollout.state is State.PROMOTING and rollout.generation == pod.generation
            )
            # Where the status was lost the store still knows who may write.
            active = self.status.active_generation or self.fence
            assert permitted or pod.generation == active, "AllowWrites before Promoting"
            late = pod.generation == self.fence and self.served and pod.name not in self.members
            assert permitted or not late or pod.progress == self.entries, "AllowWrites before it has caught up"
        if action.settings:
            pod.told = True
        if self.pods_tell and until is Stage.READ_WRITE and not self._fence(pod.generation, action.settings):
            until = Stage.READ_ONLY
        pod.stage = max(pod.stage, until)
        if pod.stage is Stage.READ_WRITE:
            self.tokens.add(pod.name)

    def _fence(self, generation: int, told: Mapping[str, str]) -> bool:
        """Give a generation the fence if it may have it."""
        if generation > self.number or (self.fence == self.number and told.get("left") == str(self.fence)):
            self.left = self.fence if generation < self.fence else self.left
            self.fence = generation
            self._change({pod.name for pod in self.pods_of(generation)})
        return generation == self.fence

    @property
    def number(self) -> int:
        """The greatest that ever had the fence."""
        return max(self.fence, self.left or 0)

    # ---- what the cluster does by itself

    def tick(self, seconds: float = 1.0) -> None:
        self.now += timedelta(seconds=seconds)
        for key, pod in list(self.pods.items()):
            if pod.deleting and not self.stuck:
                del self.pods[key]
        self._run_stateful_sets()
        for pod in self.pods.values():
            self._run_pod(pod)
        self._bootstrap_store()
        self._check()

    def _run_stateful_sets(self) -> None:
        sets = {name: body for (kind, name), body in self.objects.items() if kind == "StatefulSet"}
        wanted: dict[str, int] = {}
        for name, body in sets.items():
            start = body["spec"].get("ordinals", {"start": 0})["start"]
            for ordinal in range(start, start + body["spec"]["replicas"]):
                wanted[f"{name}-{ordinal}"] = int(body["metadata"]["labels"][GENERATION_LABEL])
        if self.deleted_at is None:
            self._check_stops({name for name, pod in self.pods.items() if not pod.deleting} - wanted.keys())
        for name, pod in self.pods.items():
            pod.deleting = pod.deleting or name not in wanted
        for name, number in wanted.items():
            if name in self.pods:
                continue
            self.version += 1
            template = sets[name.rpartition("-")[0]]["spec"]["template"]
            self.pods[name] = ModelPod(name, number, f"uid-{self.version}", repair=template.get("repair", 0))
            if ("PersistentVolumeClaim", f"data-{name}") not in self.objects:
                volume = body_of("PersistentVolumeClaim", f"data-{name}", number)
                volume["metadata"] |= {"uid": f"uid-v{self.version}", "resourceVersion": str(self.version)}
                volume["metadata"]["labels"][UID_LABEL] = UID
                self.objects[("PersistentVolumeClaim", f"data-{name}")] = volume

    def _check_stops(self, stopped: set[str]) -> None:
        """Which pods of the generation that writes may be stopped, unless somebody set their number by hand."""
        live = self.objects.get(("StatefulSet", f"{NAME}-server-g{self.fence}"))
        noted = live["metadata"]["annotations"][REPLICAS_ANNOTATION] if live is not None else "0"
        if live is not None and noted not in ("0", str(live["spec"]["replicas"])):
            return
        serving = {pod.name for pod in self.pods_of(self.fence)} if self.served else set()
        members = stopped & self.members & serving
        assert not members or self.spec.get("suspend"), "a member was stopped"
        known = None if self.faults.store_silent or self.pods_tell else self.leader
        assert known not in members or len(serving) == 1, "the leader was stopped before its followers"

    def _run_pod(self, pod: ModelPod) -> None:
        if pod.deleting:
            return
        if pod.name in self.faults.unschedulable:
            return
        if pod.generation in self.faults.unpullable:
            pod.waiting_reason = "ImagePullBackOff"
            return
        crashes = pod.generation in self.faults.crash or pod.name in self.faults.crashing_pods
        if crashes and pod.repair <= self.faults.bad_repairs:
            self.restart(pod.name)
            pod.waiting_reason = "CrashLoopBackOff"
            return
        pod.waiting_reason = None
        if pod.address is None:
            pod.address = f"10.0.0.{len(pod.uid)}"
        elif pod.lost:
            pod.stage = max(pod.stage, Stage.READ_ONLY)
        elif self.pods_tell:
            pod.read = (self.fence, self.number)
            if pod.generation == self.fence:
                pod.stage = Stage.READ_WRITE
            elif pod.stage is Stage.READ_WRITE:
                pod.stage, pod.progress = Stage.CREATION, 0
        elif pod.name in self.members or (pod.name in self.tokens and pod.generation >= self.fence):
            pod.stage = Stage.READ_WRITE
        if pod.stage >= Stage.READ_ONLY and pod.generation not in self.faults.lagging:
            pod.progress = self.entries

    def restart(self, name: str) -> None:
        pod = self.pods[name]
        pod.stage, pod.restarts, pod.progress, pod.told = Stage.CREATION, pod.restarts + 1, 0, False
        pod.read = (0, 0)
        self.version += 1
        pod.uid = f"uid-{self.version}"

    def _bootstrap_store(self) -> None:
        if not self.served and ("StatefulSet", f"{NAME}-server-g{self.fence}") not in self.objects:
            self.fence, self.members = 0, set()  # never served: gone with its pods, their number never comes back
        if self.fence:
            return
        for generation in sorted({pod.generation for pod in self.pods.values()}):
            if self.writable(generation) and any(pod.told for pod in self.pods_of(generation)):
                self.fence = generation
                self._change({f"{NAME}-server-g{generation}-{i}" for i in range(self.replicas_of(generation))})

    # ---- invariants

    def _check_service(self) -> None:
        if self.selected:
            early = any(step.serves for step in self.kind.steps) and self.state is State.PROMOTING
            early = early or self.switching_back
            assert early or self.selected <= self.fence, "the public Service selects a generation without the fence"
            self.served = True

    def _check(self) -> None:
        numbers = {pod.generation for pod in self.pods.values()}
        assert len(numbers) <= 3, "more than three generations have pods"
        if self.served and self.deleted_at is None:
            assert ("StatefulSet", f"{NAME}-server-g{self.fence}") in self.objects, "I4"
            volumes = [name for kind, name in self.objects if kind == "PersistentVolumeClaim"]
            for pod in self.pods_of(self.fence):
                assert f"data-{pod.name}" in volumes, "I5"

    def ready_service_pods(self) -> frozenset[str]:
        return frozenset(pod.name for pod in self.pods.values() if pod.generation == self.selected and self.ready(pod))

    def ready(self, pod: ModelPod) -> bool:
        return (
            pod.stage >= Stage.READ_ONLY
            and pod.generation >= self.fence
            and pod.address is not None
            and not pod.deleting
        )

    def _touched(self) -> None:
        self.version += 1
        self.resource_version = str(self.version)


def _as_kept(stored: dict[str, Any] | None, written: dict[str, Any], several: str, key: str) -> list[Any]:
    """Entries with a key as a server keeps them: those that it has stay in their places, new ones come behind them."""
    places = [entry[key] for entry in (stored or {}).get(several, ())]
    return sorted(written[several], key=lambda entry: places.index(entry[key]) if entry[key] in places else len(places))


def settled(world: World) -> bool:
    """Whether a resource that is not held has come to rest."""
    told = world.status.observed_generation == world.metadata_generation
    conditions = (world.condition("Ready"), world.condition("UpToDate"), world.condition("Reconciling"))
    rests = conditions == (("True", "Serving"), ("True", "Applied"), None)
    return world.gone or (told and rests and world.state is State.IDLE)
