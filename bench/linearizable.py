"""Whether what clients saw of a store of keys could have happened one operation after the other (Wing and Gong 1993).

Each key is judged for itself, as linearizability allows. An operation of unknown outcome may have taken effect at any
time after it began, or never.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

STEPS_MAX = 1_000_000  # of one key: seconds; a key that needs more is undecided, which is no success


class Kind(StrEnum):
    """What an operation does with its key."""

    GET = "get"
    PUT = "put"
    CAS = "compare-and-set"
    DELETE = "delete"


class Undecided(Exception):
    """A key's history has too many orders to try."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, from when it was asked for to when its answer was there (seconds of one clock).

    ``ended`` is infinite if no answer came. ``value`` is what PUT and CAS write, ``expected`` what CAS asks for;
    ``found`` is the answer: GET's value, or whether CAS held or DELETE's key was there. None stands for no key.
    """

    kind: Kind
    key: bytes
    began: float
    ended: float = math.inf
    value: bytes | None = None
    expected: bytes | None = None
    found: bytes | bool | None = None

    def after(self, state: bytes | None) -> tuple[bool, bytes | None]:
        """Return whether the answer agrees with this state of the key, and the state afterwards."""
        answer: bytes | bool | None
        match self.kind:
            case Kind.GET:
                answer, then = state, state
            case Kind.PUT:
                answer, then = self.found, self.value
            case Kind.CAS:
                answer, then = state == self.expected, self.value if state == self.expected else state
            case Kind.DELETE:
                answer, then = state is not None, None
        return self.ended == math.inf or answer == self.found, then


def impossible(operations: Iterable[Operation]) -> list[list[Operation]]:
    """Return the histories of the keys for which no order explains what was seen; all keys begin as not there.

    Raises ``Undecided``.
    """
    by_key: dict[bytes, list[Operation]] = {}
    for each in sorted(operations, key=lambda one: one.began):
        by_key.setdefault(each.key, []).append(each)
    return [each for each in by_key.values() if not _explained(each)]


def _explained(operations: Sequence[Operation]) -> bool:
    known = [each for each in operations if each.ended < math.inf]
    unknown = [each for each in operations if each.ended == math.inf and each.kind is not Kind.GET]
    # A position: the known operations before ``first`` are done, and of the later ones those whose bit is set.
    tried: dict[tuple[int, int, bytes | None], list[int]] = {}
    todo: list[tuple[int, int, int, bytes | None]] = [(0, 0, 0, None)]
    for _ in range(STEPS_MAX):
        if not todo:
            return False
        first, done, done_unknown, state = todo.pop()
        if first == len(known):
            return True
        # Who got here with fewer of the unknown ones can go on in every way that is open from here.
        before = tried.setdefault((first, done, state), [])
        if any(done_unknown & each == each for each in before):
            continue
        before.append(done_unknown)
        # None that began after another one had ended can be the next.
        end, candidates = math.inf, []
        for number in range(first, len(known)):
            if known[number].began > end:
                break
            if not done >> (number - first) & 1:
                candidates.append(number)
                end = min(end, known[number].ended)
        # The earliest on top: it is mostly the next.
        for number in sorted(candidates, key=lambda one: -known[one].ended):
            rest = done | 1 << (number - first)
            steps = (~rest & (rest + 1)).bit_length() - 1  # how many at the front are done now
            for then, used in _ways(known[number], state, unknown, done_unknown, end):
                todo.append((first + steps, rest >> steps, used, then))
    raise Undecided(f"key {operations[0].key!r}: {len(operations)} operations, {len(unknown)} of them unknown")


def _ways(
    known: Operation, state: bytes | None, unknown: Sequence[Operation], used: int, end: float, *, chained: bool = False
) -> Iterator[tuple[bytes | None, int]]:
    """Yield the states after ``known``, each with the unknown operations that were used up until then.

    One is used only right before an answer that needs it, so a chain of them goes on with compare-and-sets that hold.
    """
    agrees, then = known.after(state)
    if agrees:
        yield then, used
        return
    kinds = set()
    for number, each in enumerate(unknown):
        after = each.after(state)[1]
        if each.began > end or used >> number & 1 or after == state or (chained and each.kind is not Kind.CAS):
            continue
        if each.kind is Kind.DELETE and each.kind in kinds:
            continue  # whichever is used, the others are as good later
        kinds.add(each.kind)
        yield from _ways(known, after, unknown, used | 1 << number, end, chained=True)
