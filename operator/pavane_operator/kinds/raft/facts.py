"""What the members' own words (`pv.status`) say about a RaftCluster: a pure function (docs/specs/operator.md 3.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pavane.raft.state.configuration import Configuration, Members, generation_of
from pavane.wire.stages import Stage
from pavane_operator.crds.raftcluster import (
    MEMBERS_MAX_ITEMS,
    MemberRole,
    RaftClusterSpec,
    RaftConfiguration,
    RaftMember,
)
from pavane_operator.kinds.base import spec_of
from pavane_operator.kinds.raft import names
from pavane_operator.kinds.raft.scaling import Membership, majority, next_members
from pavane_operator.plan.children import STATEFUL_SET, decided_replicas, find
from pavane_operator.plan.model import Facts, Observed, OwnCondition, Problem, Resource

ALLOW_WRITES = "AllowWrites"
CHANGE_MEMBERS = "ChangeMembers"
SCALE_MEMBERS = "ScaleMembers"
"""The same joint change within one generation, while nothing is rolled out."""
SERVE = "Serve"
"""Recorded by the planner in a bootstrap, before clients are let in."""

SAFETY_LAG_ENTRIES = 1000
"""A new member may be this far behind the commit index: more would block commits for long (3.1, raft 8.5)."""
STATE_LOST = "StateLost"
VOLUME_FULL = "VolumeFull"


@dataclass(frozen=True, slots=True)
class PeerView:
    """What one peer answered to `pv.status`."""

    id: str
    leads: bool
    """Whether it holds itself for the leader."""
    term: int
    last: int
    commit: int
    configuration: Configuration
    """The last one in its log: in force whether committed or not."""
    configuration_index: int
    """Of the entry that states it."""
    committed: bool
    """Whether it knows that configuration to be committed."""
    matches: Mapping[str, int]
    """Last entry known to be held, by member; only a leader knows."""
    state_lost: bool
    """It is named, but its volume was empty or damaged: it neither votes nor acknowledges yet."""
    volume_full: bool = False
    """It takes no updates, and should not lead (docs/specs/raft.md 13.4)."""
    removed: bool = False
    """It was a member, and a committed configuration has left it out."""


@dataclass(frozen=True, slots=True)
class _Scene:
    """All that the parts of `facts` look at."""

    resource: Resource
    observed: Observed
    views: Mapping[str, PeerView]
    leader: PeerView | None
    configuration: Configuration | None
    """The one in force at the leader; without a leader that of the furthest log."""
    active: int | None
    next: int | None
    """The generation of the attempt under way."""

    @property
    def replicas(self) -> int:
        return _replicas(self.resource)

    @property
    def recorded_step(self) -> str | None:
        rollout = self.resource.status.rollout if self.resource.status is not None else None
        return rollout.step.name if rollout is not None and rollout.step is not None else None

    def member_ids(self, generation: int) -> frozenset[str]:
        count = replicas_of_generation(self.resource, self.observed, generation)
        return frozenset(names.pod(self.resource.name, generation, ordinal) for ordinal in range(count))

    def stage(self, pod: str) -> Stage:
        for one in self.observed.pods:
            if one.name == pod and one.stage is not None:
                return one.stage.stage
        return Stage.CREATION


def facts(resource: Resource, observed: Observed, views: Iterable[PeerView], *, request_expired: bool) -> Facts:
    """Judge the answers of all pods that answered; total, also over none."""
    scene = _scene(resource, observed, {view.id: view for view in views})
    return Facts(
        leads=_leads(scene),
        safety=_safety(scene),
        steps_done=_steps_done(scene),
        request_expired=request_expired,
        fence=_fence(scene),
        down=_down(scene),
        members=_members_for_good(scene),
        removed=_removed(scene),
        stops_last=scene.leader.id if scene.leader is not None else None,
        due=_due(scene),
        own_status=_own_status(scene),
        conditions=_conditions(scene),
    )


@dataclass(frozen=True, slots=True)
class MembersDue:
    """The members (id, url) to ask the store for, and the index of the configuration that they replace."""

    members: Members
    base_index: int


def members_due(resource: Resource, observed: Observed, views: Iterable[PeerView]) -> MembersDue | None:
    """What the store should be asked for now, while nothing is rolled out; None = no change."""
    scene = _scene(resource, observed, {view.id: view for view in views})
    target = _target(scene)
    if target is None or scene.leader is None or scene.active is None:
        return None
    known = dict(scene.leader.configuration.members)
    pods = dict(names.members(resource.name, resource.namespace, scene.active, scene.replicas))
    members = tuple((peer, url) for peer, url in (pods | known).items() if peer in target)
    return MembersDue(members, scene.leader.configuration_index)


def has_members(views: Iterable[PeerView], ids: Iterable[str]) -> bool:
    """Whether exactly these are the committed configuration, and nothing is under way."""
    leader = _leader({view.id: view for view in views})
    return leader is not None and _is_settled(leader) and _ids(leader.configuration) == frozenset(ids)


def replicas_of_generation(resource: Resource, observed: Observed, generation: int) -> int:
    """How many pods a generation has: what was decided for its StatefulSet, else what the spec asks for."""
    stateful_set = find(observed.children, STATEFUL_SET, names.stateful_set(resource.name, generation))
    return _replicas(resource) if stateful_set is None else decided_replicas(stateful_set)


def _replicas(resource: Resource) -> int:
    return spec_of(resource, RaftClusterSpec).replicas


def _leader(views: Mapping[str, PeerView]) -> PeerView | None:
    return max((view for view in views.values() if view.leads), key=lambda view: view.term, default=None)


def _is_settled(leader: PeerView) -> bool:
    """Whether no change of members is under way."""
    return leader.committed and not leader.configuration.transitional


def _scene(resource: Resource, observed: Observed, views: Mapping[str, PeerView]) -> _Scene:
    leader = _leader(views)
    named = [view for view in views.values() if view.configuration.members]
    best = leader or max(named, key=lambda view: (view.commit, view.last), default=None)
    status = resource.status
    return _Scene(
        resource=resource,
        observed=observed,
        views=views,
        leader=leader,
        configuration=best.configuration if best is not None else None,
        active=(status.active_generation or None) if status is not None else None,
        next=(status.next_generation or None) if status is not None else None,
    )


def _changed(scene: _Scene) -> bool:
    """Whether exactly the members of the next generation are the committed configuration, and nothing is under way."""
    if scene.leader is None or scene.next is None or not _is_settled(scene.leader):
        return False
    return _ids(scene.leader.configuration) == scene.member_ids(scene.next)


def _leads(scene: _Scene) -> bool:
    if scene.next is None or scene.leader is None or not _changed(scene):
        return False
    members = scene.member_ids(scene.next)
    if scene.leader.id not in members:
        return False
    serving = scene.recorded_step == SERVE
    return scene.active is not None or serving or all(scene.stage(pod) is Stage.READ_WRITE for pod in members)


def _steps_done(scene: _Scene) -> frozenset[str]:
    if scene.next is None:
        return frozenset()
    done = set()
    members = scene.member_ids(scene.next)
    writing = sum(scene.stage(pod) is Stage.READ_WRITE for pod in members)
    if writing >= majority(len(members)) or _changed(scene):
        done.add(ALLOW_WRITES)
    if _changed(scene):
        done.add(CHANGE_MEMBERS)
    return frozenset(done)


def _quorum_problem(scene: _Scene) -> Problem | None:
    groups = scene.configuration.groups if scene.configuration is not None else ()
    missing = next((problem for group in groups if (problem := _missing(scene, group)) is not None), None)
    if missing is None and scene.leader is None:
        return Problem("NoQuorum", "the members have no leader")
    return missing


def _missing(scene: _Scene, group: frozenset[str]) -> Problem | None:
    """The members that do not answer, if the others are no majority of the group."""
    silent = sorted(group - scene.views.keys())
    if len(group) - len(silent) >= majority(len(group)):
        return None
    text = f"{len(group) - len(silent)} of {len(group)} members answer, {majority(len(group))} are needed"
    return Problem("NoQuorum", f"{text}; no answer from {', '.join(silent)}")


def _safety(scene: _Scene) -> Problem | None:
    if scene.active is None:
        return None  # a bootstrap has none: there is nothing to lose yet
    problem = _quorum_problem(scene)
    if problem is not None or scene.next is None or scene.leader is None:
        return problem
    members = scene.member_ids(scene.next)
    able = [pod for pod in members if _able(scene, pod, scene.leader.commit)]
    if len(able) < majority(len(members)):
        return Problem(
            "Lagging",
            f"{len(able)} of {len(members)} pods of generation {scene.next} follow the log within "
            f"{SAFETY_LAG_ENTRIES} entries; {majority(len(members))} are needed",
        )
    return None


def _able(scene: _Scene, pod: str, commit: int) -> bool:
    view = scene.views.get(pod)
    return view is not None and scene.stage(pod) >= Stage.READ_ONLY and not view.state_lost and _is_near(view, commit)


def _is_near(view: PeerView, commit: int) -> bool:
    """Whether it holds nearly all entries; an empty log is none, for it may be a lost one."""
    return view.last > 0 and commit - view.last <= SAFETY_LAG_ENTRIES


def _members_for_good(scene: _Scene) -> frozenset[str] | None:
    """The members that are counted on, if nothing can take that back any more."""
    if scene.leader is None or not scene.leader.committed or _quorum_problem(scene) is not None:
        return None
    return _ids(scene.leader.configuration)


def _removed(scene: _Scene) -> frozenset[str]:
    members = _members_for_good(scene) or ()
    return frozenset(view.id for view in scene.views.values() if view.removed and view.id not in members)


def _due(scene: _Scene) -> str | None:
    """The change of members that is possible now, or under way."""
    if scene.active is None or scene.next is not None:
        return None
    if scene.leader is None or not _is_settled(scene.leader):
        return SCALE_MEMBERS if scene.recorded_step == SCALE_MEMBERS else None
    return SCALE_MEMBERS if _target(scene) is not None else None


def _target(scene: _Scene) -> frozenset[str] | None:
    """The members that the active generation should get next."""
    if scene.active is None or scene.leader is None or not _is_settled(scene.leader):
        return None
    commit = scene.leader.commit
    views = scene.views.values()
    near = {view.id for view in views if _is_near(view, commit) and not view.removed}
    lost = {view.id for view in views if view.state_lost}
    writing = {pod.name for pod in scene.observed.pods if pod.stage and pod.stage.stage is Stage.READ_WRITE}
    current = _ids(scene.leader.configuration)
    prefix = f"{names.stateful_set(scene.resource.name, scene.active)}-"
    return next_members(
        Membership(
            current=current,
            own={peer for peer in current if peer.startswith(prefix)},
            wanted=[peer for peer, _ in names.members(scene.resource.name, "", scene.active, scene.replicas)],
            sound=near - lost,
            lost=lost,
            ready=near & (writing | lost),
        )
    )


def _fence(scene: _Scene) -> int | None:
    """The greatest generation that may vote: also one that is only appended yet, for it may be committed unseen."""
    if scene.configuration is None:
        return None
    numbers = [generation_of(member) for member, _ in scene.configuration.members]
    return max((number for number in numbers if number is not None), default=None)


def _down(scene: _Scene) -> Problem | None:
    if scene.active is None or not scene.observed.pods:
        return None  # without pods there is nothing to ask; suspended or not, their first sign wakes the operator
    members = _ids(scene.configuration) if scene.configuration is not None else scene.member_ids(scene.active)
    lost = len(_lost(scene, members))
    if lost >= majority(len(members)):
        return Problem(
            "QuorumLost",
            f"{lost} of {len(members)} members lost their volumes; decide what to give up: "
            "create a new resource, or restore the volumes",
        )
    if scene.leader is not None:
        return None
    if not any(pod in scene.views for pod in members):
        return Problem("ActiveDown", f"no pod of generation {scene.active} answers: {', '.join(sorted(members))}")
    return _quorum_problem(scene)


def _lost(scene: _Scene, members: frozenset[str]) -> frozenset[str]:
    """The members without what they promised: by their own word, or empty although the cluster has committed entries.

    An empty store learns that it was a member from a leader alone (docs/specs/raft.md 5.5), and of a majority without
    its volumes there is none.
    """
    begun = any(view.commit > 1 for view in scene.views.values())  # the first entry is that of the bootstrap
    answering = (scene.views[member] for member in members if member in scene.views)
    return frozenset(view.id for view in answering if view.state_lost or (begun and view.last == 0))


def _own_status(scene: _Scene) -> dict[str, object]:
    leader = scene.leader
    configuration = scene.configuration
    status: dict[str, object] = {
        "leader": leader.id if leader is not None else None,
        "term": leader.term if leader is not None else None,
        "commit_index": leader.commit if leader is not None else None,
        "members": _members(scene),
    }
    if configuration is None:
        status["configuration"] = None
    elif configuration.old is None:
        status["configuration"] = RaftConfiguration(old=[peer for peer, _ in configuration.new])
    else:
        status["configuration"] = RaftConfiguration(
            old=[peer for peer, _ in configuration.old], new=[peer for peer, _ in configuration.new]
        )
    return status


def _members(scene: _Scene) -> list[RaftMember]:
    pods = {pod.name: pod.generation for pod in scene.observed.pods}
    configuration = scene.configuration
    named = [peer for peer, _ in configuration.members] if configuration is not None else []
    found = []
    for peer in sorted({*pods, *named}):
        view = scene.views.get(peer)
        match = view.last if view is not None else None
        if match is None and scene.leader is not None:
            match = scene.leader.matches.get(peer)
        generation = pods.get(peer) or generation_of(peer)
        found.append(
            RaftMember(name=peer, generation=generation or 0, role=_role(configuration, peer), match_index=match)
        )
    return found[:MEMBERS_MAX_ITEMS]


def _role(configuration: Configuration | None, peer: str) -> MemberRole:
    if configuration is None or not configuration.names(peer):
        return MemberRole.LEARNER
    if configuration.old is not None and peer not in {member for member, _ in configuration.new}:
        return MemberRole.LEAVING
    return MemberRole.VOTER


def _conditions(scene: _Scene) -> tuple[OwnCondition, ...]:
    leader = scene.leader
    if scene.configuration is None:
        quorum = OwnCondition("QuorumAvailable", None, "NoAnswer", "no member has reported its configuration yet")
    else:
        groups = scene.configuration.groups
        counting = scene.views.keys() - _lost(scene, _ids(scene.configuration))
        available = all(len(group & counting) >= majority(len(group)) for group in groups)
        problem = None if available else _quorum_problem(scene)
        text = problem.message if problem is not None else ""
        quorum = OwnCondition("QuorumAvailable", available, "MajorityAnswers" if available else "NoQuorum", text)
    if leader is None:
        elected = OwnCondition("LeaderElected", False if scene.views else None, "NoLeader")
    else:
        elected = OwnCondition("LeaderElected", True, "Leads", f"{leader.id} leads in term {leader.term}")
    members = _ids(scene.configuration) if scene.configuration is not None else frozenset()
    # Who is no member may only have the name of a former one: what that one promised, nobody counts on any more.
    told = {view.id for view in scene.views.values() if view.state_lost and view.id in members}
    empty = _lost(scene, members)
    # A member that is merely new is empty as well, for a moment; a majority never is.
    lost = sorted(told | empty if len(empty) >= majority(len(members)) else told)
    if lost:
        healthy = OwnCondition("LogHealthy", False, STATE_LOST, f"{', '.join(lost)} lost the log")
    else:
        healthy = OwnCondition("LogHealthy", True if scene.views else None, "Complete" if scene.views else "NoAnswer")
    return (quorum, elected, healthy, _room(scene))


def _room(scene: _Scene) -> OwnCondition:
    """Whose volume is full; a leader with such a volume found nobody who has room, and refuses writes."""
    full = sorted(view.id for view in scene.views.values() if view.volume_full)
    if not full:
        return OwnCondition("VolumesHaveRoom", True if scene.views else None, "HasRoom" if scene.views else "NoAnswer")
    leader = scene.leader
    named = ", ".join(full)
    text = f"the volume of {named} is full" if len(full) == 1 else f"the volumes of {named} are full"
    if leader is not None and leader.volume_full:
        text = f"{text}; {leader.id} leads and refuses writes"
    return OwnCondition("VolumesHaveRoom", False, VOLUME_FULL, text)


def _ids(configuration: Configuration) -> frozenset[str]:
    return frozenset(peer for peer, _ in configuration.members)
