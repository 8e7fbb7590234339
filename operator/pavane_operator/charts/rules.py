"""What each component may do at the API server: the one source of the chart's roles (docs/specs/operator.md 5.7, 7.2).

A test compares these rules with the calls that operator and control plane really make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pavane_operator.crds.backup import DEFINITION as BACKUP
from pavane_operator.crds.definitions import GROUP, definitions
from pavane_operator.kube.resources import (
    BUDGETS,
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    CORE_EVENTS,
    CRDS,
    ENDPOINT_SLICES,
    EVENTS,
    LEASES,
    NETWORK_POLICIES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
    VOLUME_CLAIMS,
    Resource,
)

LEASE_NAME = "pavane-operator"
READ = ("get", "list", "watch")
OWN = (*READ, "create", "patch", "delete")
"""What server-side apply, which may create, and a controller of these objects need."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a Role; `names` empty = objects of any name."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()


def _of(verbs: tuple[str, ...], *types: Resource, names: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """One rule per group."""
    groups = dict.fromkeys(each.group for each in types)
    return tuple(
        Rule(group, tuple(each.plural for each in types if each.group == group), verbs, names) for group in groups
    )


def rules() -> Mapping[str, tuple[Rule, ...]]:
    """Rules by role: what is bound where says the chart's template `rbac.yaml`."""
    kinds = [definition["spec"] for definition in definitions()]
    plurals = tuple(spec["names"]["plural"] for spec in kinds)
    names = tuple(f"{plural}.{GROUP}" for plural in plurals)
    scaled = tuple(
        f"{spec['names']['plural']}/scale" for spec in kinds if "scale" in spec["versions"][0]["subresources"]
    )
    scale = (Rule(GROUP, scaled, ("get", "patch", "update")),) if scaled else ()
    return {
        # In each watched namespace, or everywhere.
        "operator": (
            # The finalizer and an annotation are all that the operator writes on a resource itself.
            Rule(GROUP, plurals, (*READ, "patch")),
            # What schedules make, and clear away again.
            Rule(GROUP, (BACKUP.plural,), ("create", "delete")),
            Rule(GROUP, tuple(f"{plural}/status" for plural in plurals), ("patch",)),
            # Asked for by servers that check who may make an owner block its deletion.
            Rule(GROUP, tuple(f"{plural}/finalizers" for plural in plurals), ("update",)),
            *_of(OWN, CONFIG_MAPS, SERVICES, CONTROLLER_REVISIONS, STATEFUL_SETS, BUDGETS, NETWORK_POLICIES),
            # These go with their owner alone.
            *_of((*READ, "create", "patch"), SECRETS, SERVICE_ACCOUNTS),
            *_of(("list", "watch", "create", "patch", "delete"), VOLUME_CLAIMS),
            *_of(("list", "watch", "create", "delete"), PODS),  # those of Backups, which end by themselves
            *_of(("list", "watch"), ENDPOINT_SLICES, ROLES, ROLE_BINDINGS),
            *_of(("create", "patch"), EVENTS),
        ),
        # Where the chart's rbac.sparkExecutors says so. Nobody may grant what he does not have: these rights on pods
        # the driver of Spark gets.
        "operatorExecutors": (
            *_of(("get", "create", "patch"), ROLES, ROLE_BINDINGS),
            *_of(("get", "create", "patch", "deletecollection"), PODS),
        ),
        # In the whole cluster: also whether another operator looks after the same namespaces.
        "operatorDefinitions": (*_of(("get",), CRDS, names=names), *_of(("list",), LEASES, names=(LEASE_NAME,))),
        # Only an operator for all namespaces waits for definitions that change while it runs.
        "operatorAllDefinitions": _of(("list", "watch"), CRDS),
        "operatorLease": (
            *_of(("create",), LEASES),  # no name can limit a creation
            *_of(("get", "update"), LEASES, names=(LEASE_NAME,)),
        ),
        # It asks with its caller's rights first: TokenReview and SubjectAccessReview are bound beside this role.
        "api": (
            Rule(GROUP, plurals, (*READ, "create", "patch", "delete")),
            # Keys of the stores whose clients it is; a name of ours per resource, so none can be listed here.
            *_of(("get",), SECRETS),
            # What a former generation was made of, to go back to it.
            *_of(("list",), CONTROLLER_REVISIONS),
            # Whose stage it asks for and shows.
            *_of(("list", "watch"), PODS),
            # Of resources and their pods, for who may list them himself.
            *_of(("list",), CORE_EVENTS),
        ),
        "view": (Rule(GROUP, plurals, READ),),
        "edit": (Rule(GROUP, plurals, ("create", "update", "patch", "delete")), *scale),
        "admin": (Rule(GROUP, plurals, ("deletecollection",)),),
    }
