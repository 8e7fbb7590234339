"""How much of large answers one connection gets: a reader that is never full must not starve the others (14.4)."""

from dataclasses import dataclass

from pavane.raft.core.outputs import Route

BIG_REPLY_BYTES = 64 * 1024  # smaller answers are as many as the requests that a connection gets through
BIG_REPLIES_BYTES_PER_S = 16 * 1024 * 1024
ROUTES_MAX = 10_000  # connections that are remembered; who has read nothing for longest is forgotten first


@dataclass(slots=True)
class _Spent:
    """Bytes that a connection has had and that time has not yet paid for."""

    size: float
    at: float


class Budget:
    """Counts large answers by connection."""

    def __init__(self) -> None:
        self._spent: dict[Route, _Spent] = {}

    def wait_s(self, route: Route, size: int, now: float) -> float:
        """Take ``size`` bytes for ``route`` and return 0, or return after how many seconds to come again.

        A connection that owes nothing gets one answer of any size.
        """
        if size <= BIG_REPLY_BYTES:
            return 0.0
        spent = self._spent.pop(route, _Spent(0.0, now))
        owed = max(0.0, spent.size - BIG_REPLIES_BYTES_PER_S * (now - spent.at))
        fits = not owed or owed + size <= BIG_REPLIES_BYTES_PER_S
        self._spent[route] = _Spent(owed + size if fits else owed, now)
        if len(self._spent) > ROUTES_MAX:
            del self._spent[next(iter(self._spent))]
        return 0.0 if fits else min(owed, owed + size - BIG_REPLIES_BYTES_PER_S) / BIG_REPLIES_BYTES_PER_S
