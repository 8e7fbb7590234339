"""Generations that follow each other in a simulated group (docs/specs/swim.md 16, rows A20 to A22 and A25 of 25)."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest

from pavane.swim.config import Start
from pavane.swim.core.outputs import Happened, Own
from pavane.swim.core.staging import CaughtUp
from pavane.swim.wire.messages import JoinRedirect, JoinReq, PingRequest, PingResponse, decode
from pavane.swim.wire.values import Address, NodeStage, State
from tests.sim.swim.sizes import FULL, SEEDS, sized
from tests.sim.swim.test_scenarios import deaths, unseen
from tests.sim.swim.world import Process, Weather, World


def caught_up(*processes: Process) -> bool:
    return all(process.core.staging.caught_up is CaughtUp.YES for process in processes)


def promote(world: World, process: Process) -> bool:
    done = process.core.promote(world.time)
    world.after(process)
    return done


def drain(world: World, process: Process) -> None:
    process.core.drain(world.time)
    world.after(process)


def stand(processes: Sequence[Process], own: Own) -> bool:
    return all(process.core.own is own for process in processes)


def full(world: World) -> list[Process]:
    return [process for process in world.running if process.core.stage is NodeStage.READ_WRITE]


def observers(world: World, *names: str, seeds: tuple[str, ...] = ("n1",)) -> list[Process]:
    return [world.start(name, seeds, start=Start.ORDERED, rollout=2) for name in names]


@SEEDS
def test_observers_learn_everything_and_accuse_and_admit_nobody(seed: int) -> None:
    world = World(31 + 1000 * seed)
    members = world.group(20)
    reporters: set[int] = set()
    redirects: list[Address] = []

    def tap(process: Process, to: Address, datagram: bytes) -> None:
        message = decode(datagram)
        if isinstance(message, PingRequest | PingResponse):
            reporters.update(suspicion.reporter for suspicion in message.payload.suspects)
        elif isinstance(message, JoinRedirect):
            redirects.append(process.address)

    world.tap = tap
    world.weather = Weather(loss=0.1)
    watching = observers(world, "o1", "o2", "o3")
    world.must(lambda: all(process.core.own is Own.MEMBER for process in watching), 10, "they are tracked")
    world.must(lambda: caught_up(*watching), 10, "they are caught up")
    world.kill(members[7])
    world.must(unseen(world, members[7]), 30, "the crash is known to all, observers too")
    joiner = world.start("late", ["o1"])
    world.must(lambda: joiner.core.own is Own.MEMBER, 10, "the joiner is sent on")
    assert watching[0].address in redirects
    world.weather = Weather()
    world.must(world.all_see_all, 30, "one view")
    assert reporters
    assert not reporters & {process.core.info.id for process in watching}
    told = {member.id: member.stage for member in members[0].core.members()}
    assert {told[process.core.info.id] for process in watching} == {NodeStage.READ_ONLY}


@SEEDS
def test_a_generation_takes_over_from_another_while_foreign_members_stay(seed: int) -> None:
    world, count = World(32 + 1000 * seed, check=not FULL), sized(8, 20)
    old = [world.start("n1", rollout=1)]
    old += [world.start(f"n{number}", ["n1"], rollout=1) for number in range(2, count + 1)]
    foreign = [world.start(f"f{number}", ["n1"]) for number in range(sized(3, 5))]
    world.must(world.all_see_all, 30, "the group forms")
    new = observers(world, *(f"m{number}" for number in range(count)), seeds=("n1", "n2"))
    assert not promote(world, new[0])  # nobody tracks it yet
    world.must(lambda: caught_up(*new), 20, "the new generation is caught up")
    assert all(promote(world, process) for process in new)
    gens = [process.core.info.gen for process in new]
    redirected: Counter[Address] = Counter()

    def sent(process: Process, to: Address, datagram: bytes) -> None:
        del process
        redirected[to] += isinstance(decode(datagram), JoinRedirect)

    world.tap = sent
    leaving, joiners = list(old), list[Address]()
    while leaving:
        batch, leaving = leaving[: count // 4], leaving[count // 4 :]
        for process in batch:
            drain(world, process)
        joiner = world.start(f"j{len(leaving)}", [batch[0].name])
        joiners.append(joiner.address)
        world.must(partial(stand, batch, Own.OUT), 5, "they have left")
        world.must(partial(stand, [joiner], Own.MEMBER), 5, "who asked a leaver is admitted")
        assert len(full(world)) >= count
        world.must(world.all_see_all, 10, "the leaves are known")
    assert deaths(world) == 0
    assert [redirected[address] for address in joiners] == [1] * len(joiners)
    assert all(process.happened(Happened.DRAINED) for process in old)
    assert [process.core.info.gen for process in new] == gens
    world.run(2 * len(world.running))  # every pair has met by then
    seen = {member.id: (member.stage, member.rollout) for member in foreign[0].core.members()}
    assert {seen[process.core.info.id] for process in new} == {(NodeStage.READ_WRITE, 2)}
    # Once everybody has acknowledged it, the new generation shows its stage no more.
    shown: list[Address] = []

    def tap(process: Process, to: Address, datagram: bytes) -> None:
        message = decode(datagram)
        if isinstance(message, PingRequest | PingResponse) and message.payload.stage is not None:
            shown.append(process.address)

    world.tap = tap
    world.run(30)
    assert shown == []


@SEEDS
def test_observers_that_hear_no_full_member_are_not_caught_up(seed: int) -> None:
    world = World(33 + 1000 * seed)
    members = world.group(5)
    watching = observers(world, "o1", "o2")
    world.must(lambda: caught_up(*watching), 20, "they are caught up")
    world.cut(watching, members)
    world.run(12)
    assert not any(process.core.staging.caught_up is CaughtUp.YES for process in watching)
    status = watching[0].core.staging
    assert status.progress < status.target
    assert not promote(world, watching[0])
    assert watching[0].core.promote(world.time, force=True)
    world.cuts.clear()
    world.must(world.all_see_all, 120, "one view again")


@SEEDS
@pytest.mark.parametrize("keys", [(), (bytes(32),)], ids=["plaintext", "e1"])
def test_a_staged_group_whose_members_all_stopped_comes_back_by_itself(seed: int, keys: tuple[bytes, ...]) -> None:
    world = World(34 + 1000 * seed, start=Start.SELF, rollout=3, keys=keys)
    names = [f"n{number}" for number in range(1, 11)]
    seeds = [world.address(1), world.address(2), world.address(3)]
    for _ in range(2):
        for name in names:
            world.run(0.5)
            world.start(name, seeds)
        world.must(world.all_see_all, 15, "everybody is there")
        world.must(lambda: len(full(world)) == len(names), 20, "and a full member")
        for process in list(world.processes.values()):
            world.kill(process)


@SEEDS
@pytest.mark.parametrize("seeds_first", [True, False])
def test_observers_that_all_start_at_once_find_each_other_without_a_storm(seed: int, *, seeds_first: bool) -> None:
    world, size = World(38 + 1000 * seed, start=Start.SELF, rollout=3), 20
    asked: Counter[Address] = Counter()

    def count(process: Process, to: Address, datagram: bytes) -> None:
        del to
        asked[process.address] += isinstance(decode(datagram), JoinReq)

    world.tap = count
    for number in range(1, size + 1) if seeds_first else range(size, 0, -1):
        world.start(f"n{number}", [world.address(1), world.address(2)], address=world.address(number))
        world.run(0.01)
    world.must(world.all_see_all, 15, "everybody is there")
    # A few rounds over two seeds, each with a token; the seeds ask back.
    assert asked.total() <= 40 * size


def test_who_would_promote_itself_yields_to_a_later_rollout() -> None:
    world = World(35)
    world.start("n1", rollout=2)
    world.start("n2", ["n1"], rollout=2)
    world.must(world.all_see_all, 10, "two full members")
    former = world.start("former", ["n1"], start=Start.SELF, rollout=1)
    current = world.start("current", ["n1"], start=Start.SELF, rollout=2)
    world.must(lambda: current.core.stage is NodeStage.READ_WRITE, 20, "a member of the rollout promotes itself")
    world.run(40)
    assert former.core.stage is NodeStage.READ_ONLY
    assert [event.text for event in former.happened(Happened.FENCED)] == ["2"]
    assert former.core.staging.fenced


def test_an_observer_whose_rollout_becomes_active_promotes_itself() -> None:
    world = World(37)
    world.group(3)
    (watching,) = observers(world, "o1")
    world.run(60)
    assert watching.core.stage is NodeStage.READ_ONLY
    watching.core.promote_when_ready(world.time)
    world.must(lambda: watching.core.stage is NodeStage.READ_WRITE, 5, "it is caught up and needs no order")


def test_a_suspicion_that_ended_while_observing_is_judged_after_promotion() -> None:
    world = World(36)
    members = world.group(3)
    (watching,) = observers(world, "o1")
    world.must(lambda: caught_up(watching), 20, "it is caught up")
    for process in members:
        world.kill(process)
    world.run(60)
    states = {state for _, state in watching.sees().values()}
    assert states <= {State.ALIVE, State.SUSPECT}  # an observer declares nobody dead
    assert watching.core.promote(world.time, force=True)
    world.after(watching)
    world.must(lambda: len(watching.sees()) <= 1, 120, "a full member does")
