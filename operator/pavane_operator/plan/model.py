"""What the planner sees and what it decides: frozen values, no I/O (docs/specs/operator.md 2.1).

The runtime builds a `Resource` and an `Observed`, calls `pavane_operator.plan.planner.plan`, executes the actions of
the `Plan` in their order, then writes its status, then posts its events; it stops at the first failure and plans again.
Times are aware datetimes in UTC.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from pavane.wire.stages import Stage
from pavane_operator.crds.common import CommonSpec
from pavane_operator.crds.status import Status
from pavane_operator.plan.questions import Question, Standing

GENERATION_LABEL = "pavane.dev/generation"
COMPONENT_LABEL = "app.kubernetes.io/component"
"""The role."""
UID_LABEL = "pavane.dev/uid"
SPEC_HASH_ANNOTATION = "pavane.dev/spec-hash"
ROLLOUT_ID_ANNOTATION = "pavane.dev/rollout-id"
LAST_GENERATION_ANNOTATION = "pavane.dev/last-generation"
REPLICAS_ANNOTATION = "pavane.dev/replicas"
"""On a StatefulSet: the number of pods that the planner decided on, whatever somebody has set by hand since; 0 = it is
suspended, or on its way there."""
REPAIR_ANNOTATION = "pavane.dev/repair"
"""On a revision and on the pods of its template: which repair of the generation it is (2.13); absent = none."""
TEMPLATE_ANNOTATION = "pavane.dev/template"
"""On the pods of a role that belongs to the resource: which template, with its config file, they are made of."""
PAUSE_ANNOTATION = "pavane.dev/pause-reconciliation"
SKIP_FINALIZER_ANNOTATION = "pavane.dev/skip-finalizer"
DELETE_IN_USE_ANNOTATION = "pavane.dev/delete-in-use"
"""Whoever refers to the resource shall not hold up its deletion."""
TEMPLATE_DRIFT = "TemplateDrift"
"""Condition: somebody has changed what pods are made of."""
CAN_SWITCH_BACK = "CanSwitchBack"
"""Condition while a generation bakes: whether the former one could take over again."""
IN_USE = "InUse"
"""Condition of a resource that is being deleted: true = somebody refers to it; false = its deletion goes ahead."""
BACKUP_FAILED = "BackupFailed"
"""Condition of a resource with a schedule of backups: whether the last one failed. A pass over others tells it."""
FINALIZER = "pavane.dev/cleanup"


# ---- seen


@dataclass(frozen=True, slots=True)
class Resource:
    """The custom resource as read last."""

    kind: str
    name: str
    namespace: str
    uid: str
    resource_version: str
    metadata_generation: int
    spec: CommonSpec
    """Parsed by the kind's model; kinds pass their own subclass."""
    status: Status | None
    """None where there is none that can be read; of the kind's status model otherwise."""
    finalizers: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    deleted_at: datetime | None = None
    """metadata.deletionTimestamp, minus the grace period if there is one."""


@dataclass(frozen=True, slots=True)
class Child:
    """An object that belongs to the resource: owned by it, or a volume claim with its labels."""

    kind: str
    name: str
    uid: str
    resource_version: str
    body: Mapping[str, Any]
    """The whole live object."""

    @property
    def labels(self) -> Mapping[str, str]:
        """metadata.labels"""
        labels: Mapping[str, str] = self.body.get("metadata", {}).get("labels") or {}
        return labels

    @property
    def annotations(self) -> Mapping[str, str]:
        """metadata.annotations"""
        annotations: Mapping[str, str] = self.body.get("metadata", {}).get("annotations") or {}
        return annotations

    @property
    def generation(self) -> int | None:
        """The number on label `pavane.dev/generation`; None for an object of the whole resource."""
        return parse_number(self.labels.get(GENERATION_LABEL))

    @property
    def deleting(self) -> bool:
        """Whether the object has a deletion timestamp."""
        return "deletionTimestamp" in self.body.get("metadata", {})


