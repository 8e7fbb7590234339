"""How much the clients of one name may append to this server, and how often they connect (waltz.md 4.4). Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pavane.parts.rates import Bucket

PAUSE_S = 0.05  # at least, before who was refused is heard again: then a batch goes through, and not one append
CONNECT_AGAIN_S = 1.0  # until another connection may be tried


@dataclass(frozen=True, slots=True)
class Quota:
    """What ``identity`` may do at one server; ``None``: as much as it likes."""

    identity: str
    bytes_per_s: int | None = None
    appends_per_s: int | None = None
    connections: int | None = None

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a quota of nothing: what takes more than there is could never be earned."""
        for value in (self.bytes_per_s, self.appends_per_s, self.connections):
            if value is not None and value < 1:
                raise ValueError(f"a quota of {self.identity} is {value}: the least is 1")


class _Appends:
    """What the clients of one name append. What takes more than there is owes the rest: so nothing is too large."""

    def __init__(self, quota: Quota) -> None:
        rates = {"bytes/s": quota.bytes_per_s, "appends/s": quota.appends_per_s}
        self._buckets = {(what, rate): Bucket(rate) for what, rate in rates.items() if rate is not None}
        self.closed_until = 0.0
        self.what = ""

    def take(self, now: float, size: int) -> None:
        """Count an append, and close when that was all."""
        for (what, rate), bucket in self._buckets.items():
            owed_s = bucket.owe(size if what == "bytes/s" else 1, now)
            due = now + max(PAUSE_S, owed_s)
            if owed_s >= 0 and due > self.closed_until:
                self.closed_until, self.what = due, f"{rate} {what}"


class Quotas:
    """The quotas of a log as one server keeps them; whom none names has none."""

    def __init__(self, quotas: Sequence[Quota] = ()) -> None:
        self._quotas = {quota.identity: quota for quota in quotas}
        self._appends = {quota.identity: _Appends(quota) for quota in quotas}
        self._connections = Counter[str]()
        self.refused = Counter[str]()
        """How often something was refused or held back, by what there was too much of."""

    def append(self, now: float, identity: str | None, size: int, *, held: bool) -> tuple[float, str] | None:
        """Count an append; ``None`` if it may be, or for how many seconds not, and why.

        Whoever was refused is refused until then: so what he has sent at once keeps its order when it comes again. With
        ``held`` it is counted in any case: its sender is to be heard no more for as long.
        """
        of = self._appends.get(identity or "")
        if of is None:
            return None
        closed = now < of.closed_until
        if held or not closed:
            of.take(now, size)
        if not closed and not (held and now < of.closed_until):
            return None
        self.refused[of.what.partition(" ")[2]] += 1
        return of.closed_until - now, f"{identity} may append {of.what} to a server, and has done so"

    def connect(self, identity: str | None) -> str:
        """Count a connection; return why there are too many."""
        quota = self._quotas.get(identity or "")
        if quota is None or quota.connections is None:
            return ""
        self._connections[quota.identity] += 1
        if self._connections[quota.identity] <= quota.connections:
            return ""
        self.refused["connections"] += 1
        return f"{identity} may have {quota.connections} connections to a server, and has them"

    def disconnect(self, identity: str | None) -> None:
        """A connection that was counted is gone."""
        if self._connections[identity or ""] > 0:
            self._connections[identity or ""] -= 1
