"""The tree of nodes as Waltz and others rely on it (docs/specs/raft.md 12.8)."""

import pytest

from pavane.raft.errors import Code
from pavane.raft.machines import limits
from pavane.raft.machines.commands import (
    Check,
    Children,
    Compare,
    Create,
    Get,
    LeaseRevoke,
    Put,
    Relation,
    Remove,
    Set,
    Target,
)
from tests.services.raft.machines.driver import Driver, refused


@pytest.fixture
def tree() -> Driver:
    return Driver()


def test_the_root_is_there_from_the_start(tree: Driver) -> None:
    assert tree.read(Get(b"/"), Children(b"/")) == [[20, [b"", 0, 0, 0, 0, 0, 0]], [21, [], 0]]
    assert tree.do(Set(b"/", b"x", 0)) == [1]
    assert tree.do(Get(b"/")) == [[b"x", 1, 0, 0, 1, 0, 0]]


def test_versions_count_writes_and_cversions_count_births_and_deaths_of_children(tree: Driver) -> None:
    tree.do(Create(b"/a", b"1"), Create(b"/a/b"), Create(b"/a/c"))
    assert tree.do(Set(b"/a", b"2"), Set(b"/a/b", b"3", 0)) == [1, 1]
    tree.do(Remove(b"/a/b", 1))
    assert tree.do(Get(b"/a"), Get(b"/a/b"), Get(b"/")) == [[b"2", 1, 3, 1, 2, 1, 0], None, [b"", 0, 1, 0, 0, 1, 0]]
    assert tree.do(Create(b"/a/b")) == [b"/a/b"]
    assert tree.do(Get(b"/a/b")) == [[b"", 0, 0, 5, 5, 0, 0]]


def test_a_write_of_an_old_version_is_refused(tree: Driver) -> None:
    tree.do(Create(b"/a"))
    tree.do(Set(b"/a", b"1", 0))
    for op in (Set(b"/a", b"2", 0), Remove(b"/a", 0), Check(b"/a", 0)):
        assert tree.fails(op) == (Code.BAD_VERSION, b"/a")
    assert tree.do(Check(b"/a", 1), Check(b"/a", -1), Set(b"/a", b"2", 1)) == [[], [], 2]


def test_nodes_that_are_missing_or_in_the_way_are_named(tree: Driver) -> None:
    tree.do(Create(b"/a"), Create(b"/a/b"))
    for op in (Set(b"/x", b""), Remove(b"/x"), Check(b"/x"), Children(b"/x")):
        assert tree.fails(op) == (Code.NO_NODE, b"/x")
    assert tree.fails(Create(b"/x/y/z")) == (Code.NO_NODE, b"/x/y")
    assert tree.fails(Create(b"/a")) == (Code.NODE_EXISTS, b"/a")
    assert tree.fails(Remove(b"/a")) == (Code.NOT_EMPTY, b"/a")
    assert tree.do(Remove(b"/a/b"), Remove(b"/a")) == [[], []]


def test_a_transaction_over_several_nodes_is_all_or_nothing(tree: Driver) -> None:
    lease = tree.grant()
    tree.do(Create(b"/a"), Create(b"/a/b", b"", Create.EPHEMERAL, lease))
    assert tree.fails(
        Put(b"k", b""), Create(b"/c"), Create(b"/a/s", b"", 2), Remove(b"/a/b"), Set(b"/a", b"x"), Check(b"/a", 0)
    ) == (Code.BAD_VERSION, b"/a")
    assert tree.do(Create(b"/a/s", b"", Create.SEQUENTIAL)) == [b"/a/s0000000001"]
    tree.apply(LeaseRevoke(lease))
    assert tree.read(Children(b"/a")) == [[21, [b"s0000000001"], 3]]


def test_sequential_names_come_from_the_children_ever_created(tree: Driver) -> None:
    tree.do(Create(b"/q"))
    assert tree.do(Create(b"/q/s_", b"", 2), Create(b"/q/s_", b"", 2)) == [b"/q/s_0000000000", b"/q/s_0000000001"]
    tree.do(Remove(b"/q/s_0000000001"), Create(b"/q/other"))
    assert tree.do(Create(b"/q/t_", b"", 2)) == [b"/q/t_0000000003"]
    tree.do(Create(b"/q/s_0000000005"))
    assert tree.fails(Create(b"/q/s_", b"", 2)) == (Code.NODE_EXISTS, b"/q/s_0000000005")


