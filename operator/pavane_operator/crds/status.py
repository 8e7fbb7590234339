"""The status that all kinds share (docs/specs/operator.md 1.9)."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, Self

from pydantic import ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from pavane_operator.crds.base import TEXT_MAX_CHARACTERS, Count, Model, Name, Text, Time
from pavane_operator.crds.gates import GATES_MAX_ITEMS

BLOCKERS_MAX_ITEMS = 10
"""The worst blockers are stored, not all: a status must stay small and readable."""
GENERATIONS_MAX_ITEMS = 4
"""Active, next, retiring and one more in between; more never have pods at once."""
HISTORY_MAX_ITEMS = 10
"""How many former attempts a user can look back on."""
CONDITIONS_MAX_ITEMS = 16
"""The common conditions and those of the kind."""
ENDPOINTS_MAX_ITEMS = 64
"""One per pod and port at most."""


class State(StrEnum):
    """Where a rollout stands (docs/specs/operator.md 2.1)."""

    IDLE = "Idle"
    CREATING_NEXT = "CreatingNext"
    INITIALIZING = "Initializing"
    CATCHING_UP = "CatchingUp"
    CAUGHT_UP = "CaughtUp"
    PROMOTING = "Promoting"
    BAKING = "Baking"
    RETIRING = "Retiring"
    ABORTING = "Aborting"


class GenerationRole(StrEnum):
    """What a generation is to its resource."""

    ACTIVE = "Active"
    NEXT = "Next"
    STANDBY = "Standby"
    RETIRING = "Retiring"


class Result(StrEnum):
    """How an attempt ended."""

    PROMOTED = "Promoted"
    ABORTED = "Aborted"
    SUPERSEDED = "Superseded"
    ROLLED_BACK = "RolledBack"


SERVED = frozenset({Result.PROMOTED, Result.ROLLED_BACK})
"""Results of generations that once had the right to write."""


class Verdict(StrEnum):
    """How a gate of the spec stands."""

    WAITING = "Waiting"
    PASSED = "Passed"
    FAILING = "Failing"
    FAILED = "Failed"
    INCONCLUSIVE = "Inconclusive"


class Truth(StrEnum):
    """Status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class StatusModel(Model):
    """A part of a status. Fields of another release are ignored: a status can always be rebuilt."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )


class Step(StatusModel):
    """A step of a promotion, recorded before it is taken."""

    name: Name
    """Name of the step; the kind defines them, in order."""
    at: Time
    """When it was recorded; part of the request id, so that a repetition is recognised."""
    detail: Text | None = None
    """What the step waits for."""


class Blocker(StatusModel):
    """One reason why a rollout waits."""

    pod: Name | None = None
    """The pod that the rollout waits for; absent if it is not a single pod."""
    reason: Name
    """Machine-readable reason, docs/specs/operator.md 2.6."""
    message: Text = ""
    """What is wrong and, if you can do something, what to do next."""
    lag: Count | None = None
    """How far the pod lags behind, in the kind's unit."""
    since: Time
    """When this blocker appeared."""


class GateStatus(StatusModel):
    """How one gate of the spec stands."""

    name: Name
    """Its name."""
    verdict: Verdict
    """Waiting: good, not for long enough yet. Passed: good for as long as it has to be. Failing: bad. Failed: bad three
    times in a row. Inconclusive: no answer, or one that says nothing."""
    value: Name | None = None
    """What was found, the worst of all pods."""
    message: Text = ""
    """The same in words."""
    since: Time
    """Since when it has been good, bad or inconclusive without interruption."""
    at: Time
    """When this was said; looked at all the time, written once a minute while nothing changes."""


class Rollout(StatusModel):
    """The current attempt."""

    state: State
    """Where the attempt stands; Idle when there is none."""
    id: Name | None = None
    """Rollout id: a hash of all pod-affecting fields."""
    generation: Count | None = None
    """Number of the generation that is being rolled out."""
    step: Step | None = None
    """Last recorded step of the promotion."""
    started_at: Time | None = None
    """When the attempt began."""
    deadline: Time | None = None
    """When the promotion should have begun; extended by the time the attempt was held."""
    held_seconds: Count | None = None
    """Seconds paused, waiting for approval, a window, or for the time of gates that are good; they do not count towards
    the deadline."""
    forced: bool | None = None
    """True when the promotion was forced."""
    reason: Name | None = None
    """Why the attempt is being aborted."""
    message: Text | None = None
    """The same in words; before, how long it waited for its window."""
    blockers: list[Blocker] = Field(default_factory=list, max_length=BLOCKERS_MAX_ITEMS)
    """What the attempt is waiting for, worst first."""
    gates: list[GateStatus] = Field(default_factory=list, max_length=GATES_MAX_ITEMS)
    """How the gates of the spec stand; only while they are asked, and what they said last before a promotion."""


class Failure(StatusModel):
    """The last attempt that failed or was cancelled. The operator does not retry its spec by itself."""

    id: Name
    """Rollout id of the failed spec."""
    generation: Count
    """Number of the failed attempt; set `spec.rollout.retry` to it to try again."""
    reason: Name
    """Why it failed."""
    message: Text = ""
    """The same in words."""
    at: Time
    """When it failed."""


