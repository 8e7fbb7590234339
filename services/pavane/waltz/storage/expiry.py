"""From which segment on a partition would be kept, by size and by age (docs/specs/waltz.md 13.5)."""

from collections.abc import Sequence

from pavane.waltz.storage.clock import Clock
from pavane.waltz.storage.segment import Segment


def first_by_size(segments: Sequence[Segment], bytes_max: int) -> int:
    """Return the first transaction of the newest segments that have ``bytes_max`` together; -1: of all."""
    sizes = [segment.size for segment in segments]
    left, first = sum(sizes), segments[0].first
    for size, following in zip(sizes, segments[1:], strict=False):
        if bytes_max < 0 or left <= bytes_max:
            break
        left, first = left - size, following.first
    return first


def first_by_age(segments: Sequence[Segment], age_ms_max: int, clock: Clock) -> int:
    """Return the first transaction that may be younger than ``age_ms_max``; -1: of all.

    What is before a segment was appended before it was made; it was not made later than those that follow.
    """
    if age_ms_max < 0 or not clock.settled:
        return segments[0].first
    made = now = clock.ms(segments[-1].created_ms)
    for segment in reversed(segments[1:]):
        made = min(made, segment.created_ms)
        if made <= now - age_ms_max:
            return segment.first
    return segments[0].first