def test_ephemeral_nodes_end_with_their_lease_and_have_no_children(tree: Driver) -> None:
    lease, other = tree.grant(), tree.grant()
    tree.do(
        Create(b"/e"), Create(b"/e/2", b"", 1, lease), Create(b"/e/1", b"", 1, lease), Create(b"/e/3", b"", 1, other)
    )
    assert tree.do(Get(b"/e/1")) == [[b"", 0, 0, 3, 3, 0, lease]]
    assert tree.fails(Create(b"/e/1/x")) == (Code.EPHEMERAL_PARENT, b"/e/1")
    assert tree.fails(Create(b"/e/4", b"", 1, 99)) == (Code.NO_LEASE, 99)
    tree.do(Put(b"k", b"", lease), Put(b"a", b"", lease))
    before = tree.index
    tree.apply(LeaseRevoke(lease))
    assert tree.do(Children(b"/e")) == [[[b"3"], 5]]
    assert tree.keys() == []
    (_, events), *_ = tree.machine.state.history.since(before + 1)
    assert [(event.kind, event.key) for event in events] == [
        (3, b"a"),
        (3, b"k"),
        (19, b"/e/1"),
        (20, b"/e"),
        (19, b"/e/2"),
        (20, b"/e"),
    ]


def test_children_are_names_in_order_whatever_lies_below_or_beside_them(tree: Driver) -> None:
    names = [b"a", b"a-b", b"a.b", b"a0", b"a\0", b"\0", b"\xff", b"B", b"ab"]
    tree.do(Create(b"/p"), Create(b"/p-", b""), Create(b"/p0", b""))
    for name in names:
        tree.do(Create(b"/p/" + name))
        tree.do(Create(b"/" + name))
        for grandchild in (b"\0", b"\xff\xff", b"x", b"0"):
            tree.do(Create(b"/p/" + name + b"/" + grandchild))
        tree.do(Create(b"/p/" + name + b"/x/deep"))
    assert tree.read(Children(b"/p")) == [[21, sorted(names), len(names)]]
    assert tree.read(Children(b"/")) == [[21, sorted([*names, b"p", b"p-", b"p0"]), len(names) + 3]]
    assert tree.read(Children(b"/p/a")) == [[21, [b"\0", b"0", b"x", b"\xff\xff"], 4]]


def test_children_that_fit_no_reply_are_refused(tree: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.do(*(Create(b"/%03d" % number) for number in range(100)))
    monkeypatch.setattr(limits, "REPLY_BYTES_MAX", 100 * (3 + limits.NAME_BYTES))
    assert len(tree.read(Children(b"/"))[0][1]) == 100
    tree.do(Create(b"/one more"))
    assert refused(tree.read, Children(b"/")) == (Code.TOO_LARGE, 800)


def test_children_are_no_more_than_a_reply_can_hold(tree: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.do(*(Create(b"/%03d" % number) for number in range(100)))
    monkeypatch.setattr(limits, "REPLY_ELEMENTS_MAX", 100)
    assert len(tree.read(Children(b"/"))[0][1]) == 100
    tree.do(Create(b"/one more"))
    assert refused(tree.read, Children(b"/")) == (Code.TOO_LARGE, limits.REPLY_BYTES_MAX)


def test_reads_of_several_large_nodes_are_refused_and_of_one_are_not(tree: Driver) -> None:
    large = bytes(limits.VALUE_BYTES_MAX)
    tree.do(Create(b"/a", large))
    tree.do(Create(b"/b"))
    assert tree.read(Get(b"/a")) == [[20, [large, 0, 0, 1, 1, 0, 0]]]
    assert refused(tree.read, Get(b"/b"), Get(b"/a")) == (Code.TOO_LARGE, limits.REPLY_BYTES_MAX)


def test_versions_of_nodes_compare_and_a_missing_one_is_below_all(tree: Driver) -> None:
    tree.do(Create(b"/a"), Create(b"/a/b"))
    tree.do(Set(b"/a", b""))
    tree.do(Set(b"/a", b""))
    for target, version in ((Target.DATA_VERSION, 2), (Target.CVERSION, 1)):
        assert tree.holds(Compare(target, Relation.EQUAL, b"/a", version))
        assert not tree.holds(Compare(target, Relation.NOT_EQUAL, b"/a", version))
        assert tree.holds(Compare(target, Relation.LESS, b"/a", version + 1))
        assert tree.holds(Compare(target, Relation.EQUAL, b"/x", -1), Compare(target, Relation.LESS, b"/x", 0))


def test_data_counts_for_the_size_of_the_store(tree: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STORE_BYTES_MAX", 20)
    tree.do(Create(b"/a", bytes(10)))
    assert tree.fails(Set(b"/a", bytes(18))) == (Code.NO_SPACE, 20)
    assert tree.fails(Create(b"/b", bytes(6))) == (Code.NO_SPACE, 20)
    tree.do(Set(b"/a", bytes(17)))
    tree.do(Remove(b"/a"))
    assert tree.machine.state.bytes == len(b"/")
