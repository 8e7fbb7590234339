"""The kind of the model cluster: the least that a kind has."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import Field

from pavane_operator.crds.base import Mark, marked
from pavane_operator.crds.common import CommonSpec, VolumesSpec
from pavane_operator.crds.descriptor import Definition
from pavane_operator.crds.status import Status
from pavane_operator.kinds.computecluster.render import left_of
from pavane_operator.kinds.fenced import BOOTSTRAP_STEPS, STEPS
from pavane_operator.plan.model import (
    GENERATION_LABEL,
    REPAIR_ANNOTATION,
    ROLLOUT_ID_ANNOTATION,
    Child,
    Manifest,
    Problem,
    Repair,
    Resource,
    Settings,
    Writers,
)
from pavane_operator.plan.port import NOTHING, Kind, PromotionStep

START = datetime(2026, 1, 1, tzinfo=UTC)
NAME = "thing"
UID = "uid-of-thing"
SETTINGS = Settings(image_pull_limit=timedelta(seconds=20))


class ModelSpec(VolumesSpec):
    replicas: int = Field(default=3, json_schema_extra=marked(Mark.LIVE))


@functools.cache
def spec_of(model: type[CommonSpec], text: str) -> CommonSpec:
    return model.read(json.loads(text))


class ModelRenderer:
    """Renders the least that a kind has."""

    def standing(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        return ()

    def references(self, resource: Resource, targets: Mapping[str, Any] = NOTHING) -> tuple[str, ...]:
        named = resource.spec.config.get("references")  # type: ignore[attr-defined]
        return tuple(str(name) for name in named) if isinstance(named, list) else ()

    def problems(self, resource: Resource, references: Mapping[str, Any]) -> tuple[Problem, ...]:
        missing = [name for name in self.references(resource) if name not in references]
        found = [Problem("ReferenceNotReady", f"Secret {name} does not exist") for name in missing]
        reason = resource.spec.config.get("problem")  # type: ignore[attr-defined]
        return (*found, *((Problem(str(reason), "as the test asked"),) if reason else ()))

    def revision(self, resource: Resource, generation: int, rollout_id: str, repair: Repair | None = None) -> Manifest:
        suffix = "" if repair is None else f"-r{repair.time}"
        body = body_of("ControllerRevision", f"{NAME}-g{generation}{suffix}", generation)
        body["metadata"]["annotations"] = {ROLLOUT_ID_ANNOTATION: rollout_id}
        if repair is not None:
            body["metadata"]["annotations"][REPAIR_ANNOTATION] = str(repair.time)
        body["data"] = {"image": resource.spec.image}
        return Manifest.of(body, create_only=True)

    def repair_problem(self, resource: Resource, revision: Child) -> Problem | None:
        kept = resource.spec.storage.storage_class_name  # type: ignore[attr-defined]
        return Problem("InvalidConfig", "as the test asked") if kept is not None else None

    def labels(self, resource: Resource) -> dict[str, str]:
        return {}

    def dns_names(self, resource: Resource) -> tuple[str, ...]:
        return (NAME,)

    def shared(self, resource: Resource, writers: Writers, references: Mapping[str, Any]) -> tuple[Manifest, ...]:
        keys = Manifest.of(body_of("Secret", f"{NAME}-keys", None), create_only=True)
        if not resource.spec.pod_disruption_budget.enabled or not writers.generations:
            return (keys,)
        budget = body_of("PodDisruptionBudget", f"{NAME}-server", None)
        budget["spec"] = {"over": list(writers.generations), "maxUnavailable": 0 if writers.moving else 1}
        return keys, Manifest.of(budget)

    def public_service(self, resource: Resource, generation: int) -> Manifest:
        body = body_of("Service", NAME, None)
        body["spec"] = {"selector": {GENERATION_LABEL: str(generation)}, "ports": [{"name": "raft", "port": 1}]}
        return Manifest.of(body, guarded=True)

    def generation(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        number = revision.generation or 0
        config = body_of("ConfigMap", f"{NAME}-server-g{number}", number)
        stateful_set = body_of("StatefulSet", f"{NAME}-server-g{number}", number)
        stateful_set["spec"] = {
            "replicas": resource.spec.replicas,  # type: ignore[attr-defined]
            "template": {
                "image": revision.body["data"]["image"],
                "repair": int(revision.annotations.get(REPAIR_ANNOTATION, 0)),
            },
        }
        return Manifest.of(config), Manifest.of(stateful_set)

    def image(self, revision: Child) -> str:
        return str(revision.body["data"]["image"])

    def expected_state(self, resource: Resource, generation: int, *, bootstrap: bool) -> Mapping[str, str]:
        return {"bootstrap": "entry"} if bootstrap else {}


def body_of(kind: str, name: str, generation: int | None) -> dict[str, Any]:
    labels = {} if generation is None else {GENERATION_LABEL: str(generation)}
    return {"kind": kind, "metadata": {"name": name, "labels": labels, "annotations": {}}}


def _no_promotion(namespace: str, name: str, uid: str) -> Any:
    raise AssertionError("the planner never speaks to a store")


PERMIT = PromotionStep("Permit", allow_writes=True)
SCALE = "Scale"
"""What `Facts.due` names while the members are not those that the spec asks for."""
FENCE = PromotionStep("Fence", irreversible=True)
EARLY = PromotionStep("Fence", irreversible=True, serves=True)
KIND = Kind(
    definition=Definition("Model", "models", "model", ModelSpec, Status, folder="model"),
    steps=(PERMIT, FENCE),
    bootstrap_steps=(PERMIT,),
    renderer=ModelRenderer(),
    promotion=_no_promotion,
)


class FencedRenderer(ModelRenderer):
    """Its pods are told from whom they take the fence back."""

    def expected_state(self, resource: Resource, generation: int, *, bootstrap: bool) -> Mapping[str, str]:
        return super().expected_state(resource, generation, bootstrap=bootstrap) or left_of(resource, generation)


FENCED = replace(KIND, steps=STEPS, bootstrap_steps=BOOTSTRAP_STEPS, renderer=FencedRenderer())
"""Pods take the fence when they are allowed to write, as those of a ComputeCluster do."""
SERVING_EARLY = replace(KIND, steps=(PERMIT, EARLY))
"""The public Service leads to the next generation before that has the fence."""
