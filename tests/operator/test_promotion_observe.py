"""Which members are heard when they are slow (docs/specs/operator.md 3.1)."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pavane.raft.client import RaftClient
from pavane.raft.errors import Expired, Unreachable
from pavane.raft.keys import IDENT_KEY
from pavane.raft.state.roles import Role
from pavane.raft.wire.reqid import reqid_second
from pavane_operator.crds.raftcluster import RaftClusterSpec, RaftClusterStatus
from pavane_operator.crds.status import Rollout, State, Step
from pavane_operator.kinds.raft.facts import SCALE_MEMBERS
from pavane_operator.kinds.raft.promotion import RaftPromotion
from pavane_operator.plan.model import Child, Observed, Pod, Resource

PODS = {f"log-server-g1-{ordinal}": f"127.64.98.{ordinal + 1}" for ordinal in range(3)}
RESOURCE = Resource(
    kind="RaftCluster",
    name="log",
    namespace="data",
    uid="uid",
    resource_version="1",
    metadata_generation=1,
    spec=RaftClusterSpec.model_validate({"stateMachine": "Broadcast"}),
    status=RaftClusterStatus(next_generation=1, rollout=Rollout(state=State.PROMOTING, generation=1)),
)


class Members:
    """Answer a question for their status only if they are given `needs_s`."""

    def __init__(self) -> None:
        self.needs_s = 0.0
        self.leader = "log-server-g1-0"
        self.members = list(PODS)
        self.configuration_index = 1
        self.lost: set[str] = set()
        self.asked: list[bytes] = []

    def change(self, members: Sequence[tuple[str, str]], reqid: bytes) -> None:
        """Change as a cluster does, which knows a request by its id alone."""
        if reqid not in self.asked:
            self.members = [peer for peer, _ in members]
            self.configuration_index += 2
        self.asked.append(reqid)

    async def status(self, peer: str, *, timeout_s: float) -> dict[str, Any]:
        if timeout_s < self.needs_s:
            raise Unreachable([peer], timeout_s)
        name = next(name for name, address in PODS.items() if address in peer)
        return {
            "id": name,
            "role": (Role.LEADER if name == self.leader else Role.FOLLOWER).title,
            "is_leader": name == self.leader,
            "term": 1,
            "last_index": 3,
            "commit_index": 3,
            "configuration": {"new": [[one, f"tcp://{one}:8047"] for one in self.members]},
            "configuration_index": self.configuration_index,
            "configuration_committed": True,
            "members": [],
            "blockers": ["StateLost"] if name in self.lost else [],
        }


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Members:
    found = Members()
    monkeypatch.setattr(
        RaftClient, "status", lambda _client, peer, *, timeout_s: found.status(peer, timeout_s=timeout_s)
    )

    async def change_members(
        _client: RaftClient, peers: Sequence[tuple[str, str]], *, reqid: bytes, timeout_s: float
    ) -> int:
        found.change(peers, reqid)
        return found.configuration_index

    monkeypatch.setattr(RaftClient, "change_members", change_members)
    return found


def observed(*names: str) -> Observed:
    data = {IDENT_KEY: base64.b64encode(b"secret").decode()}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "log-keys"}, "data": data}
    secret = Child("Secret", "log-keys", "uid-keys", "1", body=body)
    pods = tuple(Pod(name, "uid-" + name, "1", 1, address=PODS[name], ready=True) for name in names)
    return Observed(fresh=True, children=(secret,), pods=pods)


async def test_members_are_asked_with_the_secret_that_the_user_gave(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[bytes] = []
    opened = RaftClient.__init__

    def opening(client: RaftClient, seeds: list[str], ident: bytes, **settings: Any) -> None:
        shown.append(ident)
        opened(client, seeds, ident, **settings)

    monkeypatch.setattr(RaftClient, "__init__", opening)
    resource = replace(
        RESOURCE, spec=RaftClusterSpec.read({"stateMachine": "Broadcast", "secretRef": {"name": "mine"}})
    )
    promotion = RaftPromotion("data", "log", "uid")
    assert (await promotion.observe(resource, observed(*PODS))).own_status["leader"] is None
    mine = {"metadata": {"name": "mine"}, "data": {"secret": base64.b64encode(b"mine\n").decode()}}
    seen = replace(observed(*PODS), references={"mine": mine})
    assert (await promotion.observe(resource, seen)).own_status["leader"] == members.leader
    assert shown == [b"mine"]
    await promotion.close()


async def test_without_keys_nobody_is_called_down_and_who_was_known_stays_so(members: Members) -> None:
    status = RaftClusterStatus(active_generation=1, rollout=Rollout(state=State.IDLE))
    resource, keyless = replace(RESOURCE, status=status), replace(observed(*PODS), children=())
    promotion = RaftPromotion("data", "log", "uid")
    assert (await promotion.observe(resource, keyless)).down is None
    members.leader = ""
    assert (await promotion.observe(resource, observed(*PODS))).down is not None
    members.leader = "log-server-g1-0"
    assert (await promotion.observe(resource, observed(*PODS))).own_status["leader"] == members.leader
    assert (await promotion.observe(resource, keyless)).own_status["leader"] == members.leader
    await promotion.close()


async def leader_seen_by(promotion: RaftPromotion) -> object:
    return (await promotion.observe(RESOURCE, observed(*PODS))).own_status["leader"]


async def test_members_that_were_silent_are_given_time_until_a_leader_is_known(members: Members) -> None:
    promotion = RaftPromotion("data", "log", "uid")
    members.needs_s = 10.0
    assert await leader_seen_by(promotion) is None
    members.needs_s = 0.4  # a slow machine, not a dead one
    assert await leader_seen_by(promotion) == members.leader
    await promotion.close()


async def test_a_dead_member_does_not_hold_up_every_look(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    async def status(_client: RaftClient, peer: str, *, timeout_s: float) -> dict[str, Any]:
        if PODS["log-server-g1-2"] in peer:
            given.append(timeout_s)
            raise Unreachable([peer], timeout_s)
        return await members.status(peer, timeout_s=timeout_s)

    monkeypatch.setattr(RaftClient, "status", status)
    promotion = RaftPromotion("data", "log", "uid")
    for _ in range(2):
        assert await leader_seen_by(promotion) == members.leader
    assert given[1] < given[0]
    await promotion.close()


async def test_a_member_that_is_named_again_too_early_is_taken_out_once_more(members: Members) -> None:
    """By the same members, within the same recorded step: only the configuration that is replaced is another one."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    step = Step(name=SCALE_MEMBERS, at=at)
    status = RaftClusterStatus(active_generation=1, rollout=Rollout(state=State.IDLE, step=step))
    resource = replace(RESOURCE, status=status)
    promotion = RaftPromotion("data", "log", "uid")
    lost = list(PODS)[2]
    members.lost = {lost}
    for expected in (list(PODS)[:2], list(PODS), list(PODS)[:2]):
        await promotion.step(SCALE_MEMBERS, resource, observed(*PODS), at)
        assert sorted(members.members) == expected
    await promotion.close()


