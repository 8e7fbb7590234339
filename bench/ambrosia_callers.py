"""The application of `bench.ambrosia_chaos`: immortals that call each other for ever, and count what they are called.

Each call carries its number of its pair. Its receiver counts whatever is not the next one, so a call that is lost,
doubled or overtaken is found there.
"""

from typing import Any

from pavane.ambrosia import Immortal, gather, method, query

WINDOW = 32
"""Calls of a pair that are under way together."""
ROUNDS = 40
"""Of a flow; its history is part of each checkpoint, so another one goes on."""


class Caller(Immortal):
    """Calls the others for ever, and counts what they call."""

    made: dict[str, int]
    answered: dict[str, int]
    seen: dict[str, int]
    wrong: int = 0
    open: int = 0
    stopping: bool = False

    @method
    def begin(self, peers: list[str]) -> None:
        """Start a flow for each of them."""
        for peer in peers:
            self.again(peer)

    @method
    def stop(self) -> None:
        """Have the flows end."""
        self.stopping = True

    @method
    def take(self, sender: str, number: int) -> int:
        """Count a call; the answer is its number."""
        self.wrong += number != self.seen.get(sender, 0) + 1
        self.seen[sender] = number
        return number

    def numbers(self, peer: str) -> list[int]:
        """Number the next calls, none when it is to end."""
        first = self.made.get(peer, 0) + 1
        if self.stopping:
            return []
        self.made[peer] = first + WINDOW - 1
        return list(range(first, first + WINDOW))

    def finished(self, peer: str, asked: list[int], told: list[int]) -> None:
        """Count answers."""
        self.wrong += asked != told
        self.answered[peer] = asked[-1]

    def again(self, peer: str) -> None:
        """Go on with a flow that has no history yet."""
        self.open += 1
        self.start(Caller.work, peer)

    def ended(self) -> None:
        """A flow has ended."""
        self.open -= 1

    @method
    async def work(self, peer: str) -> None:
        """Call in rounds."""
        for _ in range(ROUNDS):
            asked = self.numbers(peer)
            if not asked:
                break
            told = await gather(*(self.call(Caller.take, peer, self.name, number) for number in asked))
            self.finished(peer, asked, list(told))
        else:
            self.again(peer)
        self.ended()

    @query
    def count(self) -> dict[str, Any]:
        """Return all that is counted."""
        return {
            "made": self.made,
            "answered": self.answered,
            "seen": self.seen,
            "wrong": self.wrong,
            "open": self.open,
        }
