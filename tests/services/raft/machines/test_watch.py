"""Watches: a cursor into a history that every replica has (docs/specs/raft.md 12.6)."""

import tracemalloc

import pytest

from pavane.raft.errors import Code
from pavane.raft.machines import limits
from pavane.raft.machines.commands import (
    END_OF_KEYS,
    Check,
    Create,
    Delete,
    DeleteRange,
    LeaseRevoke,
    Put,
    Range,
    Remove,
    Set,
)
from pavane.raft.machines.history import Event, Happened, History, Scope, Watch, message_parts
from tests.services.raft.machines.driver import Driver, refused


@pytest.fixture
def tree() -> Driver:
    return Driver()


def test_a_watcher_sees_every_change_of_its_range_once_in_order(tree: Driver) -> None:
    lease = tree.grant()
    tree.do(Put(b"a", b"1"), Put(b"b", b"2", lease), Put(b"z", b""))
    tree.do(Delete(b"a"), Delete(b"missing"))
    tree.do(Put(b"z", b"1"))
    tree.do(Put(b"b", b"3", lease), Create(b"/b"))
    tree.apply(LeaseRevoke(lease))
    cursor = tree.cursor(b"a", b"c")
    assert tree.take_all(cursor) == [
        (2, [(1, b"a", b"1", 1, 0), (1, b"b", b"2", 1, lease)]),
        (3, [(2, b"a", None, 1, 0)]),
        (5, [(1, b"b", b"3", 2, lease)]),
        (6, [(3, b"b", None, 2, lease)]),
    ]
    assert cursor.next == 7
    tree.do(Put(b"b", b""))
    assert tree.take_all(cursor) == [(7, [(1, b"b", b"", 1, 0)])]


@pytest.mark.parametrize(
    ("start", "end", "seen"),
    [
        (b"b", b"", [b"b"]),
        (b"b", END_OF_KEYS, [b"b", b"c"]),
        (b"", b"b", [b"a"]),
        (b"", END_OF_KEYS, [b"a", b"b", b"c"]),
        (b"d", b"a", []),
    ],
)
def test_ranges_are_those_of_reads(tree: Driver, start: bytes, end: bytes, seen: list[bytes]) -> None:
    tree.do(Put(b"a", b""), Put(b"b", b""), Put(b"c", b""))
    found = tree.take_all(tree.cursor(start, end))
    assert [event[1] for _, events in found for event in events] == seen


@pytest.mark.parametrize(
    ("scope", "start", "seen"),
    [
        (Scope.NODE, b"/a", [(17, b"/a"), (18, b"/a"), (19, b"/a")]),
        (Scope.CHILDREN, b"/a", [(20, b"/a"), (20, b"/a")]),
        (Scope.NODE_AND_CHILDREN, b"/a", [(17, b"/a"), (20, b"/a"), (18, b"/a"), (20, b"/a"), (19, b"/a")]),
        (
            Scope.SUBTREE,
            b"/a",
            [
                (17, b"/a"),
                (17, b"/a/b"),
                (20, b"/a"),
                (18, b"/a"),
                (18, b"/a/b"),
                (19, b"/a/b"),
                (20, b"/a"),
                (19, b"/a"),
            ],
        ),
        (Scope.CHILDREN, b"/", [(20, b"/"), (20, b"/"), (20, b"/")]),
    ],
)
def test_of_the_tree_one_sees_a_node_its_children_both_or_all_below(
    tree: Driver, scope: Scope, start: bytes, seen: list[tuple[int, bytes]]
) -> None:
    tree.do(Create(b"/a"), Create(b"/a/b"), Create(b"/ab"), Put(b"/a", b""))
    tree.do(Set(b"/a", b"1"), Set(b"/a/b", b"2"), Set(b"/ab", b"3"))
    tree.do(Remove(b"/a/b"), Remove(b"/a"))
    found = tree.take_all(tree.cursor(start, scope=scope))
    assert [(event[0], event[1]) for _, events in found for event in events] == seen


def test_tree_events_carry_data_and_versions(tree: Driver) -> None:
    tree.do(Create(b"/a", b"1"))
    tree.do(Set(b"/a", b"2"))
    tree.do(Remove(b"/a"))
    assert tree.take_all(tree.cursor(b"/", scope=Scope.SUBTREE)) == [
        (1, [(17, b"/a", b"1", 0, 0), (20, b"/", None, 0, 1)]),
        (2, [(18, b"/a", b"2", 1, 0)]),
        (3, [(19, b"/a", None, 1, 0), (20, b"/", None, 0, 2)]),
    ]


def test_what_changes_nothing_is_no_event(tree: Driver) -> None:
    tree.do(Range(b"a"), Delete(b"a"), DeleteRange(b"b", b"z"), Check(b"/"))
    tree.fails(Put(b"a", b""), Check(b"/x"))
    tree.apply(b"nonsense")
    assert len(tree.machine.state.history) == 0
    cursor = tree.cursor(b"", END_OF_KEYS)
    assert tree.take_all(cursor) == []
    assert cursor.next == tree.index + 1