@pytest.mark.parametrize("ahead_s", [-20 * 60, 9 * 3600])
async def test_a_change_that_is_refused_for_its_time_is_asked_for_by_the_clock_of_the_leader(
    members: Members, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    """A clock that is wrong stays wrong: the new time of the step alone would be refused for ever."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    leader_s = int(at.timestamp()) + ahead_s

    async def change_members(
        _client: RaftClient, peers: Sequence[tuple[str, str]], *, reqid: bytes, timeout_s: float
    ) -> int:
        if abs(reqid_second(reqid) - leader_s) > 60:
            raise Expired(reqid, sent_before=True)
        members.change(peers, reqid)
        return members.configuration_index

    async def clock_ahead_s(_client: RaftClient) -> float:
        return float(ahead_s)

    monkeypatch.setattr(RaftClient, "change_members", change_members)
    monkeypatch.setattr(RaftClient, "clock_ahead_s", clock_ahead_s)
    status = RaftClusterStatus(
        active_generation=1, rollout=Rollout(state=State.IDLE, step=Step(name=SCALE_MEMBERS, at=at))
    )
    promotion = RaftPromotion("data", "log", "uid")
    members.lost = {list(PODS)[2]}
    resource = replace(RESOURCE, status=status)
    with pytest.raises(Expired):
        await promotion.step(SCALE_MEMBERS, resource, observed(*PODS), at)
    await promotion.step(SCALE_MEMBERS, resource, observed(*PODS), at)
    assert sorted(members.members) == list(PODS)[:2]
    await promotion.close()
