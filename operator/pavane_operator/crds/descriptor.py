"""What a kind is, said once: definitions, operator, control plane and command line register from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pavane_operator.crds.base import Model
from pavane_operator.crds.common import CommonSpec
from pavane_operator.crds.status import Status, StoredStatus


@dataclass(frozen=True)
class Described:
    """A kind of resource, with pods or without. Each model's module has its own, `DEFINITION`."""

    name: str
    """As in `kind:`."""
    plural: str
    """As in the path of the API."""
    short: str
    """What people type."""
    spec: type[Model]
    status: type[StoredStatus]
    folder: str
    """Below `pavane_operator.kinds`: a package with `kind(defaults)`, of a kind without pods with `keeper`. Pods call
    themselves so on the stage port (`CreateInstance.kind`, docs/specs/compute.md 6). Their programs are
    `pavane.pods.{word}_{role}`, by the first word of the kind's name."""
    columns: tuple[dict[str, Any], ...] = ()
    """Printer columns beside those of all kinds."""
    routers: tuple[str, ...] = ()
    """Packages of the control plane that serve this kind's data: `pavane_api.{router}.endpoints` has `router`."""
    refers: tuple[tuple[str, str], ...] = ()
    """Each field that names another resource of the namespace: its path in an object, and the kind of what it names."""

    def targets(self, body: Mapping[str, Any]) -> tuple[str, ...]:
        """What an object of this kind refers to, each as `Kind/name`."""
        found = ((kind, _at(body, path.split("."))) for path, kind in self.refers)
        return tuple(f"{kind}/{name}" for kind, name in found if name)


def _at(body: Any, path: list[str]) -> Any:
    return body if not path else _at((body or {}).get(path[0]), path[1:])


@dataclass(frozen=True)
class Definition(Described):
    """A kind whose pods are rolled out by generations; `crds.definitions.KINDS` lists them."""

    spec: type[CommonSpec]
    status: type[Status]


def column(name: str, kind: str, path: str, *, priority: int = 0) -> dict[str, Any]:
    """A printer column; those with a priority only show with `-o wide`."""
    found: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    if priority:
        found["priority"] = priority
    return found
