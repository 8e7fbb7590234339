"""What the members' answers mean for a promotion of RaftCluster (docs/specs/operator.md 3.1)."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pavane.raft.core.status import Fence, MemberStatus, Status, status_value
from pavane.raft.state.configuration import EMPTY, Configuration
from pavane.raft.state.roles import Role
from pavane.wire.stages import Stage
from pavane_operator.crds.raftcluster import RaftClusterSpec, RaftClusterStatus
from pavane_operator.crds.status import Rollout, State, Step
from pavane_operator.kinds.raft import names
from pavane_operator.kinds.raft.facts import ALLOW_WRITES, CHANGE_MEMBERS, PeerView, facts
from pavane_operator.kinds.raft.peers import peer_view
from pavane_operator.plan.model import Facts, Observed, OwnCondition, Pod, Resource, StageView

NOW = datetime(2030, 1, 1, tzinfo=UTC)
OLD = [f"log-server-g1-{ordinal}" for ordinal in range(3)]
NEW = [f"log-server-g2-{ordinal}" for ordinal in range(3)]


def members(*ids: str) -> tuple[tuple[str, str], ...]:
    return tuple((one, f"tcp://{one}:8047") for one in ids)


def settled(*ids: str) -> Configuration:
    return Configuration(members(*ids))


JOINT = Configuration(members(*NEW), members(*OLD))


def resource(active: int | None = 1, following: int | None = 2, step: str | None = None) -> Resource:
    rollout = Rollout(
        state=State.PROMOTING if following else State.IDLE,
        generation=following,
        step=Step(name=step, at=NOW) if step else None,
    )
    return Resource(
        kind="RaftCluster",
        name="log",
        namespace="data",
        uid="uid",
        resource_version="1",
        metadata_generation=1,
        spec=RaftClusterSpec.model_validate({"stateMachine": "Broadcast"}),
        status=RaftClusterStatus(active_generation=active, next_generation=following, rollout=rollout),
    )


def pods(**stages: Stage) -> tuple[Pod, ...]:
    """All pods of both generations; the old ones write, the new ones read unless `g2_0=…` says otherwise."""
    found = []
    for name in (*OLD, *NEW):
        stage = stages.get(name.removeprefix("log-server-").replace("-", "_"))
        default = Stage.READ_WRITE if name in OLD else Stage.READ_ONLY
        view = StageView(stage=stage or default, connected=True)
        number = 1 if name in OLD else 2
        found.append(Pod(name, "uid-" + name, "1", number, address="127.0.0.1", ready=True, stage=view))
    return tuple(found)


def answer(name: str, configuration: Configuration, **changes: Any) -> PeerView:
    view = PeerView(
        id=name,
        leads=False,
        term=3,
        last=50,
        commit=50,
        configuration=configuration,
        configuration_index=9,
        committed=True,
        matches={},
        state_lost=False,
    )
    return replace(view, **changes)


def answers(configuration: Configuration, leader: str, *, only: list[str] | None = None) -> list[PeerView]:
    asked = [*OLD, *NEW] if only is None else only
    return [answer(name, configuration, leads=name == leader) for name in asked]


def judged(views: list[PeerView], of: Resource | None = None, seen: tuple[Pod, ...] | None = None) -> Facts:
    return facts(of or resource(), Observed(fresh=True, pods=seen or pods()), views, request_expired=False)


# ---- the fence


def test_the_next_generation_leads_when_its_configuration_is_committed_and_one_of_it_leads() -> None:
    views = answers(settled(*NEW), leader=NEW[1])
    found = judged(views)
    assert found.leads
    assert CHANGE_MEMBERS in found.steps_done


@pytest.mark.parametrize(
    "views",
    [
        pytest.param([], id="nobody answers"),
        pytest.param(answers(settled(*OLD), OLD[0]), id="the old ones still are the members"),
        pytest.param(answers(JOINT, NEW[0]), id="the change is not finished"),
        pytest.param(answers(settled(*NEW), OLD[0]), id="an old one still leads"),
        pytest.param(answers(settled(*NEW[:2]), NEW[0]), id="a new member is missing"),
        pytest.param(
            [replace(view, committed=False) for view in answers(settled(*NEW), NEW[0])], id="appended, not committed"
        ),
        pytest.param(answers(settled(*NEW), "nobody"), id="no leader"),
    ],
)
def test_else_it_does_not_lead(views: list[PeerView]) -> None:
    assert not judged(views).leads


def test_of_two_that_say_they_lead_the_one_with_the_greater_term_does() -> None:
    stale = answer(OLD[0], settled(*OLD), leads=True, term=3)
    fresh = answer(NEW[0], settled(*NEW), leads=True, term=4)
    assert judged([stale, fresh]).leads
    assert not judged([replace(stale, term=5), fresh]).leads


@pytest.mark.parametrize(
    ("configuration", "fence"), [(settled(*OLD), 1), (JOINT, 2), (settled(*NEW), 2), (settled("1", "2"), None)]
)
def test_the_fence_is_the_greatest_generation_that_may_vote(configuration: Configuration, fence: int | None) -> None:
    assert judged(answers(configuration, OLD[0])).fence == fence


def test_without_an_answer_nothing_is_known_of_the_fence() -> None:
    assert judged([]).fence is None
    assert judged([answer(NEW[0], Configuration(()))]).fence is None


# ---- bootstrap


def test_a_bootstrap_leads_only_when_every_pod_writes() -> None:
    views = answers(settled(*OLD), OLD[0], only=OLD)
    first = resource(active=None, following=1)
    assert judged(views, first).leads
    assert not judged(views, first, pods(g1_2=Stage.READ_ONLY)).leads


def test_once_clients_are_served_a_late_pod_is_not_waited_for() -> None:
    views = answers(settled(*OLD), OLD[0], only=OLD)
    serving = resource(active=None, following=1, step="Serve")
    assert judged(views, serving, pods(g1_2=Stage.READ_ONLY)).leads


def test_a_bootstrap_has_no_safety_minimum() -> None:
    assert judged([], resource(active=None, following=1)).safety is None


# ---- steps


@pytest.mark.parametrize(("writing", "done"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_majority_that_may_write_is_enough_to_go_on(writing: int, done: bool) -> None:
    stages = {f"g2_{ordinal}": Stage.READ_WRITE for ordinal in range(writing)}
    found = judged(answers(settled(*OLD), OLD[0]), seen=pods(**stages))
    assert (ALLOW_WRITES in found.steps_done) is done


def test_after_the_change_restarted_pods_undo_no_step() -> None:
    found = judged(answers(settled(*NEW), NEW[0]), seen=pods(g2_0=Stage.CREATION, g2_1=Stage.CREATION))
    assert found.steps_done == {ALLOW_WRITES, CHANGE_MEMBERS}


# ---- safety minimum


def test_the_safety_minimum_holds_when_all_answer() -> None:
    assert judged(answers(settled(*OLD), OLD[0])).safety is None


@pytest.mark.parametrize(
    ("views", "reason"),
    [
        pytest.param(answers(settled(*OLD), "nobody"), "NoQuorum", id="no leader is known"),
        pytest.param(answers(settled(*OLD), OLD[0], only=[OLD[0], *NEW]), "NoQuorum", id="no majority of the old"),
        pytest.param(answers(settled(*OLD), OLD[0], only=[*OLD, NEW[0]]), "Lagging", id="no majority of the new"),
        pytest.param(
            [*answers(settled(*OLD), OLD[0], only=OLD), *(answer(name, settled(), last=0) for name in NEW)],
            "Lagging",
            id="the new ones are empty",
        ),
        pytest.param(
            [
                *(answer(name, settled(*OLD), leads=name == OLD[0], commit=5000, last=5000) for name in OLD),
                *(answer(name, settled(*OLD), last=3999) for name in NEW),
            ],
            "Lagging",
            id="the new ones are 1001 behind",
        ),
        pytest.param(
            [
                *answers(settled(*OLD), OLD[0], only=OLD),
                *(answer(name, settled(*OLD), state_lost=True) for name in NEW[:2]),
                answer(NEW[2], settled(*OLD)),
            ],
            "Lagging",
            id="two new ones lost their volumes",
        ),
    ],
)
def test_the_safety_minimum_fails(views: list[PeerView], reason: str) -> None:
    found = judged(views).safety
    assert found is not None
    assert found.reason == reason


def test_a_lost_quorum_names_who_does_not_answer() -> None:
    found = judged(answers(settled(*OLD), "nobody", only=[OLD[0]]))
    assert found.down is not None
    assert found.down.message == f"1 of 3 members answer, 2 are needed; no answer from {OLD[1]}, {OLD[2]}"
    told = {each.type: each for each in found.conditions}["QuorumAvailable"]
    assert (told.status, told.message) == (False, found.down.message)


def test_who_has_the_name_of_a_former_member_has_lost_nothing() -> None:
    views = [*answers(settled(*OLD[:2]), OLD[0], only=OLD[:2]), answer(OLD[2], settled(*OLD[:2]), state_lost=True)]
    told = {each.type: each for each in judged(views).conditions}["LogHealthy"]
    assert (told.status, told.reason) == (True, "Complete")
    views = [*answers(settled(*OLD), OLD[0], only=OLD[:2]), answer(OLD[2], settled(*OLD), state_lost=True)]
    told = {each.type: each for each in judged(views).conditions}["LogHealthy"]
    assert (told.status, told.reason) == (False, "StateLost")


def test_1000_entries_behind_are_near_enough() -> None:
    views = [
        *(answer(name, settled(*OLD), leads=name == OLD[0], commit=5000, last=5000) for name in OLD),
        *(answer(name, settled(*OLD), last=4000) for name in NEW),
    ]
    assert judged(views).safety is None


def test_pods_below_read_only_do_not_count() -> None:
    stages = {"g2_0": Stage.INITIALIZATION, "g2_1": Stage.CREATION}
    found = judged(answers(settled(*OLD), OLD[0]), seen=pods(**stages)).safety
    assert found is not None
    assert "1 of 3 pods of generation 2" in found.message


def test_a_joint_configuration_needs_both_majorities() -> None:
    found = judged(answers(JOINT, OLD[0], only=[*OLD, NEW[0]])).safety
    assert found is not None
    assert found.reason == "NoQuorum"


# ---- health of the active generation


@pytest.mark.parametrize(
    ("views", "reason"),
    [
        (answers(settled(*OLD), OLD[0], only=OLD), None),
        (answers(settled(*OLD), "nobody", only=OLD), "NoQuorum"),
        ([], "ActiveDown"),
        (
            [
                answer(OLD[0], settled(*OLD), leads=True),
                *(answer(name, settled(*OLD), state_lost=True) for name in OLD[1:]),
            ],
            "QuorumLost",
        ),
        ([answer(OLD[0], settled(*OLD)), *(answer(name, EMPTY, last=0, commit=0) for name in OLD[1:])], "QuorumLost"),
        ([answer(OLD[0], settled(*OLD), commit=1), answer(OLD[1], EMPTY, last=0, commit=0)], "NoQuorum"),
    ],
)
def test_why_the_active_generation_takes_no_writes(views: list[PeerView], reason: str | None) -> None:
    down = judged(views, resource(following=None)).down
    assert (down.reason if down is not None else None) == reason


def test_conditions_say_quorum_leader_and_log() -> None:
    def truths(views: list[PeerView]) -> dict[str, bool | None]:
        return {condition.type: condition.status for condition in judged(views, resource(following=None)).conditions}

    assert truths(answers(settled(*OLD), OLD[0], only=OLD)) == {
        "QuorumAvailable": True,
        "LeaderElected": True,
        "LogHealthy": True,
        "VolumesHaveRoom": True,
    }
    unknown = {"QuorumAvailable": None, "LeaderElected": None, "LogHealthy": None, "VolumesHaveRoom": None}
    assert truths([]) == unknown
    nothing = {"QuorumAvailable": False, "LeaderElected": False, "LogHealthy": False, "VolumesHaveRoom": True}
    assert truths([answer(OLD[0], settled(*OLD), state_lost=True)]) == nothing
    survivor, *wiped = answer(OLD[0], settled(*OLD)), *(answer(name, EMPTY, last=0, commit=0) for name in OLD[1:])
    assert truths([survivor, *wiped]) == nothing


def test_one_member_that_is_empty_may_merely_be_new() -> None:
    views = [*answers(settled(*OLD), OLD[0], only=OLD[:2]), answer(OLD[2], EMPTY, last=0, commit=0)]
    conditions = {condition.type: condition.status for condition in judged(views, resource(following=None)).conditions}
    healthy = {"QuorumAvailable": True, "LeaderElected": True, "LogHealthy": True, "VolumesHaveRoom": True}
    assert conditions == healthy


def test_full_volumes_are_named_and_the_leader_among_them() -> None:
    def told(*views: PeerView) -> OwnCondition:
        found = {each.type: each for each in judged(list(views), resource(following=None)).conditions}
        return found["VolumesHaveRoom"]

    leader, follower, third = answers(settled(*OLD), OLD[0], only=OLD)
    full = told(leader, replace(follower, volume_full=True), third)
    assert (full.status, full.reason) == (False, "VolumeFull")
    assert full.message == f"the volume of {OLD[1]} is full"
    both = told(replace(leader, volume_full=True), replace(follower, volume_full=True), third)
    assert both.message == f"the volumes of {OLD[0]}, {OLD[1]} are full; {OLD[0]} leads and refuses writes"


# ---- status


def test_the_status_tells_who_is_what() -> None:
    leader = answer(OLD[0], JOINT, leads=True, matches={OLD[1]: 49, NEW[2]: 12})
    own = judged([leader, answer(NEW[0], JOINT, last=40)]).own_status
    assert (own["leader"], own["term"], own["commit_index"]) == (OLD[0], 3, 50)
    assert own["configuration"].model_dump() == {"old": OLD, "new": NEW}
    told = {member.name: (member.generation, member.role.value, member.match_index) for member in own["members"]}
    assert told == {
        OLD[0]: (1, "Leaving", 50),
        OLD[1]: (1, "Leaving", 49),
        OLD[2]: (1, "Leaving", None),
        NEW[0]: (2, "Voter", 40),
        NEW[1]: (2, "Voter", None),
        NEW[2]: (2, "Voter", 12),
    }


def test_pods_in_no_configuration_are_learners() -> None:
    own = judged(answers(settled(*OLD), OLD[0])).own_status
    assert {member.role.value for member in own["members"] if member.generation == 2} == {"Learner"}


def test_the_status_fits_its_model() -> None:
    own = judged(answers(JOINT, OLD[0])).own_status
    assert RaftClusterStatus(**own).dump()["configuration"] == {"old": OLD, "new": NEW}


# ---- totality


@given(
    st.lists(
        st.builds(
            PeerView,
            id=st.sampled_from([*OLD, *NEW, "stranger"]),
            leads=st.booleans(),
            term=st.integers(0, 3),
            last=st.integers(0, 3),
            commit=st.integers(0, 3),
            configuration=st.sampled_from([settled(), settled(*OLD), settled(*NEW), JOINT, settled("stranger")]),
            committed=st.booleans(),
            matches=st.just({}),
            state_lost=st.booleans(),
        ),
        max_size=7,
    ),
    st.sampled_from([None, 1]),
    st.sampled_from([None, 2]),
)
def test_any_answers_are_judged_and_only_a_committed_change_leads(
    views: list[PeerView], active: int | None, following: int | None
) -> None:
    found = judged(views, resource(active, following))
    if found.leads:
        assert any(
            view.leads and view.committed and view.configuration == settled(*NEW) and view.id in NEW for view in views
        )


@pytest.mark.parametrize("value", [{}, {"id": "a"}, {"id": "a", "term": "x"}])
def test_an_answer_that_is_none_of_ours_counts_as_silence(value: dict[str, Any]) -> None:
    assert peer_view(value) is None


def test_a_peer_id_is_the_pod_name_and_its_url_a_name() -> None:
    assert names.members("log", "data", 2, 1) == [
        ("log-server-g2-0", "tcp://log-server-g2-0.log-server-g2.data.svc:8047")
    ]


def test_what_a_peer_tells_is_understood() -> None:
    told = status_value(
        Status(
            id=NEW[0],
            machine="KeyValue",
            role=Role.LEADER,
            stage=Stage.READ_WRITE,
            term=4,
            leader=NEW[0],
            first=1,
            snapshot=0,
            last=60,
            durable=60,
            commit=58,
            applied=58,
            target=58,
            effective=JOINT,
            effective_index=59,
            committed=settled(*OLD),
            committed_index=1,
            members=(MemberStatus(OLD[0], f"tcp://{OLD[0]}:8047", "ours", 57, 0),),
            transfer_to=None,
            fence=Fence.NAMED,
            recovering=False,
            blockers=("StateLost", "VolumeFull"),
            dedup_ids=0,
            dedup_oldest_second=None,
            streams=0,
            received=0,
            learners=0,
            pending=0,
            dropped=(),
            first_write_ms=None,
            last_write_ms=None,
        )
    )
    assert peer_view(told) == PeerView(
        id=NEW[0],
        leads=True,
        term=4,
        last=60,
        commit=58,
        configuration=JOINT,
        configuration_index=59,
        committed=False,
        matches={OLD[0]: 57},
        state_lost=True,
        volume_full=True,
    )
