"""Positions in the log: where a read begins and ends, what one trigger takes, how tasks share it.

An offset names per partition the next transaction to read, as JSON with string keys: `{"0": 17, "1": 4}`. As in Spark's
source of Kafka, -2 stands for the earliest and -1 for the latest transaction.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pavane.spark.errors import DataLossError, OptionError

EARLIEST, LATEST = -2, -1
TASK_TRANSACTIONS_MAX = 200_000  # One task reads so many at most: a restart of a task repeats no more.

Offset = dict[int, int]


@dataclass(frozen=True, slots=True)
class Range:
    """Transactions `start` up to but not `stop` of a partition."""

    partition: int
    start: int
    stop: int


def to_json(offset: Mapping[int, int]) -> dict[str, int]:
    """Return an offset as Spark keeps it."""
    return {str(partition): offset[partition] for partition in sorted(offset)}


def from_json(offset: Mapping[str, int]) -> Offset:
    """Return the offset that Spark kept."""
    return {int(partition): int(position) for partition, position in offset.items()}


def resolve(option: str, value: str, firsts: Mapping[int, int], ends: Mapping[int, int]) -> Offset:
    """Return the positions that an option means; `firsts` are those of the first record, `ends` behind the last one."""
    if value.lower() == "earliest":
        return dict(firsts)
    if value.lower() == "latest":
        return dict(ends)
    wrong = OptionError(
        f'option {option!r} is {value!r}; it must be earliest, latest or JSON such as {{"0": 17, "1": -2}} '
        "(-2 is the earliest, -1 the latest)."
    )
    try:
        parsed = json.loads(value)
    except ValueError:
        raise wrong from None
    if not isinstance(parsed, dict):
        raise wrong
    given: Offset = {}
    for partition, position in parsed.items():
        if not partition.isdecimal() or type(position) is not int or position < EARLIEST:
            raise wrong
        given[int(partition)] = position
    if given.keys() != ends.keys():
        raise OptionError(
            f"option {option!r} names the partitions {sorted(given)}, but the read has {sorted(ends)}: it must name "
            "each of them."
        )
    words = {EARLIEST: firsts, LATEST: ends}
    return {p: words[position][p] if position in words else position for p, position in given.items()}


def check_held(wanted: Mapping[int, int], ends: Mapping[int, int], *, fail: bool) -> Offset:
    """Return `wanted`, no position behind the end of its partition.

    Raise DataLossError where the log ends before the position and `fail` is set: another log stands there now.
    """
    for partition, position in wanted.items():
        if position > ends[partition] and fail:
            raise DataLossError(
                f"partition {partition} ends before transaction {ends[partition]}, but the read must go on at "
                f"{position}: the log has lost records or is another one. Begin anew (with a new checkpoint), or "
                "accept the loss with option 'failOnDataLoss' = 'false'."
            )
    return {partition: min(position, ends[partition]) for partition, position in wanted.items()}


def check_order(start: Offset, stop: Offset, firsts: Mapping[int, int], *, fail: bool) -> None:
    """Look whether a batch ends behind its start; one that does not would read nothing without a word.

    Raise OptionError where the options have it so, and DataLossError where `fail` is set and the log begins behind the
    end: what was asked for is not kept any more.
    """
    for partition, position in start.items():
        if stop[partition] < min(position, firsts[partition]) and fail:
            raise DataLossError(
                f"partition {partition} begins with transaction {firsts[partition]}, but the read ends before "
                f"{stop[partition]}: accept the loss with option 'failOnDataLoss' = 'false'."
            )
        if firsts[partition] <= stop[partition] < position:
            raise OptionError(
                f"option 'startingOffsets' begins partition {partition} at {position}, and option 'endingOffsets' ends "
                f"it before {stop[partition]}: nothing would be read."
            )


def limited(start: Mapping[int, int], ends: Mapping[int, int], most: int) -> Offset:
    """Return the end of a trigger that takes `most` transactions at most, shared by how much each partition holds.

    At least one transaction passes if there is one.
    """
    waiting = {p: max(0, ends[p] - start.get(p, 0)) for p in ends}
    total = sum(waiting.values())
    if total <= most:
        return {p: start.get(p, 0) + waiting[p] for p in ends}
    shares = {p: most * count // total for p, count in waiting.items()}
    rest = max(1, most) - sum(shares.values())
    for p in sorted(waiting, key=lambda p: (shares[p] - waiting[p], p)):
        extra = min(rest, waiting[p] - shares[p])
        shares[p] += extra
        rest -= extra
    return {p: start.get(p, 0) + shares[p] for p in ends}


def split(start: Mapping[int, int], stop: Mapping[int, int], least: int, most: int | None) -> list[Range]:
    """Return ranges for tasks: none empty, none above `most` transactions, `least` of them if there is enough."""
    whole = [Range(p, start.get(p, 0), stop[p]) for p in sorted(stop) if stop[p] > start.get(p, 0)]
    total = sum(r.stop - r.start for r in whole)
    if not total:
        return []
    size = max(1, min(most or TASK_TRANSACTIONS_MAX, TASK_TRANSACTIONS_MAX))
    if len(whole) < least:
        size = min(size, max(1, -(-total // least)))
    return [part for r in whole for part in _pieces(r, -(-(r.stop - r.start) // size))]


def _pieces(whole: Range, count: int) -> Sequence[Range]:
    length = whole.stop - whole.start
    cuts = [whole.start + length * i // count for i in range(count + 1)]
    return [Range(whole.partition, a, b) for a, b in pairwise(cuts)]
