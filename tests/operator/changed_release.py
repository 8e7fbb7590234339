"""An operator of a later release: it renders pods that the present one would not."""

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.registry import kinds
from pavane_operator.plan.model import SPEC_HASH_ANNOTATION, Manifest, Repair, Resource
from pavane_operator.plan.port import Kind
from pavane_operator.runtime.main import run as run_operator

MARK = "example.org/rendered-by"


class LaterRenderer:
    """The present renderer, with one annotation more in each pod."""

    def __init__(self, present: Any) -> None:
        self._present = present

    def __getattr__(self, name: str) -> Any:
        return getattr(self._present, name)

    def revision(self, resource: Resource, generation: int, rollout_id: str, repair: Repair | None = None) -> Manifest:
        manifest = self._present.revision(resource, generation, rollout_id, repair)
        body: Any = copy.deepcopy(manifest.body)
        body["metadata"]["annotations"].pop(SPEC_HASH_ANNOTATION)
        _mark_templates(body["data"])
        return Manifest.of(body, create_only=manifest.create_only)


def _mark_templates(value: Any) -> None:
    if isinstance(value, dict):
        if "template" in value:
            value["template"]["metadata"].setdefault("annotations", {})[MARK] = "a later release"
        for inner in value.values():
            _mark_templates(inner)


def _later(defaults: RenderDefaults) -> Iterable[Kind]:
    return tuple(replace(kind, renderer=LaterRenderer(kind.renderer)) for kind in kinds(defaults))


def run() -> int:
    return run_operator(_later)