@dataclass(frozen=True, slots=True)
class PodBlocker:
    """One blocker that a pod reports itself (docs/specs/compute.md 5, `Blocker`)."""

    reason: str
    message: str = ""
    detail: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageView:
    """What is known of a pod's staged life, from its stream or, without one, from its `/stage`."""

    stage: Stage
    connected: bool
    """A stream of ours is open and the pod has answered on it."""
    asked: Stage | None = None
    """The stage up to which commands were sent on the present stream; None before and on a new stream."""
    progress: int | None = None
    target: int | None = None
    leads: bool = False
    """Serves writes, with the fence of its generation."""
    done: bool = False
    """Fenced by a later generation, and follows it no more."""
    fence: int | None = None
    """The greatest generation that the pod knows to hold the fence."""
    blockers: tuple[PodBlocker, ...] = ()
    mark: str | None = None
    """Another text whenever what the pod can tell of the store has changed; only polls tell it."""
    within_lag_since: datetime | None = None
    """Since when the lag was never above the allowed one on this stream; None while it is (`plan.clock`)."""
    first_write_ms: int | None = None
    """Unix milliseconds of the first write this generation accepted."""
    last_write_ms: int | None = None
    """Unix milliseconds of the last write this generation accepted."""
    write_gap_ms: int | None = None
    """Longest time that a part of the state had no writer, where such parts move one by one."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of the resource."""

    name: str
    uid: str
    resource_version: str
    generation: int
    address: str | None = None
    ready: bool = False
    deleting: bool = False
    scheduled: bool = True
    restarts: int = 0
    """Restarts of all its containers together."""
    waiting_reason: str | None = None
    """Why a container waits, as the kubelet says: `CrashLoopBackOff`, `ImagePullBackOff`, …"""
    waiting_message: str = ""
    """What the kubelet says to that or, of a pod that no node has, the scheduler."""
    ended: str = ""
    """How a container of it failed last, in words; empty if none did."""
    repair: int = 0
    """Which repair of its generation its template is from (2.13); 0 = the one it was created with."""
    template: str = ""
    """What `TEMPLATE_ANNOTATION` says on it."""
    follows: bool = False
    """Another pod of its generation leads it, not the operator: it has no stages here, and counts by being Ready."""
    stage: StageView | None = None
    """None while nothing was heard of it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something cannot be: a CamelCase reason and a sentence for people."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Writers:
    """The generations that may write now; evicting their pods can cost the quorum."""

    generations: tuple[int, ...] = ()
    moving: bool = False
    """The right to write moves from the first to the last of them, or members come and go in the only one; a first
    generation has it from nobody."""
    fence: int = 0
    """The generation that has the right to write or, from the first irreversible step on, is to get it; in a bootstrap
    the one that is being made. 0 = there is none yet."""


@dataclass(frozen=True, slots=True)
class OwnCondition:
    """A condition that only this kind has."""

    type: str
    status: bool | None
    """None = unknown."""
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a kind's promotion saw in the store (docs/specs/operator.md 3)."""

    leads: bool = False
    """The next generation has the fence and serves writes: seen in the store, not assumed from an answer."""
    safety: Problem | None = Problem("NoQuorum", "the store has not been asked yet")
    """What is missing for the safety minimum; None = it is met."""
    steps_done: frozenset[str] = frozenset()
    """Names of the steps whose effect is already there."""
    request_expired: bool = False
    """The store refused the present step's request id as too old: it must be recorded with a new time."""
    fence: int | None = None
    """The generation that holds the fence in the store; None = the store did not answer, or has none."""
    down: Problem | None = None
    """Why the active generation takes no writes: `NoQuorum`, `ActiveDown`, `QuorumLost`. None = it does, or unknown."""
    members: frozenset[str] | None = None
    """Pods that the store counts on, known for good: no set of pods gets smaller than they need. Empty where a kind's
    store counts on none; None = unknown, then no set changes its size."""
    left: int | None = None
    """The last generation from which the store took the right to write to give it back to a former one, where its fence
    tells; elsewhere `removed` does."""
    removed: frozenset[str] = frozenset()
    """Pods that the store took out: they can come back on a new volume alone."""
    undecided: bool = False
    """Pods of two generations may write by their own word, and one of them has not read yet that it may not."""
    stops_last: str | None = None
    """The pod that a suspension stops after all others; None = any order."""
    exchange: Problem | None = Problem("NoQuorum", "the store has not been asked yet")
    """Why the next pod of a role that belongs to the resource must not be replaced yet; None = it may."""
    standing: int | None = None
    """How many pods of a role that belongs to the resource the store counts on; None = unknown, then none goes."""
    parting: Problem | None = None
    """Why the next pods of a former generation must not go yet; only asked where they go in batches."""
    due: str | None = None
    """A step that the store needs while nothing is rolled out, once all that it takes is there, until it is done."""
    settling: bool = False
    """What `own_status` and `conditions` say will change within seconds, and no pod tells when."""
    own_status: Mapping[str, Any] = field(default_factory=dict)
    """Fields that only this kind's status has, by their Python names."""
    conditions: tuple[OwnCondition, ...] = ()
    warnings: tuple[Problem, ...] = ()
    """What lasts and is worth an event of its own while it does."""