def test_a_watch_begins_now_at_a_revision_or_in_the_future(tree: Driver) -> None:
    tree.do(Put(b"k", b"1"))
    now, future = tree.cursor(b"k", first=0), tree.cursor(b"k", first=4)
    assert now.next == 2
    for value in (b"2", b"3", b"4"):
        assert tree.take_all(future) == []
        tree.do(Put(b"k", value))
    assert [revision for revision, _ in tree.take_all(now)] == [2, 3, 4]
    assert [revision for revision, _ in tree.take_all(future)] == [4]


def test_who_is_too_far_behind_is_told_where_history_begins(tree: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HISTORY_EVENTS_MAX", 4)
    cursor = tree.cursor(b"k")
    tree.do(Put(b"k", b"1"))
    assert len(tree.take_all(cursor)) == 1
    for number in range(3):
        tree.do(Put(b"k", b"1"), Put(b"l%d" % number, b""))
    # Six events of revisions 2 to 4: revision 2 is gone, and with it number 1.
    assert refused(tree.take_all, cursor) == (Code.COMPACTED, 3)
    assert refused(tree.take_all, tree.cursor(b"k")) == (Code.COMPACTED, 3)
    assert [revision for revision, _ in tree.take_all(tree.cursor(b"k", first=3))] == [3, 4]


def test_large_values_leave_the_history_sooner(tree: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HISTORY_BYTES_MAX", 3000)
    for _ in range(3):
        tree.do(Put(b"k", bytes(1000)))
    assert tree.machine.state.history.floor == 2
    tree.do(Put(b"k", bytes(3000)))
    assert refused(tree.take_all, tree.cursor(b"k", first=4)) == (Code.COMPACTED, 5)
    tree.do(Put(b"k", b""))
    assert tree.take_all(tree.cursor(b"k", first=5)) == [(5, [(1, b"k", b"", 5, 0)])]


def test_events_of_one_revision_are_split_only_where_a_reply_would_be_too_large() -> None:
    def event(size: int) -> Event:
        return Event(1, b"k", bytes(size), 1, 0)

    small = [event(10) for _ in range(5)]
    assert list(message_parts(small)) == [small]
    large = [event(600_000), event(600_000), event(10), event(1_048_576)]
    assert [len(part) for part in message_parts(large)] == [1, 2, 1]
    assert [found for part in message_parts(large) for found in part] == large


def test_a_watch_is_asked_for_with_a_map() -> None:
    watch = Watch(Scope.SUBTREE, b"/a", b"", 7, progress=True)
    assert Watch.decode(watch.encode(), 1, tree=True) == watch
    assert Watch.decode({"start": b"k", "later": 1}, 1, tree=False) == Watch(Scope.KEYS, b"k", b"")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({}, Code.BAD_COMMAND),
        ({"start": "k"}, Code.BAD_COMMAND),
        ({"start": b"k", "end": 1}, Code.BAD_COMMAND),
        ({"start": b"k", "from": -1}, Code.BAD_COMMAND),
        ({"start": b"k", "progress": 1}, Code.BAD_COMMAND),
        ({"start": b"k", "tree": 1}, Code.BAD_COMMAND),
        ({"start": b"/k", "tree": True}, Code.BAD_COMMAND),
        ({"start": bytes(1026)}, Code.TOO_LARGE),
        ({"start": b"/k", "tree": 5}, Code.UNSUPPORTED),
    ],
)
def test_a_watch_of_a_wrong_form_is_refused(query: dict[str, object], code: Code) -> None:
    assert refused(lambda: Watch.decode(query, 1, tree=True))[0] == code  # type: ignore[arg-type]


def test_a_machine_without_tree_watches_none() -> None:
    assert refused(lambda: Watch.decode({"start": b"/", "tree": 4}, 1, tree=False)) == (Code.UNSUPPORTED, 1)


@pytest.mark.parametrize(("size", "kept"), [(400, limits.HISTORY_EVENTS_MAX), (1500, 21_000)])
def test_events_stand_still_in_memory_once_there_are_as_many_as_are_kept(size: int, kept: int) -> None:
    """A registry of a log gets one for each commit of a consumer: it grows for an hour, by 40 MB, and no further."""
    history, taken = History(), []
    tracemalloc.start()
    try:
        for first in range(1, 3 * limits.HISTORY_EVENTS_MAX, limits.HISTORY_EVENTS_MAX):
            for number in range(first, first + limits.HISTORY_EVENTS_MAX):
                key, data = b"/ledger/store/partition/%d" % (number % 4), b"%*d" % (size, number)
                history.add(number, (Event(Happened.DATA, key, data, 10**6 + number, 10**7 + number),))
            taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert kept <= len(history) <= limits.HISTORY_EVENTS_MAX
    assert max(taken) < 42 << 20
    assert max(taken) < 1.02 * min(taken)
