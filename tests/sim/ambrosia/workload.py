"""Immortals that count what they send each other, in worlds that crash, cut and checkpoint."""

import contextlib
import itertools
from functools import partial
from unittest import mock

from pavane.ambrosia import CoordinatorLost, Immortal, first, method
from pavane.ambrosia.client import simulated
from pavane.ambrosia.testing import World

NAMES = ("ann", "bob", "cid")
PAIR = ("ann", "bob")
EVENTS = 60
DUEL_EVENTS = 200
ROUNDS = 12
SECONDS = 6.0
FORGETFUL_S = (0.5, 3.0)  # of a disk: so long that a sender starts again and joins meanwhile
LOG_BYTES = 3000  # so that logs rotate


class Peer(Immortal):
    sent: dict[str, int]
    got: dict[str, list[int]]
    events: list[int]
    answers: list[int]

    def deal(self, to: str) -> None:
        self.sent[to] = self.sent.get(to, 0) + 1
        self.fork(Peer.take, to, self.name, self.sent[to])

    @method
    def event(self, number: int, others: list[str]) -> None:
        """An Impulse: something happened."""
        self.events.append(number)
        for other in others:
            self.deal(other)
        if number % 3 == 0:
            self.start(Peer.chat, others[0], number)

    @method
    def take(self, sender: str, number: int) -> None:
        self.got.setdefault(sender, []).append(number)

    @method
    def echo(self, number: int) -> int:
        return number

    @method
    async def chat(self, other: str, number: int) -> None:
        answer = await self.call(Peer.echo, other, number)
        await first(self.call(Peer.echo, other, -number), self.sleep(0.1 * self.random.random()))
        self.note(answer)

    def note(self, answer: int) -> None:
        self.answers.append(answer)


def play(seed: int) -> World:
    """Play one world; whatever breaks is raised with its seed."""
    with World(seed, log_trigger_bytes=LOG_BYTES) as world:
        for name in NAMES:
            world.start(Peer, name)
        world.trouble()
        for number in range(EVENTS):
            world.later(world.rng.uniform(0, SECONDS), partial(happen, world, number))
        world.run(SECONDS)
        for name in NAMES[:2]:
            with contextlib.suppress(CoordinatorLost):
                world.call(name, Peer.echo, 7)
    check(world, NAMES)
    return world


class Later(Peer):
    """The second version: it counts what it took, and answers in another way."""

    taken: int = 0
    upgrades: int = 0

    def upgrade(self, old_version: int, old: Peer) -> None:
        self.taken = sum(len(each) for each in old.got.values())
        self.upgrades += 1

    @method
    def take(self, sender: str, number: int) -> None:
        super().take(sender, number)
        self.taken += 1
        if number % 5 == 0:
            self.deal(sender)

    @method
    def echo(self, number: int) -> int:
        return number + 1


def upgraded(seed: int) -> World:
    """Play one world in which one instance after the other is upgraded, whatever crashes meanwhile."""
    with World(seed, log_trigger_bytes=LOG_BYTES) as world:
        for name in NAMES:
            world.start(Peer, name)
        world.trouble()
        for number in range(EVENTS):
            world.later(world.rng.uniform(0, SECONDS), partial(happen, world, number))
        for name in NAMES:
            world.run(world.rng.uniform(0, SECONDS / 4))
            world.start(Peer, name, version=1, upgrade=Later)
        world.run(SECONDS)
    check(world, NAMES)
    for name in NAMES:
        state = world.state(name)
        assert state["upgrades"] == 1, f"seed {seed}: {name} changed over {state['upgrades']} times"
        assert state["taken"] == sum(len(each) for each in state["got"].values()), f"seed {seed}: {name} lost state"
    return world


def check(world: World, names: tuple[str, ...]) -> None:
    """Every Impulse was handled at most once, every other message once and in order."""
    states = {name: world.state(name) for name in names}
    for name, state in states.items():
        assert len(set(state["events"])) == len(state["events"]), (
            f"seed {world.seed}: an Impulse of {name} is handled twice"
        )
        for sender in names:
            expected = list(range(1, states[sender]["sent"].get(name, 0) + 1))
            assert state["got"].get(sender, []) == expected, f"seed {world.seed}: {sender} to {name}"


def duel(seed: int) -> None:
    """Two instances that send each other many Impulses."""
    with World(seed, log_trigger_bytes=LOG_BYTES) as world:
        for name in PAIR:
            world.start(Peer, name)
        world.trouble()

        def one(number: int) -> None:
            source, to = world.rng.sample(PAIR, 2)
            world.impulse(source, to, Peer.event, number, [world.rng.choice(PAIR)])

        for number in range(DUEL_EVENTS):
            world.later(world.rng.uniform(0, SECONDS), partial(one, number))
        world.run(SECONDS)
    check(world, PAIR)


def slow_receivers(seed: int) -> None:
    """Links break while much is received and not logged yet, and whoever received it crashes soon afterwards."""
    with World(seed, log_trigger_bytes=LOG_BYTES) as world:
        rng = world.rng
        for name in PAIR:
            world.start(Peer, name)
        numbers = itertools.count()

        def burst() -> None:
            for _ in range(rng.randint(2, 6)):
                source, to = rng.sample(PAIR, 2)
                world.impulse(source, to, Peer.event, next(numbers), [rng.choice(PAIR)])
                world.impulse(source, source, Peer.event, next(numbers), [to])

        for _ in range(ROUNDS):
            sender, receiver = rng.sample(PAIR, 2)
            world.slow_until[receiver] = world.time + 2.0
            for _ in range(4):
                world.later(rng.uniform(0, 0.6), burst)
            world.run(rng.uniform(0.02, 0.3))
            match rng.randrange(3):
                case 0:
                    world.crash(sender)
                case 1:
                    for _ in range(10):  # so short that the old stream is still read when the new one is there
                        world.later(rng.uniform(0, 0.5), partial(world.cut, sender, receiver, rng.uniform(0.0, 0.01)))
            world.run(rng.uniform(0.05, 0.8))
            if rng.random() < 0.7:
                world.crash(receiver)
            world.run(rng.uniform(0.1, 0.8))
    check(world, PAIR)


def happen(world: World, number: int) -> None:
    source, to = world.rng.choice(NAMES), world.rng.choice(NAMES)
    world.impulse(source, to, Peer.event, number, world.rng.sample(NAMES, 2))


def forgetful_receivers(seed: int) -> None:
    """A sender comes back while its receiver has calls in memory alone; then the receiver forgets them."""
    with mock.patch.object(simulated, "SLOW_S", FORGETFUL_S), World(seed, log_trigger_bytes=LOG_BYTES) as world:
        rng = world.rng
        for name in PAIR:
            world.start(Peer, name)
        numbers = itertools.count()
        for _ in range(ROUNDS):
            sender, receiver = rng.sample(PAIR, 2)
            world.slow_until[receiver] = world.time + max(FORGETFUL_S)
            for _ in range(3):
                for _ in range(rng.randint(1, 4)):
                    world.impulse(sender, receiver, Peer.event, next(numbers), [sender])
                    world.impulse(sender, sender, Peer.event, next(numbers), [receiver])
                world.run(rng.uniform(0.005, 0.05))
            world.crash(sender)
            world.run(rng.uniform(0.3, 1.2))
            world.crash(receiver)
            world.slow_until[receiver] = 0
            world.run(rng.uniform(0.3, 2.0))
    check(world, PAIR)
