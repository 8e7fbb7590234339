"""The leader's clockwork for leases (docs/specs/raft.md 12.7 L1–L7); time is handed in."""

import heapq
from collections.abc import Iterable

from pavane.raft.machines import limits
from pavane.raft.machines.state import Lease

PAUSE_S = 0.1  # between expiries when more are due than one entry takes: no storm after a change of leader (L7)
LATE_MIN_S = 0.05  # a loop that was later than this was stopped (L6)


class LeaseKeeper:
    """Deadlines of one leadership, in monotonic seconds: made when a peer begins to lead, dropped when it ends.

    So a new leader gives every lease its full time (L3), and marks do not outlive a leadership (L5). ``leases`` is the
    machine's table, ascending and never replaced while this peer leads; a lease ends only by what the machine applies
    (L1), the keeper merely says what to propose.
    """

    def __init__(self, leases: dict[int, Lease], now: float) -> None:
        self._leases = leases
        self._deadlines: dict[int, float] = {}  # less the delay; exactly one place in the heap each
        self._heap: list[tuple[float, int]] = []
        self._proposed: set[int] = set()
        self._delay = 0.0
        self._not_before = now
        self._newest = 0
        self.applied(now)

    def applied(self, now: float) -> None:
        """Take up the leases granted since the last call; to be called when commands were applied."""
        newest = self._newest
        for lease in reversed(self._leases):
            if lease <= newest:
                return
            self._newest = max(self._newest, lease)
            self._start(lease, now + self._leases[lease].ttl_ms / 1000)

    def renew(self, leases: Iterable[int], received: float) -> list[tuple[int, int]]:
        """Answer a keep-alive that was received at ``received``: each lease and the milliseconds granted, 0 if gone.

        To be called only after a barrier begun after the receipt and with an entry of the own term committed (L4).
        """
        answer = []
        for lease in leases:
            held = self._leases.get(lease) if lease not in self._proposed else None
            if held is not None:
                deadline = received - self._delay + held.ttl_ms / 1000
                self._deadlines[lease] = max(self._deadlines[lease], deadline)
            answer.append((lease, held.ttl_ms if held is not None else 0))
        return answer

    def late(self, seconds: float) -> None:
        """Learn that the loop ran late by so much, before what came in meanwhile is looked at (L6)."""
        if seconds > LATE_MIN_S:
            self._delay += seconds

    def next_timer(self) -> float | None:
        """Return when ``due`` should be asked next; it may then find nothing."""
        if not self._heap:
            return None
        return max(self._heap[0][0] + self._delay, self._not_before)

    def due(self, now: float) -> tuple[int, ...]:
        """Return the leases to be ended by one entry, ascending, and mark them: from here on they are not renewed."""
        self._proposed = {lease for lease in self._proposed if lease in self._leases}
        found: list[int] = []
        while self._heap and now >= self._not_before and len(found) < limits.LEASE_BATCH_MAX:
            at, lease = self._heap[0]
            if at + self._delay > now:
                break
            heapq.heappop(self._heap)
            deadline = self._deadlines.pop(lease)
            if lease not in self._leases:
                continue
            if deadline > at:
                self._start(lease, deadline + self._delay)
            else:
                found.append(lease)
        if len(found) == limits.LEASE_BATCH_MAX:
            self._not_before = now + PAUSE_S
        self._proposed.update(found)
        return tuple(sorted(found))

    def _start(self, lease: int, deadline: float) -> None:
        self._deadlines[lease] = deadline - self._delay
        heapq.heappush(self._heap, (self._deadlines[lease], lease))
