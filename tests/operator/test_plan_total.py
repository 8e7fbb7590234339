"""The planner decides for every input, alike each time, and writes only statuses that the schema accepts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st

from pavane.wire.stages import Stage
from pavane_operator.crds.common import rollout_id
from pavane_operator.crds.gates import GateSpec
from pavane_operator.crds.rollout import OnDeadline, Strategy
from pavane_operator.crds.schema import structural_schema
from pavane_operator.crds.status import (
    BLOCKERS_MAX_ITEMS,
    HISTORY_MAX_ITEMS,
    Attempt,
    Blocker,
    Failure,
    GateStatus,
    Result,
    Rollout,
    State,
    Status,
    Step,
    Verdict,
)
from pavane_operator.plan.model import (
    FINALIZER,
    GENERATION_LABEL,
    LAST_GENERATION_ANNOTATION,
    PAUSE_ANNOTATION,
    SKIP_FINALIZER_ANNOTATION,
    UID_LABEL,
    ActionFailure,
    Child,
    Facts,
    Manifest,
    Observed,
    Pod,
    PodBlocker,
    Problem,
    Resource,
    RunStep,
    StageView,
    StepCall,
    Writers,
)
from pavane_operator.plan.planner import plan
from pavane_operator.plan.questions import Answer, Question, Standing
from tests.operator.model_cluster_kind import KIND, NAME, START, UID, ModelSpec

SCHEMA = jsonschema.Draft202012Validator(structural_schema(Status, defaults=False, cel=False))
NUMBERS = st.integers(1, 4)
OPTIONAL_NUMBERS = st.none() | NUMBERS
TIMES = st.integers(-4000, 100).map(lambda seconds: START + timedelta(seconds=seconds))
OPTIONAL_TIMES = st.none() | TIMES
IDS = st.sampled_from(["", "other", "0123456789abcdef"])
STEPS = st.builds(Step, name=st.sampled_from(["Permit", "Fence", "Serve", "Retire", "Unknown"]), at=TIMES)
REASONS = st.sampled_from([
    "Paused", "WaitingForApproval", "OutsideWindow", "ImagePull", "NoQuorum", "StateLost", "FenceTooLow",
])  # fmt: skip
BLOCKERS = st.builds(Blocker, pod=st.none() | st.just(f"{NAME}-server-g2-0"), reason=REASONS, since=TIMES)
GATE = {"name": "probe", "for": "0s", "onFailure": "SwitchBack", "prometheus": {"query": "${generation}", "min": 1}}
WINDOWS = st.fixed_dictionaries({
    "schedule": st.sampled_from(["* * * * *", "0 12 * * *", "0 0 30 2 *", "x x x x x"]),
    "duration": st.sampled_from(["1m", "99999999999999h"]),
    "timeZone": st.sampled_from(["Etc/UTC", "Mars/Base", "../x"]),
})  # fmt: skip
GATES = st.builds(GateStatus, name=st.just("probe"), verdict=st.sampled_from(Verdict), since=TIMES, at=TIMES)
STATUSES = st.builds(
    Status,
    active_generation=OPTIONAL_NUMBERS,
    next_generation=OPTIONAL_NUMBERS,
    last_generation=OPTIONAL_NUMBERS,
    rollout=st.builds(
        Rollout,
        state=st.sampled_from(State),
        id=st.none() | IDS,
        generation=OPTIONAL_NUMBERS,
        step=st.none() | STEPS,
        started_at=OPTIONAL_TIMES,
        deadline=OPTIONAL_TIMES,
        reason=st.none() | st.sampled_from(["CrashLoop", "Superseded"]),
        blockers=st.lists(BLOCKERS, max_size=BLOCKERS_MAX_ITEMS),
        gates=st.lists(GATES, max_size=1),
    ),
    failed=st.none() | st.builds(Failure, id=IDS, generation=NUMBERS, reason=REASONS, at=TIMES),
    history=st.lists(
        st.builds(Attempt, generation=NUMBERS, id=IDS, result=st.sampled_from(Result), finishedAt=TIMES),
        max_size=HISTORY_MAX_ITEMS,
    ),
)
SPECS = st.builds(
    lambda rollout, image, config: ModelSpec.read({"rollout": rollout, "image": image, "config": config}),
    st.fixed_dictionaries(
        {},
        optional={
            "strategy": st.sampled_from([each.value for each in Strategy]),
            "onDeadline": st.sampled_from([each.value for each in OnDeadline]),
            "paused": st.booleans(),
            "promote": NUMBERS,
            "forcePromote": NUMBERS,
            "abort": NUMBERS,
            "retry": NUMBERS,
            "crashLimit": st.integers(0, 3),
            "deadline": st.sampled_from(["0s", "30m", "99999999999999h"]),
            "bake": st.sampled_from(["1s", "99999999999999h"]),
            "gates": st.just([GATE]),
            "windows": st.lists(WINDOWS, max_size=2),
            "retireDelay": st.sampled_from(["0s", "99999999999999h"]),
            "caughtUp": st.sampled_from([{}, {"stabilityPeriod": "0s"}, {"stabilityPeriod": "99999999999999h"}]),
        },
    ),
    st.sampled_from(["", "other"]),
    st.sampled_from([{}, {"problem": "InvalidConfig"}]),
)
ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        LAST_GENERATION_ANNOTATION: st.sampled_from(["3", "", "-1", "x", "9" * 5000, "²"]),
        PAUSE_ANNOTATION: st.sampled_from(["true", "false", "false", ""]),
        SKIP_FINALIZER_ANNOTATION: st.sampled_from(["true", ""]),
    },
)
STAGES = st.builds(
    StageView,
    stage=st.sampled_from(Stage),
    connected=st.booleans(),
    asked=st.none() | st.sampled_from(Stage),
    progress=st.none() | st.integers(0, 2000),
    target=st.none() | st.integers(0, 2000),
    fence=OPTIONAL_NUMBERS,
    blockers=st.lists(
        st.builds(PodBlocker, reason=REASONS, message=st.just("m" * 3000), detail=st.just({"stored": "x"})), max_size=2
    ).map(tuple),
    within_lag_since=OPTIONAL_TIMES,
    first_write_ms=st.none() | st.integers(0, 100),
    last_write_ms=st.none() | st.integers(0, 100),
    write_gap_ms=st.none() | st.integers(1, 100),
)


def _pod(generation: int, ordinal: int, rest: dict[str, Any]) -> Pod:
    return Pod(f"{NAME}-server-g{generation}-{ordinal}", f"{generation}-{ordinal}", "1", generation, **rest)


PODS = st.lists(
    st.builds(
        _pod,
        NUMBERS,
        st.integers(0, 2),
        st.fixed_dictionaries(
            {
                "address": st.none() | st.just("127.0.0.1"),
                "ready": st.booleans(),
                "deleting": st.booleans(),
                "scheduled": st.booleans(),
                "restarts": st.integers(0, 5),
                "waiting_reason": st.sampled_from([None, "ImagePullBackOff", "CrashLoopBackOff", "Other"]),
                "stage": st.none() | STAGES,
            }
        ),
    ),
    max_size=8,
    unique_by=lambda pod: pod.name,
).map(tuple)


def _child(kind: str, name: str, metadata: dict[str, Any], spec: dict[str, Any]) -> Child:
    body = {"kind": kind, "metadata": {"name": name, **metadata}, "spec": spec, "data": {"image": "i"}}
    return Child(kind, name, f"uid-{kind}-{name}", "1", body)


CHILD_NAMES = st.sampled_from(
    [("Service", NAME), ("Secret", f"{NAME}-keys")]
    + [
        entry
        for number in range(1, 5)
        for entry in (
            ("ControllerRevision", f"{NAME}-g{number}"),
            ("ConfigMap", f"{NAME}-server-g{number}"),
            ("StatefulSet", f"{NAME}-server-g{number}"),
            ("PersistentVolumeClaim", f"data-{NAME}-server-g{number}-0"),
        )
    ]
)
LABELS = st.fixed_dictionaries(
    {},
    optional={
        GENERATION_LABEL: st.sampled_from(["1", "2", "3", "4", "0", "x", "9" * 40]),
        UID_LABEL: st.sampled_from([UID, "other"]),
    },
)
STRAY_CHILDREN = st.lists(
    st.builds(
        lambda key, metadata, spec: _child(key[0], key[1], metadata, spec),
        CHILD_NAMES,
        st.fixed_dictionaries(
            {"labels": st.none() | LABELS},
            optional={
                "annotations": st.sampled_from([{}, {"pavane.dev/rollout-id": "other"}]),
                "deletionTimestamp": st.just("2026-01-01T00:00:00Z"),
                "creationTimestamp": st.sampled_from(["2026-01-01T00:00:00Z", "never", "2026-01-01"]),
            },
        ),
        st.sampled_from(
            [{}, {"selector": None}, {"selector": {GENERATION_LABEL: "2"}, "ports": [{"port": 1}], "clusterIP": "None"}]
        ),
    ),
    max_size=10,
    unique_by=lambda child: (child.kind, child.name),
).map(tuple)


def _rendered(generation: int, stray: tuple[Child, ...]) -> tuple[Child, ...]:
    """All objects of a generation as its operator made them, and strays."""
    resource = Resource("Model", NAME, "default", UID, "1", 1, ModelSpec(), None)
    renderer = KIND.renderer
    revision = _live(renderer.revision(resource, generation, "other"))
    manifests = [
        *renderer.shared(resource, Writers((generation,)), {}),
        renderer.public_service(resource, generation - 1),
        *renderer.generation(resource, revision),
    ]
    children = {(child.kind, child.name): child for child in (*stray, revision, *map(_live, manifests))}
    return tuple(children.values())


def _live(manifest: Manifest) -> Child:
    return Child(manifest.kind, manifest.name, f"uid-{manifest.kind}-{manifest.name}", "1", manifest.body)


CHILDREN = STRAY_CHILDREN | st.builds(_rendered, NUMBERS, STRAY_CHILDREN)
PROBLEMS = st.none() | st.builds(Problem, REASONS, st.just("m" * 3000))
FACTS = st.builds(
    Facts,
    leads=st.booleans(),
    safety=PROBLEMS,
    steps_done=st.frozensets(st.sampled_from(["Permit", "Fence", "Unknown"])),
    request_expired=st.booleans(),
    fence=OPTIONAL_NUMBERS,
    down=PROBLEMS,
)
ANSWERS = st.builds(Answer, st.none() | st.booleans(), st.just("v" * 300), st.just("m" * 3000))
STANDINGS = st.dictionaries(
    st.builds(Question, st.just(GateSpec.read(GATE)), query=st.sampled_from(["1", "2", "3", "4", "5"])),
    st.builds(Standing, st.sampled_from(Verdict), TIMES, TIMES, ANSWERS),
    max_size=5,
)
OBSERVED = st.builds(
    Observed,
    gates=STANDINGS,
    fresh=st.sampled_from([True, True, True, False]),
    children=CHILDREN,
    pods=PODS,
    facts=FACTS,
    service_pods=st.frozensets(st.sampled_from([f"{NAME}-server-g{number}-0" for number in range(1, 5)])),
    failure=st.none() | st.builds(ActionFailure, REASONS, st.just("m" * 3000), st.booleans()),
    step_call=st.none()
    | st.builds(StepCall, name=st.just("Fence"), at=TIMES, running=st.booleans(), retry_at=OPTIONAL_TIMES),
    status_written_at=OPTIONAL_TIMES,
)


def _resource(likely: bool, status: Status | None, spec: ModelSpec, **rest: Any) -> Resource:
    """A resource; a likely one is in the middle of a rollout of its own spec, so that the lower rows are reached."""
    if likely and status is not None and status.rollout is not None:
        number = max(status.active_generation or 0, 1) + 1
        rollout = status.rollout.model_copy(update={"id": rollout_id(KIND.name, spec), "generation": number})
        status = status.model_copy(update={"next_generation": number, "rollout": rollout})
        rest |= {"deleted_at": None, "finalizers": (FINALIZER,), "annotations": {LAST_GENERATION_ANNOTATION: "9"}}
    return Resource(status=status, spec=spec, **rest)


RESOURCES = st.builds(
    _resource,
    likely=st.sampled_from([True, True, False]),
    kind=st.just("Model"),
    name=st.just(NAME),
    namespace=st.just("default"),
    uid=st.just(UID),
    resource_version=st.just("1"),
    metadata_generation=st.just(1),
    spec=SPECS,
    status=st.sampled_from([False, True, True, True]).flatmap(lambda there: STATUSES if there else st.none()),
    finalizers=st.sampled_from([(), (FINALIZER,), (FINALIZER,), ("other",)]),
    annotations=ANNOTATIONS,
    deleted_at=OPTIONAL_TIMES,
)


@settings(max_examples=400)
@given(RESOURCES, OBSERVED)
def test_every_input_has_a_plan_whose_status_the_schema_accepts(resource: Resource, observed: Observed) -> None:
    decided = plan(KIND, resource, observed, START)
    assert decided == plan(KIND, resource, observed, START)
    if not observed.fresh:
        assert decided.empty
    if decided.status is None:
        return
    assert [error.message for error in SCHEMA.iter_errors(decided.status.dump())] == []
    written = Resource(**{**_fields(resource), "status": Status.parse(decided.status.dump())})
    state = decided.status.rollout.state if decided.status.rollout else State.IDLE
    former = resource.status.rollout if resource.status else None
    if former is not None and state is not former.state and state in (State.PROMOTING, State.RETIRING, State.ABORTING):
        assert decided.actions == (), "the status goes before the effect"
    again = plan(KIND, written, observed, START)
    steps = [action for action in again.actions if isinstance(action, RunStep)]
    assert all(step.at == written.status.rollout.step.at for step in steps)  # type: ignore[union-attr]


def _fields(resource: Resource) -> dict[str, Any]:
    return {name: getattr(resource, name) for name in Resource.__dataclass_fields__}
