"""Clusters in which some peers are models of npm zmq-raft (docs/specs/raft.md 1.4, 7.3, 18.2 S7, S15).

Their share of the random seeds is played by ``test_sim``; here is what has to be seen for certain.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pavane.raft.core.progress import Progress
from pavane.raft.core.replication import Replication
from pavane.raft.core.requests import Ask, Question, Requests
from pavane.raft.state.roles import Role
from pavane.raft.wire.frames import decode_uint, encode_uint
from pavane.raft.wire.pv import PvAppendReply
from pavane.raft.wire.replies import AppendEntriesReply
from pavane.raft.wire.requests import AppendEntries
from pavane.wire import Stage
from tests.sim import js_model
from tests.sim.kit.network import Weather
from tests.sim.kit.seeds import ONE_SEED
from tests.sim.test_planted_bugs import found
from tests.sim.world import Scenario, World, play, scenario_of

ALONE_S = 10.0  # many election time-outs


def test_a_quarter_of_the_seeds_have_original_peers_in_either_majority() -> None:
    scenarios = [scenario_of(seed) for seed in range(400)]
    mixed = [scenario for scenario in scenarios if scenario.originals]
    assert len(mixed) >= len(scenarios) / 4
    assert all(scenario.originals < scenario.voters for scenario in mixed)
    assert {scenario.originals for scenario in mixed} >= {1, 2, 3}
    assert any(scenario.changes and scenario.originals_joining for scenario in mixed)


def test_leaders_of_both_kinds_serve_a_mixed_cluster() -> None:
    worlds = [play(seed, Scenario(voters=3, originals=originals)) for seed in range(6) for originals in (1, 2)]
    leaders = [(peer in world.js.names, world) for world in worlds for peer in world.checks.leaders.values()]
    assert {original for original, _ in leaders} == {True, False}
    assert any(world.js.messages > 100 for world in worlds)


def test_members_of_both_kinds_come_and_go_under_leaders_of_both() -> None:
    changing = Scenario(voters=3, learners=3, originals=1, originals_joining=2, changes=True)
    worlds = [play(seed, changing) for seed in range(8)]
    joined = [
        peer in world.js.names
        for world in worlds
        for _, configuration in world.checks.configurations
        for peer, _ in configuration.new
        if peer in {learner for learner, _ in world.pool[3:]}
    ]
    assert {True, False} == set(joined)
    leaders = {(peer in world.js.names) for world in worlds for peer in world.checks.leaders.values()}
    assert leaders == {True, False}


def test_originals_and_ours_find_each_other_again_when_connections_carry_nothing() -> None:
    """No message of another age reaches an original behind a new connection: it would end (S7)."""
    for originals in (1, 2):
        silent = Scenario(voters=3, originals=originals, fault_pause_s=0.8, only=("half_open",))
        for seed in range(8):
            play(seed, silent)


@pytest.mark.parametrize("weather", [Weather(), Weather(loss=0.1, late=0.2)], ids=["fine", "stormy"])
def test_an_original_that_was_away_while_logs_were_cut_is_given_the_snapshot(weather: Weather) -> None:
    world = World(3, Scenario(voters=3, originals=1))
    away = world.nodes["x-g1-0"]
    for writer in world.writers:
        writer.begin()
    world.run_until(2.0)
    away.crash()
    world.run_until(4.0)
    for node in world.ours.values():
        world.compact(node)
        assert node.disk.first > len(away.disk.entries) + 1
        world.run_until(world.time + 1.0)
    world.network.weather = weather
    away.start()
    behind = world.greatest_acknowledged
    assert world.run_until(world.time + 10.0, lambda: away.commit > behind and world.greatest_acknowledged > behind)
    assert world.js.installed == 1


@pytest.mark.skipif(ONE_SEED is not None, reason="PAVANE_SEED replays one seed alone")
def test_the_model_alone_keeps_what_it_promises() -> None:
    """A model that loses entries by itself would hide what ours does to it."""
    for seed in range(20):
        play(seed, Scenario(voters=3, originals=3))


@pytest.mark.parametrize(("originals", "raises"), [(0, 0), (1, 1), (2, 1)])
def test_a_lone_peer_raises_its_term_at_most_once_and_among_ours_never(originals: int, raises: int) -> None:
    world = World(1, Scenario(voters=3, originals=originals))
    for writer in world.writers:
        writer.begin()
    world.run_until(2.0)
    lone = world.ours["x-g1-2"]
    before = lone.term
    world.network.cuts |= {(lone.id, peer) for peer in world.nodes} | {(peer, lone.id) for peer in world.nodes}
    world.run_until(world.time + ALONE_S)
    assert lone.role != Role.LEADER
    assert lone.term <= before + raises
    assert any(node.role == Role.LEADER for node in world.nodes.values())
    world.network.cuts.clear()
    behind = lone.commit
    world.run_until(world.time + 2.0)
    assert lone.commit > behind


@pytest.mark.parametrize("seed", range(3))
def test_one_with_an_older_log_and_shorter_times_lets_an_original_peer_stand(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(js_model, "ELECTION_S", (1.5, 2.5))  # ours have 200 to 300 ms
    world = World(seed, Scenario(voters=3, originals=1))
    for writer in world.writers:
        writer.begin()
    world.run_until(2.0)
    original = world.nodes["x-g1-0"]
    leader, behind = sorted(world.ours.values(), key=lambda node: node.role != Role.LEADER)
    assert leader.role == Role.LEADER
    world.network.cuts |= {(behind.id, peer) for peer in world.nodes} | {(peer, behind.id) for peer in world.nodes}
    world.run_until(world.time + 1.0)
    leader.crash()
    world.network.cuts.clear()
    assert world.run_until(world.time + ALONE_S, lambda: original.role == Role.LEADER), behind.describe()
    acknowledged = world.greatest_acknowledged
    assert world.run_until(world.time + ALONE_S, lambda: world.greatest_acknowledged > acknowledged)


def test_one_that_stands_in_vain_does_not_keep_the_last_voter_from_leading_for_ever() -> None:
    """Seed 2223 with connections that go silent, as it was found.

    The silence of an original that has left counts as no objection, so the one that missed all changes stands again and
    again. The one that is to be replaced by it waits for longer, and found a later term each time that it asked.
    """
    world = World(1, Scenario(voters=5, learners=1, originals=1))
    late, also_late, last = world.ours["x-g1-1"], world.ours["x-g1-3"], world.ours["x-g2-0"]
    for writer in world.writers:
        writer.begin()
    world.run_until(2.0)
    last.stage = Stage.READ_WRITE
    world.permit(last)
    away = {late.id, also_late.id}
    cuts = world.network.cut(away, set(world.nodes) - away)
    world.administrator.change(((last.id, last.url),))
    assert world.run_until(world.time + ALONE_S, lambda: last.final_members() == ((last.id, last.url),))
    assert world.run_until(world.time + ALONE_S, lambda: world.administrator.wanted is None)
    world.network.cuts -= {(late.id, last.id), (last.id, late.id)}  # its log is looked at before it may be a member
    world.administrator.change(((late.id, late.url),))
    until = world.time + ALONE_S
    while last.final_members() is not None and world.time < until:
        world.run_until(world.time + 0.0001)
    world.network.cuts |= cuts
    world.run_until(world.time + 0.5)
    assert late.mirror.configurations == []
    assert last.final_members() is None
    last.crash()
    last.start()
    world.network.cuts.clear()
    assert world.run_until(world.time + ALONE_S, lambda: world.administrator.wanted is None), last.describe()


# --- planted bugs (S7) -----------------------------------------------------------------------------------------------

ORIGINALS = Scenario(voters=3, originals=1)
REFUSED = replace(ORIGINALS, originals=2, only=("isolate_leader",))
REJOINED = replace(ORIGINALS, weather=Weather(late=0.5), only=("break_connections", "transfer"), fault_pause_s=0.05)


def _unbounded_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaders tell their commit index as it is, as the original program does: ours tell at most prev (7.3)."""
    original: Callable[..., object] = Requests.ask

    def ask(self: Requests, to: object, question: object, *arguments: object, **named: object) -> object:
        if isinstance(question, AppendEntries):
            question = AppendEntries(
                question.leader,
                question.term,
                question.previous_index,
                question.previous_term,
                self._node.commit,
                question.entries,
            )
        return original(self, to, question, *arguments, **named)

    monkeypatch.setattr(Requests, "ask", ask)


