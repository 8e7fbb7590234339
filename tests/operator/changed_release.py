"""An operator of a later release: its templates render pods that the present one would not."""

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.port import Kind
from pavane_operator.kinds.registry import kinds
from pavane_operator.plan.model import SPEC_HASH_ANNOTATION, Child, Manifest, Resource
from pavane_operator.runtime.main import run as run_operator

MARK = "example.org/rendered-by"


class LaterRenderer:
    """The present renderer, with one annotation more in each pod."""

    def __init__(self, present: Any) -> None:
        self._present = present

    def __getattr__(self, name: str) -> Any:
        return getattr(self._present, name)

    def generation(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        return tuple(map(_changed, self._present.generation(resource, revision)))


def _changed(manifest: Manifest) -> Manifest:
    if manifest.kind != "StatefulSet":
        return manifest
    body: Any = copy.deepcopy(manifest.body)
    body["metadata"]["annotations"].pop(SPEC_HASH_ANNOTATION)
    body["spec"]["template"]["metadata"].setdefault("annotations", {})[MARK] = "a later release"
    return Manifest.of(body, create_only=manifest.create_only)


def _later(defaults: RenderDefaults) -> Iterable[Kind]:
    return tuple(replace(kind, renderer=LaterRenderer(kind.renderer)) for kind in kinds(defaults))


def run() -> int:
    return run_operator(_later)
