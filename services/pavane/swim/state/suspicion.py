"""How long a suspicion lasts (docs/specs/swim.md 9.1, 10)."""

import math

CONFIRMATIONS = 3  # k of 9.1: from so many independent reporters on, waiting longer teaches nothing
LONGEST = 6  # max over min: what a lone reporter with a bad link has to wait
TRANSMISSIONS_MIN = 3
TRANSMISSIONS_MAX = 40


class Suspicion:
    """A running timer: ``minimum_s`` and ``maximum_s`` are fixed when it starts, confirmations move its end."""

    __slots__ = ("confirmations", "k", "maximum_s", "minimum_s", "not_before", "reporters", "started")

    def __init__(self, started: float, minimum_s: float, members: int, reporter: int, k: int = CONFIRMATIONS) -> None:
        self.started = started
        self.minimum_s = minimum_s
        self.maximum_s = LONGEST * minimum_s
        self.k = k if members - 2 >= k else 0
        self.reporters = {reporter} if reporter else set()
        self.confirmations = 0
        self.not_before = started  # put off after a stall, so that queued input is read first

    def confirm(self, reporter: int) -> bool:
        """Count ``reporter``; false if that changes nothing, or for 0: pages name no reporter."""
        if not reporter or reporter in self.reporters or self.confirmations >= self.k:
            return False
        self.reporters.add(reporter)
        self.confirmations += 1
        return True

    @property
    def due(self) -> float:
        """When it ends."""
        wait_s = self.minimum_s
        if self.k:
            span_s = self.maximum_s - self.minimum_s
            shorter_s = span_s * math.log(self.confirmations + 1) / math.log(self.k + 1)
            wait_s = max(self.minimum_s, self.maximum_s - shorter_s)
        return max(self.started + wait_s, self.not_before)


def transmissions(members: int, loss: float) -> int:
    """Return m of section 10: how often every node sends a piece of news, so that nobody is missed."""
    wanted = math.ceil((math.log(max(members, 1)) + 7) / (1 - loss))
    return min(max(wanted, TRANSMISSIONS_MIN), TRANSMISSIONS_MAX)