def test_an_original_peer_is_told_a_commit_index_beyond_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    _unbounded_commit(monkeypatch)
    found(REJOINED, ["S7"])


def test_an_original_peer_is_brought_to_success_below_its_last_match(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Replication._refused

    def refused(self: Replication, progress: Progress, reply: AppendEntriesReply | PvAppendReply) -> None:
        original(self, progress, reply)
        if isinstance(reply, AppendEntriesReply) and reply.conflict_index is None:
            progress.next = max(1, progress.next - 1)

    monkeypatch.setattr(Replication, "_refused", refused)
    found(REFUSED, ["S7"])


def test_an_original_peer_gets_new_messages_while_old_ones_may_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Replication.connected

    def connected(self: Replication, peer: str, up: bool) -> None:
        original(self, peer, up)
        if peer in self.peers:
            self.peers[peer].quiet_until = 0.0

    monkeypatch.setattr(Replication, "connected", connected)
    found(REJOINED, ["S7"])


def test_a_repetition_to_an_original_peer_under_a_new_id(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Requests.again

    def again(self: Requests, ask: Ask, question: Question | None = None) -> None:
        if ask.frames[0] == b"+":
            self._outstanding[ask.to.channel, ask.to.peer].pop(ask.id, None)
            ask.id = encode_uint(decode_uint(ask.id) + 1000)
            self._outstanding[ask.to.channel, ask.to.peer][ask.id] = ask
        original(self, ask, question)

    monkeypatch.setattr(Requests, "again", again)
    found(ORIGINALS, ["S7"])
