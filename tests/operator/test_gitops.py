"""docs/gitops.md: its checks, run by their own languages on statuses that the operator writes."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import celpy
import lupa
import pytest
import yaml
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError

from pavane_operator.crds.backup import BackupStatus, Phase
from pavane_operator.crds.definitions import KINDS, all_kinds
from pavane_operator.crds.status import State, Status
from pavane_operator.kinds.dataflow.handing import Verdict
from pavane_operator.kinds.dataflow.handing import status as dataflow_status
from pavane_operator.kube.resources import GROUP, VERSION, Object
from pavane_operator.plan.model import PAUSE_ANNOTATION, Certificates, Problem
from tests.operator.model_cluster_gates import gate
from tests.operator.model_cluster_windows import CLOSED
from tests.operator.test_backups import backup, decided, pod, running
from tests.operator.test_plan_status import Lab, conditions_of

PAGE = (Path(__file__).parents[2] / "docs" / "gitops.md").read_text(encoding="utf-8")
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
WAIT, DONE, BROKEN, HELD = "Progressing", "Healthy", "Degraded", "Suspended"
IN_PROGRESS, CURRENT, FAILED = "InProgress", "Current", "Failed"


# ---- the three readers


@functools.cache
def snippets() -> tuple[Any, ...]:
    """The YAML blocks of the page."""
    return tuple(yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))


@functools.cache
def health_script() -> str:
    (config,) = (each for each in snippets() if each.get("kind") == "ConfigMap")
    ((key, script),) = yaml.safe_load(config["data"]["resource.customizations"]).items()
    assert key == f"{GROUP}/*"
    return str(script["health.lua"])


def argo(body: Object) -> tuple[str, str]:
    """Health and message, by the script alone: as in Argo CD no library of Lua can be called."""
    lua = lupa.LuaRuntime(register_eval=False, register_builtins=False)
    names = lua.globals()
    kept = {name: names[name] for name in ("ipairs",)}
    for name in list(names):
        names[name] = None
    for name, value in kept.items():
        names[name] = value
    names.obj = lua.table_from(body, recursive=True)
    result = lua.execute(health_script())
    return result["status"], result["message"]


@functools.cache
def expressions() -> dict[str, dict[str, celpy.Runner]]:
    (found,) = (each["spec"]["healthCheckExprs"] for each in snippets() if "healthCheckExprs" in each.get("spec", {}))
    environment = celpy.Environment()
    assert {each["apiVersion"] for each in found} == {f"{GROUP}/{VERSION}"}
    return {
        each["kind"]: {name: environment.program(environment.compile(each[name])) for name in ("failed", "current")}
        for each in found
    }


def flux(body: Object) -> str:
    """The first expression that is true, in Flux's order; what cannot be evaluated yet waits."""
    variables = {name: json_to_cel(value) for name, value in body.items()}
    try:
        for name, outcome in (("failed", FAILED), ("current", CURRENT)):
            if expressions()[body["kind"]][name].evaluate(variables):
                return outcome
    except CELEvalError:
        assert "status" not in body
    return IN_PROGRESS


def kstatus(body: Object) -> str:
    """What a reader without our expressions sees: the rules of kstatus for custom resources."""
    status = body.get("status") or {}
    if status.get("observedGeneration", body["metadata"]["generation"]) != body["metadata"]["generation"]:
        return IN_PROGRESS
    found = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    if found.get("Reconciling") == "True":
        return IN_PROGRESS
    if found.get("Stalled") == "True":
        return FAILED
    return CURRENT if found.get("Ready", "True") == "True" else IN_PROGRESS


# ---- kinds that run pods


def written(lab: Lab, status: Status | None = None, kind: str = "RaftCluster") -> Object:
    """The resource with what its operator writes."""
    resource = lab.world.resource()
    metadata = {"name": resource.name, "generation": resource.metadata_generation}
    return {"kind": kind, "metadata": metadata, "spec": {}, "status": (status or lab.status()).dump()}


