"""By what syncs took, who has a small batch knows whether to wait for the next one himself."""

from pavane.wal.times import SLOW_S, STALL_S, STALLED_S, SyncTimes

QUICK_S, LIMIT_S = 0.0002, 0.001


class Clock:
    """Says what it is told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def quick(times: SyncTimes, count: int = 100) -> bool:
    """Note so many quick syncs, and return whether the next one should be quick."""
    for _ in range(count):
        times.note(QUICK_S)
    return times.are_below(LIMIT_S)


def test_a_slow_sync_counts_whole_until_many_were_quick() -> None:
    times = SyncTimes(Clock())
    assert quick(times)
    times.note(SLOW_S)
    assert not times.are_below(LIMIT_S)
    assert not quick(times, 3)
    assert quick(times)


def test_after_a_stall_no_caller_waits_for_a_while_however_quick_the_disk_is_meanwhile() -> None:
    clock = Clock()
    times = SyncTimes(clock)
    assert quick(times)
    times.note(2 * STALL_S)
    for _ in range(10):
        assert not quick(times)
        clock.now += 0.099 * STALLED_S
    assert not quick(times)
    clock.now += 0.02 * STALLED_S
    assert quick(times)
