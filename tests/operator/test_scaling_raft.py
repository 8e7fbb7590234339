"""Which members a RaftCluster gets next, and what of it the planner is told (docs/specs/operator.md 3.1 *Scaling*)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pavane.raft.state.configuration import Configuration
from pavane.wire.stages import Stage
from pavane_operator.crds.raftcluster import RaftClusterSpec, RaftClusterStatus
from pavane_operator.crds.status import Rollout, State, Step
from pavane_operator.kinds.raft.facts import (
    SCALE_MEMBERS,
    PeerView,
    facts,
    has_members,
    members_due,
    replicas_of_generation,
)
from pavane_operator.kinds.raft.scaling import Membership, majority, next_members
from pavane_operator.plan.model import Child, Facts, Observed, Pod, Resource, StageView
from tests.operator.test_promotion_raft import NOW, answer, members, settled

PODS = [f"log-server-g1-{ordinal}" for ordinal in range(9)]
FOREIGN = "elsewhere"


def membership(current: str, wanted: int, ready: str = "", lost: str = "", sound: str | None = None) -> Membership:
    """Pods by their ordinals, `x` for a foreign peer; sound are, unless it is said, all that did not lose a volume."""

    def named(text: str) -> set[str]:
        return {FOREIGN if each == "x" else PODS[int(each)] for each in text}

    return Membership(
        current=named(current),
        own=named(current) - {FOREIGN},
        wanted=PODS[:wanted],
        sound=named(sound) if sound is not None else named(current + ready) - named(lost),
        lost=named(lost),
        ready=named(ready),
    )


@pytest.mark.parametrize(
    ("known", "target"),
    [
        pytest.param(membership("012", 3), None, id="as wanted"),
        pytest.param(membership("012", 5, ready="34"), "01234", id="two join at once"),
        pytest.param(membership("012", 5, ready="3"), None, id="one alone would make the number even"),
        pytest.param(membership("012", 7, ready="345"), "01234", id="as many as keep the number odd"),
        pytest.param(membership("0", 5, ready="1234"), "01234", id="from one to five"),
        pytest.param(membership("01234", 3), "012", id="two leave at once"),
        pytest.param(membership("01234", 1), "0", id="all but one leave"),
        pytest.param(membership("012", 3, lost="1"), "02", id="who lost its volume goes"),
        pytest.param(membership("02", 3, ready="1", lost="1"), "012", id="and comes back"),
        pytest.param(membership("02", 3), None, id="once it follows"),
        pytest.param(membership("02", 5, ready="13", lost="1"), "012", id="the healed one first"),
        pytest.param(membership("012", 5, ready="34", lost="1"), "02", id="a loss comes before growth"),
        pytest.param(membership("0234", 3), None, id="no shrinking to an even number"),
        pytest.param(membership("0234", 3, ready="1"), "012", id="shrinking when the missing one is there"),
        pytest.param(membership("0", 1, lost="0"), None, id="the only one cannot go"),
        pytest.param(membership("012", 3, lost="12"), None, id="a majority is lost"),
        pytest.param(membership("012", 3, lost="1", sound="0"), None, id="no majority without the lost one"),
        pytest.param(membership("012", 5, ready="34", sound="0"), None, id="no majority answers"),
        pytest.param(membership("012x", 5, ready="3"), "0123x", id="a foreign peer stays"),
    ],
)
def test_the_members_that_come_next(known: Membership, target: str | None) -> None:
    found = next_members(known)
    expected = None if target is None else {FOREIGN if each == "x" else PODS[int(each)] for each in target}
    assert found == expected


NAMES = st.frozensets(st.sampled_from(PODS[:5]))


@given(NAMES, st.sampled_from([1, 3, 5]), NAMES, NAMES, NAMES)
def test_a_change_keeps_a_sound_majority_and_comes_to_an_end(
    current: frozenset[str], wanted: int, sound: frozenset[str], lost: frozenset[str], ready: frozenset[str]
) -> None:
    known = Membership(current, current, PODS[:wanted], sound - lost, lost, ready)
    seen = set()
    while (target := next_members(known)) is not None:
        assert target not in seen, "it goes round in a circle"
        seen.add(target)
        for group in (known.current, target):
            assert len(group & known.sound) >= majority(len(group))
        assert len(target) % 2 == 1 or known.current & known.lost or target == set(PODS[:wanted])
        back = known.lost - known.current  # whoever is taken in again has healed
        known = replace(known, current=target, own=target, lost=known.lost - (back & target))


# ---- what the members' answers say about it


def resource(replicas: int, step: str | None = None, **status: Any) -> Resource:
    rollout = Rollout(state=State.IDLE, step=Step(name=step, at=NOW) if step else None)
    return Resource(
        kind="RaftCluster",
        name="log",
        namespace="data",
        uid="uid",
        resource_version="1",
        metadata_generation=1,
        spec=RaftClusterSpec.model_validate({"stateMachine": "Broadcast", "replicas": replicas}),
        status=RaftClusterStatus(**{"active_generation": 1, "rollout": rollout, **status}),
    )


def pods(number: int, stage: Stage = Stage.READ_WRITE) -> tuple[Pod, ...]:
    view = StageView(stage=stage, connected=True)
    return tuple(Pod(name, f"uid-{name}", "1", 1, address="127.0.0.1", stage=view) for name in PODS[:number])


def answers(configuration: Configuration, number: int) -> list[PeerView]:
    return [answer(name, configuration, leads=name == PODS[0]) for name in PODS[:number]]


def judged(of: Resource, views: list[PeerView], seen: tuple[Pod, ...]) -> Facts:
    return facts(of, Observed(fresh=True, pods=seen), views, request_expired=False)


def test_new_pods_join_once_they_may_write() -> None:
    views = answers(settled(*PODS[:3]), 5)
    early = (*pods(3), *(pod for pod in pods(5, Stage.READ_ONLY) if pod.name not in PODS[:3]))
    assert judged(resource(5), views, early).due is None
    found = judged(resource(5), views, pods(5))
    assert found.due == SCALE_MEMBERS
    assert found.members == frozenset(PODS[:3])
    due = members_due(resource(5), Observed(fresh=True, pods=pods(5)), views)
    assert due is not None
    assert [peer for peer, _ in due.members] == PODS[:5]
    assert due.members[4][1] == "tcp://log-server-g1-4.log-server-g1.data.svc:8047"
    assert due.members[0][1] == dict(members(*PODS[:3]))[PODS[0]], "a member keeps the url that it has"


def test_nothing_is_due_while_an_attempt_runs() -> None:
    views = answers(settled(*PODS[:5]), 5)
    assert judged(resource(3), views, pods(5)).due == SCALE_MEMBERS
    assert judged(resource(3, next_generation=2), views, pods(5)).due is None
    assert judged(resource(3, active_generation=None), views, pods(5)).due is None


def test_a_change_under_way_stays_due_and_no_other_begins() -> None:
    joint = Configuration(members(*PODS[:3]), members(*PODS[:5]))
    uncommitted = [replace(view, committed=False) for view in answers(settled(*PODS[:3]), 5)]
    for views in (answers(joint, 5), uncommitted, [replace(view, leads=False) for view in answers(joint, 5)]):
        assert judged(resource(3), views, pods(5)).due is None
        assert judged(resource(3, step=SCALE_MEMBERS), views, pods(5)).due == SCALE_MEMBERS
        assert members_due(resource(3), Observed(fresh=True, pods=pods(5)), views) is None


def test_members_are_known_for_good_only_by_a_committed_configuration_and_a_majority() -> None:
    three = settled(*PODS[:3])
    assert judged(resource(3), answers(three, 3), pods(3)).members == frozenset(PODS[:3])
    assert judged(resource(3), answers(three, 1), pods(3)).members is None
    assert judged(resource(3), [replace(view, committed=False) for view in answers(three, 3)], pods(3)).members is None
    assert judged(resource(3), [], pods(3)).members is None


def test_removed_peers_are_told_unless_they_are_members_again() -> None:
    views = [replace(view, removed=view.id in PODS[3:5]) for view in answers(settled(*PODS[:4]), 5)]
    assert judged(resource(3), views, pods(5)).removed == {PODS[4]}


def test_the_leader_stops_last() -> None:
    assert judged(resource(3), answers(settled(*PODS[:3]), 3), pods(3)).stops_last == PODS[0]


def test_a_suspended_cluster_has_nothing_to_ask() -> None:
    assert judged(resource(3), [], ()).down is None


def test_the_quorum_is_that_of_the_configuration() -> None:
    views = [replace(view, state_lost=view.id == PODS[2]) for view in answers(settled(*PODS[:2]), 3)]
    assert judged(resource(5), views, pods(3)).down is None, "who lost its volume is no member any more"


def test_a_generation_has_the_pods_that_were_decided_for_it() -> None:
    body = {"metadata": {"annotations": {"pavane.dev/replicas": "5"}}, "spec": {"replicas": 1}}
    observed = Observed(fresh=True, children=(Child("StatefulSet", "log-server-g1", "u", "1", body),))
    assert replicas_of_generation(resource(3), observed, 1) == 5
    assert replicas_of_generation(resource(3), observed, 2) == 3


def test_members_are_compared_by_what_is_committed() -> None:
    views = answers(settled(*PODS[:3]), 3)
    assert has_members(views, PODS[:3])
    assert not has_members(views, PODS[:2])
    assert not has_members([replace(view, committed=False) for view in views], PODS[:3])
    assert not has_members([], PODS[:3])
