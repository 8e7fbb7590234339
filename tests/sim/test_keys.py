"""Clusters with keys, leases and watchers under faults, from seeds (docs/specs/raft.md 12, 18.2 S4, S10 to S12).

``PAVANE_SEED=n`` replays one seed; ``SEEDS=n`` says how many clusters are played in all: one in twenty here. Each
planted bug shows that the checks find what they are for.
"""

from dataclasses import replace
from typing import Any

import pytest

from pavane.raft.client.key_calls import WatchCall
from pavane.raft.core import watching
from pavane.raft.core.keyspace import Keyspace
from pavane.raft.core.outputs import Route
from pavane.raft.machines import keyvalue, reads
from pavane.raft.machines.commands import Compare, Target
from pavane.raft.machines.history import Happened
from pavane.raft.machines.keeper import LeaseKeeper
from pavane.raft.machines.keyvalue import KeyValue
from pavane.raft.machines.state import Result
from pavane.raft.state.roles import Role
from pavane.raft.wire.frames import Frame
from pavane.raft.wire.pv import PvLease, PvWatchReply
from tests.sim.kit.network import Weather
from tests.sim.kit.seeds import played
from tests.sim.test_planted_bugs import found
from tests.sim.world import Scenario, play, scenario_of

SEEDS_PER_TEST = 5
FOUND = {
    16: "a wiped peer was sent a bare snapshot for ever, for it had not told yet that it is ours when that began",
}
KEYS = Scenario(voters=3, keys=True)
STORMY = replace(KEYS, weather=Weather(loss=0.05, late=0.1))
ISOLATED = replace(KEYS, faults_s=6.0, only=("isolate_leader",))


@played(SEEDS_PER_TEST, one_in=20)
def test_every_invariant_holds_with_keys(seeds: range) -> None:
    for seed in seeds:
        with_keys(seed)


@pytest.mark.parametrize("seed", range(4))
def test_watchers_that_are_behind_are_read_for_in_groups(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "ALONE_REVISIONS", 1)
    monkeypatch.setattr(watching, "GROUP_STREAMS", 2)
    monkeypatch.setattr(watching, "GROUP_REVISIONS", 3)
    with_keys(seed)


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_stays_mended(seed: int) -> None:
    with_keys(seed)


def with_keys(seed: int) -> None:
    world = play(seed, replace(scenario_of(seed), keys=True, repeats=True, originals=0, originals_joining=0))
    for node in world.ours.values():
        machine = node.machine
        assert machine is not None
        if machine.state.revision == world.keys.reference.state.revision:
            world.keys.compare(node.id, machine)


def test_the_seeds_cover_what_they_are_meant_to() -> None:
    world = play(0, STORMY)
    assert all(client.done > 3 for client in world.key_clients)
    assert len(world.keys.promised) > 1
    kinds = {event.kind for _, events in world.keys.events for event in events}
    assert {what for what, count in world.snapshots.items() if count} >= {"taken", "restored"}
    assert kinds == {Happened.PUT, Happened.DELETE, Happened.EXPIRED}
    assert world.keys.guarded_writes


# --- planted bugs ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_new_leader_that_gives_leases_less_than_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LeaseKeeper.__init__

    def begin(self: LeaseKeeper, leases: Any, now: float) -> None:
        original(self, leases, now - 0.6)

    monkeypatch.setattr(LeaseKeeper, "__init__", begin)
    found(replace(KEYS, faults_s=6.0, only=("crash_leader",)), ["S10"])


@pytest.mark.long
def test_a_keep_alive_that_is_answered_without_a_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_alive(self: Keyspace, route: Route, request_id: Frame, message: PvLease) -> None:
        if self._node.role == Role.LEADER:
            keeper = self._keeper
            assert keeper is not None
            leases = [lease for lease in message.leases if isinstance(lease, int)]
            kept: Any = [[lease, ttl] for lease, ttl in keeper.renew(leases, self._node.now.mono)]
            self._reply(route, request_id, 0, kept)  # type: ignore[arg-type]
        else:
            self._moved(route, bytes(request_id))

    monkeypatch.setattr(Keyspace, "keep_alive", keep_alive)
    found(ISOLATED, ["S10"])


@pytest.mark.long
def test_a_read_that_is_answered_without_a_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: Keyspace, route: Route, request_id: Frame, message: Any) -> None:
        if self._node.role == Role.LEADER:
            self._read(route, bytes(request_id), message.query[1])
        else:
            self._moved(route, bytes(request_id))

    monkeypatch.setattr(Keyspace, "read", read)
    found(ISOLATED, ["S10"])


@pytest.mark.long
def test_a_read_that_does_not_wait_for_its_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_at(self: Keyspace, read: Any) -> None:
        self._read(read.route, read.id, read.ops)

    monkeypatch.setattr(Keyspace, "_read_at", read_at)
    found(KEYS, ["S10"])


@pytest.mark.long
def test_a_watcher_that_does_not_notice_a_lost_message(monkeypatch: pytest.MonkeyPatch) -> None:
    original = WatchCall._take

    def take(self: WatchCall, reply: PvWatchReply) -> Any:
        return original(self, replace(reply, previous=self._expected) if self._begun and reply.previous else reply)

    monkeypatch.setattr(WatchCall, "_take", take)
    found(STORMY, ["S12"])


@pytest.mark.long
def test_a_replica_whose_results_depend_on_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    original = KeyValue.apply
    machines: list[KeyValue] = []

    def apply(self: KeyValue, index: int, reqid: bytes, data: Frame) -> Result:
        if self not in machines:
            machines.append(self)
        result = original(self, index, reqid, data)
        return result if machines.index(self) % 2 else Result(result.code, result.data + b"\xc0")

    monkeypatch.setattr(KeyValue, "apply", apply)
    found(KEYS, ["S4"])


@pytest.mark.long
def test_a_result_that_is_told_for_another_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def result_of(self: KeyValue, reqid: bytes) -> Result | None:
        del reqid
        return next(reversed(self.state.results.kept.values()))[1]

    monkeypatch.setattr(KeyValue, "result_of", result_of)
    found(KEYS, ["S6"])


@pytest.mark.long
@pytest.mark.parametrize("wrong", ["taken while it is held", "written under any token"])
def test_a_lock_whose_condition_is_not_looked_at(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = reads.holds

    def holds(state: Any, compare: Compare) -> bool:
        if compare.target == Target.CREATE_REVISION and (compare.operand == 0) == (wrong == "taken while it is held"):
            return True
        return original(state, compare)

    monkeypatch.setattr(keyvalue, "holds", holds)
    found(KEYS, ["S11"])