def serving(**rollout: Any) -> Lab:
    lab = Lab(**rollout)
    lab.active(1)
    lab.until(lambda world: lab.plan().empty)
    return lab


def attempt(reached: Callable[[Lab], bool], **rollout: Any) -> Lab:
    """An attempt of generation 2 beside generation 1, once something is so."""
    lab = serving()
    lab.world.rollout(restart="1", **rollout)
    lab.until(lambda world: reached(lab))
    return lab


def says(condition: str, reason: str) -> Callable[[Lab], bool]:
    return lambda lab: (lab.world.condition(condition) or ("", ""))[1] == reason


def starting() -> Object:
    lab = Lab()
    lab.until(lambda world: world.state is State.INITIALIZING)
    return written(lab)


def rolling_out() -> Object:
    return written(attempt(lambda lab: lab.world.state is State.CATCHING_UP))


def paused_by_annotation() -> Object:
    lab = serving()
    lab.world.annotations[PAUSE_ANNOTATION] = "true"
    return written(lab)


def suspended() -> Object:
    lab = serving()
    lab.world.change(suspend=True)
    lab.until(lambda world: world.condition("Ready") == ("False", "Suspended"))
    return written(lab)


def gate_failed() -> Object:
    lab = serving()
    lab.world.faults.answers["probe"] = False
    lab.world.rollout(restart="1", gates=[gate("Hold")])
    lab.until(lambda world: says("UpToDate", "GateFailed")(lab))
    return written(lab)


def rolled_back() -> Object:
    lab = serving()
    lab.world.faults.unpullable.add(2)
    lab.world.rollout(restart="1", deadline="30s", onDeadline="Abort")
    lab.until(lambda world: world.state is State.IDLE and world.status.failed is not None)
    return written(lab)


def late() -> Object:
    lab = serving()
    lab.world.faults.lagging.add(2)
    lab.world.rollout(restart="1", deadline="30s", onDeadline="Hold")
    lab.until(lambda world: world.condition("Stalled") == ("True", "DeadlineExceeded"))
    return written(lab)


def down(reason: str) -> Object:
    lab = serving()
    facts = lab.operator.observe().facts
    return written(lab, lab.status(facts=dataclasses.replace(facts, down=Problem(reason, "two pods do not answer"))))


def missing() -> Object:
    lab = serving()
    return written(lab, lab.status(certificates=Certificates(problem=Problem("ReferenceNotReady", "no Secret mine"))))


def baking() -> Object:
    lab = attempt(lambda lab: lab.world.state is State.BAKING, bake="10m")
    lab.until(lambda world: lab.plan().empty)
    return written(lab)


def unseen() -> Object:
    body = written(serving())
    return {**body, "metadata": {**body["metadata"], "generation": body["metadata"]["generation"] + 1}}


def reached(condition: str, reason: str, **rollout: Any) -> Callable[[], Object]:
    return lambda: written(attempt(says(condition, reason), **rollout))


