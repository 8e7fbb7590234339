"""The kinds that this operator serves: all that are defined."""

from __future__ import annotations

from importlib import import_module

from pavane_operator.crds.definitions import KINDS, PODLESS
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.podless import PodlessFactory
from pavane_operator.plan.port import Kind


def kinds(defaults: RenderDefaults) -> tuple[Kind, ...]:
    """All kinds, for an operator with these settings."""
    return tuple(import_module(f"pavane_operator.kinds.{each.folder}").kind(defaults) for each in KINDS)


def podless() -> tuple[PodlessFactory, ...]:
    """What makes the keeper of each kind without pods."""
    return tuple(import_module(f"pavane_operator.kinds.{each.folder}").keeper for each in PODLESS)
