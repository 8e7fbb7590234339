"""What a client may do by the name in its certificate (docs/specs/waltz.md 2.5). Pure."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from pavane.waltz.wire import messages as m


class Right(StrEnum):
    """What a rule gives."""

    APPEND = "append"
    READ = "read"
    TRIM = "trim"


_NEEDED = {
    m.AppendRequest: Right.APPEND,
    m.AppendIdempotent: Right.APPEND,
    m.FeedRequest: Right.READ,
    m.FeedBatchRequest: Right.READ,
    m.TransactionDataRequest: Right.READ,
    m.TrimRequest: Right.TRIM,
}
_LETS_GO = (m.ConsumerAction.SET, m.ConsumerAction.REMOVE)
"""Retention no longer waits for what a consumer still needed: as good as a trim."""


NOWHERE: frozenset[int] = frozenset()


class Rule(NamedTuple):
    """``identity`` may do this in these partitions; ``None``: in all."""

    identity: str
    may: frozenset[Right]
    partitions: frozenset[int] | None = None


class Rights:
    """All rules of a log; ``None`` where there are none: then every client may do all but trim."""

    def __init__(self, rules: Sequence[Rule] | None = None) -> None:
        self._everybody = rules is None
        self._given: dict[tuple[str, Right], frozenset[int] | None] = {}
        for rule in rules or ():
            for right in rule.may:
                named, before = rule.partitions, self._given.get((rule.identity, right), NOWHERE)
                self._given[rule.identity, right] = None if named is None or before is None else before | named

    def lacking(self, identity: str, version: int, message: Any) -> Right | None:
        """Return the right that a client lacks for a message."""
        right = _NEEDED.get(type(message))
        if right is None and version < 5 and isinstance(message, m.MountRequest):
            right = Right.READ  # it begins a feed there
        elif isinstance(message, m.ConsumerRequest):
            right = Right.TRIM if message.action in _LETS_GO else Right.READ
        # A name with a dot is one of the log's own pods: the names of clients have none.
        if right is None or "." in identity:
            return None
        if self._everybody:
            return right if right is Right.TRIM else None
        partitions = self._given.get((identity, right), NOWHERE)
        return None if partitions is None or message.reqid.partition in partitions else right
