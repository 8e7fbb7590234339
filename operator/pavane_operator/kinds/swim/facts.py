"""What the members' own words say about a SwimGroup: a pure function (docs/specs/operator.md 3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pavane.swim.wire.values import NodeStage, State
from pavane.wire.stages import Stage
from pavane_operator.crds.swimgroup import SwimGroupSpec, SwimMembers
from pavane_operator.kinds.base import spec_of
from pavane_operator.kinds.swim import names, pod
from pavane_operator.kinds.swim.members import Table
from pavane_operator.plan.children import STATEFUL_SET, decided_replicas, find, replicas_of
from pavane_operator.plan.model import Facts, Observed, OwnCondition, Pod, Problem, Resource, parse_number

ACTIVATE = "Activate"
"""`{name}-active` names the next generation: from here on pods of former ones do not come back."""
ALLOW_WRITES = "AllowWrites"


@dataclass(frozen=True, slots=True)
class _Scene:
    """All that the parts of `facts` look at."""

    resource: Resource
    observed: Observed
    tables: Sequence[Table]
    active: int | None
    next: int | None

    def pods(self, generation: int) -> list[Pod]:
        """Pods of a generation that are not being deleted."""
        return [each for each in self.observed.pods if each.generation == generation and not each.deleting]

    def wanted(self, generation: int) -> set[str]:
        """Names of the pods that a generation has, or is to have."""
        stateful_set = find(self.observed.children, STATEFUL_SET, names.NAMES.stateful_set(self.name, generation))
        count = _replicas(self.resource) if stateful_set is None else decided_replicas(stateful_set)
        return {names.NAMES.pod(self.name, generation, ordinal) for ordinal in range(count)}

    @property
    def name(self) -> str:
        return self.resource.name


def facts(resource: Resource, observed: Observed, tables: Iterable[Table]) -> Facts:
    """Judge what the pods say of their stages, and the tables of those that were asked; total, also over none."""
    status = resource.status
    active, coming = (status.active_generation, status.next_generation) if status is not None else (None, None)
    scene = _Scene(resource, observed, tuple(tables), active or None, coming or None)
    return Facts(
        leads=_leads(scene),
        safety=_safety(scene),
        steps_done=_steps_done(scene),
        fence=_fence(scene),
        down=_down(scene),
        members=frozenset(),
        parting=_parting(scene),
        settling=_settling(scene),
        own_status=_own_status(scene),
        conditions=(_converged(scene),),
    )


def active_number(resource: Resource, observed: Observed) -> int | None:
    """The number in ConfigMap `{name}-active`; None while there is none."""
    child = find(observed.children, "ConfigMap", names.active(resource.name))
    return None if child is None else parse_number(str((child.body.get("data") or {}).get(pod.ACTIVE_KEY, "")).strip())


def is_full(one: Pod) -> bool:
    """Whether the pod is a full member."""
    return one.stage is not None and one.stage.stage is Stage.READ_WRITE


def _replicas(resource: Resource) -> int:
    return spec_of(resource, SwimGroupSpec).replicas


def _leads(scene: _Scene) -> bool:
    """Whether every pod of the next generation is a full member, and whoever was asked knows them all and agrees.

    In a bootstrap each may have founded a group of its own; they find each other within seconds.
    """
    if scene.next is None or not scene.tables or not _agree(scene):
        return False
    wanted = scene.wanted(scene.next)
    ids = {names.member_id(scene.resource.namespace, each) for each in wanted}
    full = {each.name for each in scene.pods(scene.next) if is_full(each)}
    return full.issuperset(wanted) and all(ids <= table.members.keys() for table in scene.tables)


def _steps_done(scene: _Scene) -> frozenset[str]:
    if scene.next is None:
        return frozenset()
    done = set()
    if (active_number(scene.resource, scene.observed) or 0) >= scene.next:
        done.add(ACTIVATE)
    if {each.name for each in scene.pods(scene.next) if is_full(each)}.issuperset(scene.wanted(scene.next)):
        done.add(ALLOW_WRITES)
    return frozenset(done)


def _safety(scene: _Scene) -> Problem | None:
    """One full member has to be known: observers admit nobody and bury nobody."""
    if scene.active is None:
        return None  # a bootstrap has none: the first one makes itself one
    known = any(entry.stage is NodeStage.READ_WRITE for table in scene.tables for entry in table.members.values())
    if known or any(is_full(each) for each in scene.observed.pods):
        return None
    return Problem("NoFullMember", "no full member of the group is known; restart a pod of the active generation")


def _fence(scene: _Scene) -> int | None:
    """The greatest generation that may write, by the ConfigMap or by full members; None = neither says."""
    full = [each.generation for each in scene.observed.pods if is_full(each)]
    return max([*full, active_number(scene.resource, scene.observed) or 0]) or None


def _down(scene: _Scene) -> Problem | None:
    if scene.active is None or not scene.observed.pods or any(is_full(each) for each in scene.observed.pods):
        return None
    return Problem("ActiveDown", f"no pod of generation {scene.active} is a full member")


def _parting(scene: _Scene) -> Problem | None:
    """Until who left is gone everywhere, and all agree again, no others may leave."""
    if not scene.tables:
        return Problem("MembersUnknown", "no member reports the membership")
    gone = _gone(scene)
    if any(gone & table.members.keys() for table in scene.tables):
        return Problem("LeaveNotVisible", "some members do not know yet that others have left")
    if not _agree(scene):
        return Problem("DigestDisagrees", "the members do not agree yet about who is there")
    return None


def _gone(scene: _Scene) -> set[int]:
    """Ids of pods of former generations that were, and are no more."""
    present = {each.name for each in scene.observed.pods}
    found = set()
    for child in scene.observed.children:
        if child.kind == STATEFUL_SET and child.generation not in (None, scene.active, scene.next):
            ordinals = range(replicas_of(child.body), decided_replicas(child))
            found.update({f"{child.name}-{ordinal}" for ordinal in ordinals} - present)
    return {names.member_id(scene.resource.namespace, each) for each in found}


def _agree(scene: _Scene) -> bool:
    """Whether all that were asked have one digest, and all full members on a stream agree with others."""
    digests = {table.digest for table in scene.tables}
    told = [each.stage for each in scene.observed.pods if is_full(each) and not each.deleting and each.stage]
    return len(digests) == 1 and all(stage.leads for stage in told if stage.connected)


def _settling(scene: _Scene) -> bool:
    """Whether those that were asked differ, or somebody is suspect: within seconds they agree, or he is dead."""
    suspected = any(entry.state is State.SUSPECT for table in scene.tables for entry in table.members.values())
    return bool(scene.tables) and (suspected or not _agree(scene))


def _own_status(scene: _Scene) -> dict[str, object]:
    if not scene.tables:
        return {"members": None, "digest": None}
    table = scene.tables[0]
    own = {names.member_id(scene.resource.namespace, each.name) for each in scene.observed.pods}
    states = [entry.state for entry in table.members.values()]
    members = SwimMembers(
        alive=states.count(State.ALIVE),
        suspect=states.count(State.SUSPECT),
        dead=table.dead,
        foreign=len(table.members.keys() - own),
    )
    return {"members": members, "digest": table.digest}


def _converged(scene: _Scene) -> OwnCondition:
    if not scene.tables:
        return OwnCondition("MembershipConverged", None, "NoAnswer", "no member reports the membership")
    if not _agree(scene):
        return OwnCondition("MembershipConverged", False, "DigestDisagrees", "members differ about who is there")
    return OwnCondition("MembershipConverged", True, "DigestsAgree")