class Generation(StatusModel):
    """One generation that has pods."""

    number: Count
    """Its number."""
    role: GenerationRole
    """Its role for the resource."""
    image: Name = ""
    """Image of its pods."""
    id: Name = ""
    """Rollout id that it was created from."""
    pods_ready: Count = 0
    """Number of pods that are Ready."""
    pods: Count = 0
    """Number of pods that it should have."""
    stage: Name | None = None
    """The lowest stage of its pods."""
    progress: Count | None = None
    """Progress of the pod that lags most, in the kind's unit."""
    target: Count | None = None
    """Target of that pod."""
    since: Time | None = None
    """When it was created."""


class Attempt(StatusModel):
    """One finished attempt."""

    generation: Count
    """Its number."""
    id: Name
    """Its rollout id."""
    image: Name = ""
    """Image of its pods."""
    result: Result
    """How it ended."""
    reason: Name | None = None
    """Why it was not promoted."""
    message: Text | None = None
    """The same in words; of one that was promoted, how long it waited for its window."""
    started_at: Time | None = None
    """When it began."""
    finished_at: Time
    """When it ended."""
    write_gap_ms: Count | None = None
    """Milliseconds between the last write accepted by the old and the first by the new generation."""


class Condition(StatusModel):
    """A condition in the usual Kubernetes form."""

    type: Name
    """Type of the condition."""
    status: Truth
    """Whether it holds."""
    observed_generation: Count | None = None
    """metadata.generation of the spec that it describes."""
    last_transition_time: Time
    """When `status` last changed."""
    reason: Name
    """Machine-readable reason."""
    message: Text = ""
    """Human-readable explanation."""


def condition_of(
    former: Iterable[Condition],
    kind: str,
    truth: Truth,
    reason: str,
    message: str,
    *,
    generation: int | None,
    now: datetime,
) -> Condition:
    """Return the condition of this type that comes after ``former`` ones; a text that is too long is cut."""
    since = next((each.last_transition_time for each in former if each.type == kind and each.status is truth), None)
    return Condition(
        type=kind,
        status=truth,
        observed_generation=generation,
        last_transition_time=since or now.replace(microsecond=0),
        reason=reason,
        message=message[:TEXT_MAX_CHARACTERS],
    )


class Endpoint(StatusModel):
    """Something that a client can connect to."""

    name: Name
    """Name of the port."""
    address: Name
    """DNS name or address."""
    port: Count
    """Port number."""
    protocol: Name = "TCP"
    """Transport protocol."""


class StoredStatus(StatusModel):
    """What the server stores as the status of a resource."""

    @classmethod
    def parse(cls, stored: object) -> Self | None:
        """The stored status, or None where there is none that can be read: the planner then rebuilds it (2.3)."""
        if not stored:
            return None
        try:
            return cls.model_validate(stored, extra="ignore")
        except ValidationError:
            return None

    def in_key_order(self) -> Self:
        """The same whatever the order of entries that have a key: a server puts new ones behind those it has."""
        ordered: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, dict) and isinstance(keys := extra.get("x-kubernetes-list-map-keys"), list):
                ordered[name] = sorted(getattr(self, name), key=partial(_values, keys))
        return self.model_copy(update=ordered)

    def dump(self) -> dict[str, Any]:
        """The status as the server stores it: camelCase, absent instead of null."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Status(StoredStatus):
    """Status of a resource; kinds add their own fields in a subclass."""

    observed_generation: Count | None = None
    """metadata.generation of the spec that this status describes."""
    active_generation: Count | None = None
    """The generation that may write; absent before the first."""
    next_generation: Count | None = None
    """The generation that is being rolled out."""
    last_generation: Count | None = None
    """The highest number ever claimed."""
    rollout: Rollout | None = None
    """The current attempt."""
    failed: Failure | None = None
    """The last failed or cancelled attempt, as long as the spec is unchanged since."""
    generations: list[Generation] = Field(
        default_factory=list,
        max_length=GENERATIONS_MAX_ITEMS,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["number"]},
    )
    """Generations that have pods."""
    history: list[Attempt] = Field(default_factory=list, max_length=HISTORY_MAX_ITEMS)
    """Finished attempts, newest first."""
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=CONDITIONS_MAX_ITEMS,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """Ready, UpToDate, CaughtUp, Paused; Reconciling and Stalled only while true; and the kind's own."""
    certificate_expires_at: Time | None = None
    """When the certificate ends that `spec.tls.secretName` holds."""
    endpoints: list[Endpoint] = Field(default_factory=list, max_length=ENDPOINTS_MAX_ITEMS)
    """Where clients connect."""
    replicas: Count | None = None
    """Pods of the active generation, for the subresource scale."""
    ready_pods: Text | None = None
    """How many pods of the active generation are ready, and how many it should have: `3/3`."""
    selector: Text | None = None
    """Labels of these pods, for the subresource scale."""


def _values(keys: list[Any], entry: Model) -> list[Any]:
    return [getattr(entry, key) for key in keys]
