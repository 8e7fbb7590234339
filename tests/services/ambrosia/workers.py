"""A flow that does what a script says, the plain program that knows its result, and a player that kills it."""

import random
from dataclasses import dataclass, field

from pavane.ambrosia import Immortal, Retry, first, gather, method
from pavane.ambrosia.client.beside import failure
from pavane.ambrosia.client.effects import Outside
from pavane.ambrosia.client.values import pack
from tests.services.ambrosia.desk import Desk, Place

Script = list[tuple[str, int]]
POLICY = Retry(attempts=3, first_s=2, factor=3, cap_s=5, on=ConnectionError)


def fetch(number: int) -> int:
    """Something outside; whoever carries it out lets it fail as often as ``failures`` says."""
    return number * 2


def failures(number: int) -> int:
    return number % 4


class Worker(Immortal):
    notes: list[int]
    inbox: list[int]
    taken: list[int]

    @method
    def put(self, number: int) -> None:
        self.inbox = [*self.inbox, number]

    @method
    def echo(self, number: int) -> int:
        return number

    def note(self, number: int) -> None:
        self.notes = [*self.notes, number]

    def take(self) -> None:
        self.taken, self.inbox = [*self.taken, *self.inbox], []

    @method
    async def play(self, script: Script, total: int) -> int:
        for done, (kind, number) in enumerate(script, start=1):
            if kind == "restart":
                self.restart(Worker.play, script[done:], total + number)
            total += await self.do(kind, number)
        return total

    async def do(self, kind: str, number: int) -> int:
        match kind:
            case "note":
                self.note(number)
            case "take":
                self.take()
            case "sleep":
                await self.sleep(number)
            case "call":
                return await self.call(Worker.echo, self.name, number)
            case "race":
                _ = self.run(fetch, 0)  # nobody waits for it
                await first(self.call(Worker.echo, self.name, number), self.sleep(number))
            case "both":
                run, call = self.run(POLICY, fetch, 4 * number + 2), self.call(Worker.echo, self.name, number)
                return sum(await gather(run, call))
            case "run":
                try:
                    return await self.run(POLICY, fetch, number)
                except ConnectionError:
                    return 1000
        return 0


class Boss(Immortal):
    answers: list[int]

    @method
    async def order(self, script: Script) -> int:
        answer = await self.call(Worker.play, "worker", script, 0)
        self.noted(answer)
        return answer

    def noted(self, answer: int) -> None:
        self.answers = [*self.answers, answer]


def expected(script: Script) -> tuple[int, list[int]]:
    """Return the result of a script and its notes; no part of the product has a say in it."""
    total, notes = 0, []
    for kind, number in script:
        lost = failures(number) >= POLICY.attempts
        if kind in {"restart", "call"}:
            total += number
        elif kind == "run":
            total += 1000 if lost else 2 * number
        elif kind == "both":
            total += 9 * number + 4
        elif kind == "note":
            notes.append(number)
    return total, notes


def waits(script: Script) -> list[int]:
    """Return the delays between attempts that a script costs, in milliseconds."""
    found = []
    for kind, number in script:
        if kind in {"run", "both"}:
            found += [2000, 5000][: failures(number if kind == "run" else 4 * number + 2)]
    return found


@dataclass
class Player:
    """Carries out what the flows of a desk want, one thing at a time, in an order of its own."""

    desk: Desk
    rng: random.Random
    delays: list[int] = field(default_factory=list)
    """Between a failed attempt and the time at which the next one is due, in milliseconds."""
    steps: int = 0
    past: list[Outside] = field(default_factory=list)

    def play(self, place: Place) -> None:
        """Carry out one of the things that a place wants."""
        self.steps += 1
        each = place.outside.pop(self.rng.randrange(len(place.outside)))
        self.carry_out(place, each, self.delays)
        self.past.append(each)
        if self.rng.random() < 0.3:  # a message that comes again, however late, counts once
            self.carry_out(place, self.rng.choice(self.past), [])

    def carry_out(self, place: Place, each: Outside, delays: list[int]) -> None:
        if each.kind == "clock":
            place.engine.done(each, self.desk.clock)
        elif each.kind == "timer":
            self.desk.clock = max(self.desk.clock, each.due)
            place.engine.done(each)
        else:
            _, (number,), _, _ = each.detail
            if each.retry is not None and each.attempt < failures(number):
                content = failure(each, ConnectionResetError("gone"), self.desk.clock)
                if content[3] >= 0:
                    delays.append(content[3] - self.desk.clock)
                place.engine.done(each, *content)
            else:
                place.engine.done(each, True, pack(fetch(number)))
        place.turn()
        self.desk.settle()

    def kill(self, place: Place, *, checkpoint: bool) -> None:
        """End the process of a place and start it again: it comes to the state that it had."""
        if checkpoint:
            place.take_checkpoint()
        before = place.engine.snapshot()
        place.outside.clear()
        place.live()
        self.desk.settle()
        assert place.engine.snapshot().same(before), place.engine.snapshot().differences(before)


def played(script: Script, seed: int, *, kill_at: int | None = None, checkpoint: bool = False) -> Player:
    """Play a script for a caller with a key, with messages meanwhile and kills at random or at one step."""
    rng = random.Random(seed)
    desk = Desk()
    desk.start(Boss, "boss")
    worker = desk.start(Worker, "worker")
    player = Player(desk, rng)
    total, notes = expected(script)
    asked = [desk.request("boss", Boss.order, script, key="k")]
    direct = [desk.request("worker", Worker.play, script, 0, key="k")]
    sent = 0
    while worker.outside:
        if kill_at is None and rng.random() < 0.3:
            player.kill(rng.choice([*desk.places.values()]), checkpoint=rng.random() < 0.5)
        elif kill_at == player.steps:
            player.kill(worker, checkpoint=checkpoint)
        if rng.random() < 0.3:
            sent += 1
            desk.request("worker", Worker.put, sent)
        if rng.random() < 0.1:
            direct.append(desk.request("worker", Worker.play, script, 0, key="k"))
        if worker.outside:  # after a kill nobody wants what an ended flow left behind
            player.play(worker)
    desk.request("worker", Worker.play, [("take", 0)], 0)
    results = [desk.places["boss"].results[token] for token in asked]
    results += [worker.results[token] for token in direct]
    assert {(each.state, Worker.play.signature.result.unpack(each.value)) for each in results} == {(1, total)}
    assert desk.places["boss"].engine.state()["answers"] == [total]
    state = worker.engine.state()
    assert state["taken"] == list(range(1, sent + 1))
    assert sorted(state["notes"]) == sorted(2 * notes)
    assert sorted(player.delays) == sorted(2 * waits(script))
    assert not worker.engine.flows
    assert not worker.failed
    return player