@dataclass(frozen=True, slots=True)
class ActionFailure:
    """What the runtime met when it executed the last plan."""

    reason: str
    message: str
    rejected: bool = False
    """The API server refused an object for good (422, or 403 by admission), so a repetition is useless."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A growth of a volume that the API server refused; kept in memory by the runtime."""

    size: str
    """What was asked for."""
    message: str
    at: datetime


@dataclass(frozen=True, slots=True)
class StepCall:
    """How the last call of `Promotion.step` goes; kept in memory by the runtime."""

    name: str
    at: datetime
    """`rollout.step.at` that it was called with."""
    running: bool
    retry_at: datetime | None = None
    """Not to be called again before."""
    message: str = ""
    """The error of the last call; empty if it had none."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the operator that the planner obeys."""

    image_pull_limit: timedelta = timedelta(minutes=10)
    """How long an image may fail to be pulled before the attempt is aborted (C5)."""


EXPIRES_SOON = timedelta(days=14)
"""Before a user's certificate ends he is warned: issuers by hand, and holidays, take about as long."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """What is to be done about the certificates of the resource; the planner knows no cryptography."""

    actions: "tuple[CreateChild | ApplyChild, ...]" = ()
    """Write these Secrets, before any pod needs them."""
    again_at: datetime | None = None
    """When there is something to do next; None = nothing by itself."""
    problem: Problem | None = None
    """Why there is no certificate, for which the user has to do something."""
    expires_at: datetime | None = None
    """When the certificate ends that the user gave; None = he gave none."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A snapshot of everything that the planner may look at beside the resource."""

    fresh: bool
    """The cache delivered our own last write of this resource, and all kinds of children are listed (row A3)."""
    children: tuple[Child, ...] = ()
    """Objects owned by the resource, but pods; and all PersistentVolumeClaims with its labels name and instance, also
    those that a former resource of this name left: their numbers count, only those with our uid are deleted."""
    pods: tuple[Pod, ...] = ()
    standing: tuple[Pod, ...] = ()
    """Pods of the roles that belong to the resource and to none of its generations."""
    facts: Facts = Facts()
    service_pods: frozenset[str] = frozenset()
    """Names of the pods that are ready in the EndpointSlices of the public Service."""
    certificates: Certificates = Certificates()
    remembered: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    """Secrets that the resource owns and revisions of its active generation, by kind and name, as seen last: also those
    that are gone."""
    references: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the spec refers to, as read last: Secrets by name, other resources as `Kind/name`; what does not exist is
    missing here."""
    users: tuple[str, ...] | None = None
    """Who refers to the resource, each as `Kind/name`; None = nobody can, it is not being deleted, or was released."""
    gates: Mapping[Question, Standing] = field(default_factory=dict)
    """What the gates that are asked have said since they are."""
    failure: ActionFailure | None = None
    step_call: StepCall | None = None
    refusals: Mapping[str, Refusal] = field(default_factory=dict)
    """By uid of the volume claim."""
    status_written_at: datetime | None = None
    """When the runtime last wrote the status; None = not since it started."""


# ---- decided


@dataclass(frozen=True, slots=True)
class Repair:
    """A generation whose pods are rendered afresh in place (2.13)."""

    time: int
    """The first, the second, … of this generation."""
    former: Child
    """The revision that counted till now: what it says about volumes stays."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The complete intent for one object."""

    body: Mapping[str, Any]
    create_only: bool = False
    """By POST; if it is there already, what stands there counts."""
    guarded: bool = False
    """A late apply of a former operator would harm: by POST, then applied with the resourceVersion that was seen."""

    @classmethod
    def of(cls, body: Mapping[str, Any], *, create_only: bool = False, guarded: bool = False) -> "Manifest":
        """A manifest stamped with the hash of the whole intent (annotation `pavane.dev/spec-hash`)."""
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        digest = hashlib.sha256(text.encode()).hexdigest()[:SPEC_HASH_DIGITS]
        metadata = dict(body["metadata"])
        metadata["annotations"] = {**metadata.get("annotations", {}), SPEC_HASH_ANNOTATION: digest}
        return cls({**body, "metadata": metadata}, create_only, guarded)

    @property
    def kind(self) -> str:
        """Kind of the object."""
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        """Name of the object."""
        return str(self.body["metadata"]["name"])