STATES: dict[str, tuple[Callable[[], Object], str, str, str]] = {
    "serves": (lambda: written(serving()), DONE, CURRENT, CURRENT),
    "bakes": (baking, DONE, CURRENT, CURRENT),
    "starts": (starting, WAIT, IN_PROGRESS, IN_PROGRESS),
    "rolls out": (
        lambda: written(attempt(lambda lab: lab.world.state is State.CATCHING_UP)),
        WAIT,
        IN_PROGRESS,
        IN_PROGRESS,
    ),
    "not seen": (unseen, WAIT, IN_PROGRESS, IN_PROGRESS),
    "a reference is missing": (missing, WAIT, IN_PROGRESS, IN_PROGRESS),
    "waits for approval": (reached("UpToDate", "WaitingForApproval", strategy="Manual"), HELD, CURRENT, IN_PROGRESS),
    "waits for a window": (reached("UpToDate", "OutsideWindow", windows=[CLOSED]), HELD, CURRENT, IN_PROGRESS),
    "is held": (reached("UpToDate", "Paused", paused=True), HELD, CURRENT, CURRENT),
    "paused by annotation": (paused_by_annotation, HELD, CURRENT, CURRENT),
    "suspended": (suspended, HELD, CURRENT, IN_PROGRESS),
    "a gate has failed": (gate_failed, BROKEN, FAILED, IN_PROGRESS),
    "a rollout has failed": (rolled_back, BROKEN, FAILED, FAILED),
    "its deadline has passed": (late, BROKEN, FAILED, IN_PROGRESS),
    "takes no writes": (lambda: down("NoQuorum"), BROKEN, IN_PROGRESS, IN_PROGRESS),
    "has lost its majority": (lambda: down("QuorumLost"), BROKEN, FAILED, FAILED),
}


@pytest.mark.parametrize("state", STATES)
def test_each_state_of_a_rollout_is_seen_as_the_page_says(state: str) -> None:
    make, health, by_flux, by_kstatus = STATES[state]
    body = make()
    about = conditions_of(Status.model_validate(body["status"]))
    assert (argo(body)[0], flux(body), kstatus(body)) == (health, by_flux, by_kstatus), about


@pytest.mark.parametrize("kind", [each.name for each in KINDS])
def test_all_kinds_with_pods_are_judged_alike(kind: str) -> None:
    for make, health, by_flux, _ in STATES.values():
        body = {**make(), "kind": kind}
        assert (argo(body)[0], flux(body)) == (health, by_flux)


def test_there_is_an_expression_for_each_kind() -> None:
    assert expressions().keys() == {each.name for each in all_kinds()}


@pytest.mark.parametrize("kind", [each.name for each in all_kinds()])
def test_what_no_operator_has_seen_is_in_progress(kind: str) -> None:
    body = {"kind": kind, "metadata": {"generation": 1}, "spec": {}}
    assert (argo(body), flux(body)) == ((WAIT, "the operator has not seen this spec yet"), IN_PROGRESS)


def test_the_message_says_why() -> None:
    assert argo(down("NoQuorum"))[1] == "NoQuorum: two pods do not answer"


# ---- the others


def backups() -> Iterator[tuple[BackupStatus, str, str]]:
    body = backup("b", status=running())
    yield running(), WAIT, IN_PROGRESS
    yield decided(body, pod("Succeeded", '{"index": 71, "bytes": 1, "digest": "ab", "kept": ""}')).status, DONE, CURRENT
    yield decided(body, None, None).status, BROKEN, FAILED


def test_a_backup_is_seen_as_the_page_says() -> None:
    phases = []
    for status, health, by_flux in backups():
        body = {**backup("b"), "kind": "Backup", "status": {"conditions": [], **status.dump(), "observedGeneration": 1}}
        phases.append(status.phase)
        assert (argo(body)[0], flux(body)) == (health, by_flux)
    assert phases == [Phase.RUNNING, Phase.COMPLETE, Phase.FAILED]


@pytest.mark.parametrize(("accepted", "health", "by_flux"), [(True, WAIT, IN_PROGRESS), (False, BROKEN, FAILED)])
def test_a_dataflow_is_seen_as_the_page_says(accepted: bool, health: str, by_flux: str) -> None:
    verdict = Verdict(accepted, "Accepted" if accepted else "InvalidScript", "line 1: no such table")
    body: Object = {"kind": "Dataflow", "metadata": {"name": "flow", "generation": 3}, "spec": {}}
    body["status"] = dataflow_status(body, verdict, None, None, NOW).dump()
    assert (argo(body)[0], flux(body)) == (health, by_flux)
    if accepted:
        for each in body["status"]["conditions"]:
            each["status"] = "True"
        assert (argo(body)[0], flux(body)) == (DONE, CURRENT)
