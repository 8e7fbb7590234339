"""Immortals that count what they send each other, in worlds that crash, cut and checkpoint."""

import contextlib
from functools import partial

from pavane.ambrosia import CoordinatorLost, Immortal, first, method
from pavane.ambrosia.testing import World

NAMES = ("ann", "bob", "cid")
EVENTS = 60
SECONDS = 6.0
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
    states = {name: world.state(name) for name in NAMES}
    for name, state in states.items():
        assert len(set(state["events"])) == len(state["events"]), f"seed {seed}: an Impulse of {name} is handled twice"
        for sender in NAMES:
            expected = list(range(1, states[sender]["sent"].get(name, 0) + 1))
            assert state["got"].get(sender, []) == expected, f"seed {seed}: {sender} to {name}"
    return world


def happen(world: World, number: int) -> None:
    source, to = world.rng.choice(NAMES), world.rng.choice(NAMES)
    world.impulse(source, to, Peer.event, number, world.rng.sample(NAMES, 2))