SPEC_HASH_DIGITS = 16
"""Hex digits of the intent's hash: 64 bit, only ever compared with the former intent of the same object."""


@dataclass(frozen=True, slots=True)
class MarkResource:
    """Apply finalizer and annotation `last-generation` together, as manager `pavane-operator` (5.1)."""

    last_generation: int | None
    finalizer: bool = True
    """False removes it, and with it the object when it is being deleted."""


@dataclass(frozen=True, slots=True)
class CreateChild:
    """POST; that it exists already is success."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class ApplyChild:
    """Server-side apply; with a resourceVersion where a late one of a former operator would harm (public Service)."""

    manifest: Manifest
    resource_version: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteChild:
    """Delete with both preconditions; that it is gone already is success."""

    kind: str
    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class GrowVolume:
    """Let a volume claim ask for this size. A refusal fails nothing: it is seen as `Observed.refusals`."""

    name: str
    uid: str
    size: str


@dataclass(frozen=True, slots=True)
class AdvanceStage:
    """Send the pod, on its stream, the commands up to ReadOnly (D3).

    CreateTimely, CreateInstance, UpdateConfiguration with `settings`, InitializationComplete. Returns once they are
    queued; the pod reports. From then on `StageView.asked` is READ_ONLY.
    """

    pod: str
    generation: int
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AllowWrites:
    """Let the pod write (D9): the commands of `AdvanceStage` that it lacks, then AllowWrites.

    Its token is (generation, first half of the operator's epoch). From then on `StageView.asked` is READ_WRITE.
    """

    pod: str
    generation: int
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunStep:
    """Start `Promotion.step`; the runtime runs it beside the planning and shows it as `Observed.step_call`."""

    name: str
    generation: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Undo:
    """Call `Promotion.undo` for an aborted generation; idempotent."""

    generation: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Call `Kind.leave`: the last pod is gone, and the resource goes next; idempotent."""


Action: TypeAlias = (
    MarkResource
    | CreateChild
    | ApplyChild
    | DeleteChild
    | GrowVolume
    | AdvanceStage
    | AllowWrites
    | RunStep
    | Undo
    | Leave
)


@dataclass(frozen=True, slots=True)
class Event:
    """An event to post once the plan is executed."""

    reason: str
    note: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now."""

    row: str
    """Name of the table row that decided, for spans, logs and tests."""
    actions: tuple[Action, ...] = ()
    """In this order, before the status."""
    status: Status | None = None
    """To be written with the resourceVersion that was read; None = unchanged."""
    wake_at: datetime | None = None
    events: tuple[Event, ...] = ()
    lasting: tuple[Event, ...] = ()
    """Events of what lasts; to be posted when they begin, not again for as long as they stay."""
    streams: frozenset[str] = frozenset()
    """Pods to which a stage stream is to be open; all others are to be closed."""
    questions: tuple[Question, ...] = ()
    """What is to be asked from now on; what others said is to be forgotten."""
    critical: bool = False
    """Claims, promotes, deletes or drops the finalizer: no failure may write its status without its actions. What
    `needs_fresh` is read afresh and planned again from that, and executed only if it is still decided so (5.4)."""
    takes_away: bool = False
    """It is critical, and objects, pods or the finalizer go: read the objects afresh as well."""

    @property
    def needs_fresh(self) -> bool:
        """Whether to read before it is executed; a status alone the server refuses if the resource has changed."""
        return self.critical and bool(self.actions)

    @property
    def empty(self) -> bool:
        """Nothing is to be done before `wake_at` or the next event."""
        return not self.actions and self.status is None


NUMBER_MAX_DIGITS = 15
"""Digits of the largest generation number that counts: every reader of JSON still holds it exactly."""


def parse_number(text: str | None) -> int | None:
    """The positive generation number that a label or annotation carries; None for anything else."""
    if text is None or len(text) > NUMBER_MAX_DIGITS or not (text.isascii() and text.isdecimal()):
        return None
    return int(text) or None


def parse_time(text: str | None) -> datetime | None:
    """The time that a Kubernetes timestamp names; None for anything else."""
    try:
        parsed = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return parsed if parsed is None or parsed.tzinfo else None
