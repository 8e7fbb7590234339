"""Snapshots of the key-value machines (docs/specs/raft.md 9.1, 12.9)."""

from collections.abc import Iterator

import msgpack
import pytest

from pavane.raft.machines import limits
from pavane.raft.machines.commands import (
    END_OF_KEYS,
    Children,
    Create,
    Delete,
    DeleteRange,
    Get,
    LeaseRevoke,
    Put,
    Range,
    Remove,
    Set,
)
from pavane.raft.machines.history import Scope
from pavane.raft.machines.keyvalue import KeyValue, Tree
from pavane.raft.machines.snapshot import BadSnapshot
from pavane.raft.machines.state import decode_result
from pavane.raft.wire.msgpack import decode, encode_pv
from tests.services.raft.machines.driver import Driver, refused


def filled() -> Driver:
    driver = Driver()
    lease = driver.grant(5000, b"pod-1")
    driver.do(Put(b"b", b"1", lease), Put(b"a", b"2"), Create(b"/a", b"3"), Create(b"/a/e", b"4", 1, lease))
    driver.do(Put(b"b", b"5", lease), Create(b"/a/s_", b"", 2), Set(b"/a", b"6"))
    return driver


def restored(driver: Driver) -> Driver:
    machine = type(driver.machine)()
    machine.restore([memoryview(part) for part in driver.machine.freeze()], driver.index)
    return Driver(machine)


def test_a_restored_machine_is_the_same_and_goes_on_the_same() -> None:
    first = filled()
    second = restored(first)
    assert second.machine.digest() == first.machine.digest()
    for driver in (first, second):
        driver.apply(LeaseRevoke(1))
        driver.do(Put(b"c", b""), Create(b"/a/s_", b"", 2), Remove(b"/a/s_0000000001"))
        assert driver.keys() == [b"a", b"c"]
        assert driver.do(Get(b"/a"), Children(b"/a")) == [[b"6", 1, 5, 2, 3, 1, 0], [[b"s_0000000002"], 5]]
        assert driver.machine.state.leases == {}
    assert second.machine.digest() == first.machine.digest()
    assert second.machine.state.bytes == first.machine.state.bytes


def test_results_and_history_outlive_a_snapshot() -> None:
    first = filled()
    second = restored(first)
    result = second.machine.result_of((3).to_bytes(12, "big"))
    assert result is not None
    assert decode_result(result.data) == (0, 3, [True, [[1, 2], [16, b"/a/s_0000000001"], [17, 1]]])
    for scope, start in ((Scope.KEYS, b""), (Scope.SUBTREE, b"/")):
        seen = first.take_all(first.cursor(start, END_OF_KEYS, scope))
        assert second.take_all(second.cursor(start, END_OF_KEYS, scope)) == seen
        assert len(seen) == 2


def test_the_greatest_results_can_be_read_and_outlive_a_snapshot() -> None:
    first = Driver(KeyValue())
    for begin in range(0, 9_900, limits.TXN_ITEMS_MAX):
        first.do(*(Put(b"%04d" % (begin + number), b"") for number in range(limits.TXN_ITEMS_MAX)))
    found = first.do(*(Range(b"%d" % digit, b"%d" % (digit + 1)) for digit in range(9)), Range(b"9", b":"))
    assert [(len(items), more) for items, more in found] == [(1000, False)] * 7 + [(500, True)] + [(0, True)] * 2
    result = first.machine.result_of(first.index.to_bytes(12, "big"))
    assert result is not None
    assert restored(first).machine.result_of(first.index.to_bytes(12, "big")) == result


def test_a_restored_history_begins_where_the_other_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HISTORY_EVENTS_MAX", 1)
    first = filled()
    second = restored(first)
    assert len(second.machine.state.history) == 0
    assert refused(second.take_all, second.cursor(b"a")) == refused(first.take_all, first.cursor(b"a"))
    assert second.take_all(second.cursor(b"a", first=4)) == []


def test_the_digest_tells_every_part_of_the_state() -> None:
    seen = set()
    for change in (
        lambda driver: None,
        lambda driver: driver.apply(b"bad"),
        lambda driver: driver.grant(200),
        lambda driver: driver.grant(300),
        lambda driver: driver.do(Put(b"b", b"")),
        lambda driver: driver.do(Put(b"b", b"", 1)),
        lambda driver: driver.do(Set(b"/", b"")),
        lambda driver: driver.apply(b"bad", b"another id"),
    ):
        driver = filled()
        change(driver)
        seen.add(driver.machine.digest())
    assert len(seen) == 8


def test_what_is_written_while_a_snapshot_is_taken_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_SLICE", 2)
    driver = Driver()
    driver.do(*(Put(b"k%02d" % number, b"old") for number in range(0, 20, 2)))
    driver.do(*(Create(b"/n%02d" % number, b"old") for number in range(0, 20, 2)))
    digest, index = driver.machine.digest(), driver.index
    parts: Iterator[bytes] = driver.machine.freeze()
    taken = [next(parts)]
    for number, part in enumerate(parts):
        taken.append(part)
        driver.do(Put(b"k%02d" % number, b"new"), Delete(b"k%02d" % (number + 1)), DeleteRange(b"k18", END_OF_KEYS))
        driver.fails(Put(b"k%02d" % (number + 3), b"undone"), Delete(b"k%02d" % (number + 4)), Put(b"k", b"", 99))
        path = b"/n%02d" % (number + 1)
        driver.do(Set(path, b"new") if number % 2 else Create(path, b"new"))
        driver.grant()
    machine = Tree()
    machine.restore(taken, index)
    assert machine.digest() == digest
    assert driver.machine.digest() != digest
    assert len(taken) > 10


def test_two_snapshots_at_once_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_SLICE", 1)
    driver = Driver()
    driver.do(Put(b"a", b"1"), Put(b"b", b"1"), Put(b"c", b"1"))
    first = driver.machine.freeze()
    begun = [next(first), next(first)]
    driver.do(Delete(b"b"), Put(b"c", b"2"), Put(b"d", b"2"))
    second = driver.machine.freeze()
    driver.do(Put(b"b", b"3"), Delete(b"c"), Delete(b"d"))
    values = []
    for parts in ([*begun, *first], list(second)):
        machine = Tree()
        machine.restore(parts, driver.index)
        values.append({key: record.value for key, record in machine.state.keys.between(b"", None)})
    assert values == [{b"a": b"1", b"b": b"1", b"c": b"1"}, {b"a": b"1", b"c": b"2", b"d": b"2"}]


def test_a_snapshot_that_is_given_up_costs_nothing_more() -> None:
    driver = filled()
    parts = driver.machine.freeze()
    next(parts)
    del parts
    assert not list(driver.machine.state.keys._views)


def test_slices_hold_few_records_and_few_bytes() -> None:
    driver = Driver(KeyValue())
    for first in range(0, 1200, 100):
        driver.do(*(Put(b"%04d" % number, b"") for number in range(first, first + 100)))
    assert max(sum(1 for _ in objects(part)) for part in driver.machine.freeze()) == 500
    for key in (b"a", b"b", b"c", b"d", b"e"):
        driver.do(Put(key, bytes(500_000)))
    assert max(map(len, driver.machine.freeze())) < 2_600_000


def objects(part: bytes) -> Iterator[object]:
    unpacker = msgpack.Unpacker()
    unpacker.feed(part)
    yield from unpacker


def test_the_form_is_that_of_our_own_codec() -> None:
    parts = b"".join(filled().machine.freeze())
    values = list(objects(parts))
    assert b"".join(encode_pv(value) for value in values) == parts  # type: ignore[arg-type]
    assert decode(parts) == {
        "format": 1,
        "machine": "Tree",
        "level": 1,
        "revision": 3,
        "floor": 1,
        "counts": [1, 2, 4, 3, 2],
    }
    assert values[1:8] == [
        [1, 5000, b"pod-1"],
        [b"a", b"2", 2, 2, 1, 0],
        [b"b", b"5", 2, 3, 2, 1],
        [b"/", b"", 0, 1, 1, 0, 0, 0],
        [b"/a", b"6", 1, 2, 2, 2, 3, 0],
        [b"/a/e", b"4", 0, 0, 0, 2, 2, 1],
        [b"/a/s_0000000001", b"", 0, 0, 0, 3, 3, 0],
    ]
    assert values[-1] is None


def packed(*values: object) -> list[bytes]:
    return [msgpack.packb(value) for value in values]


HEADER = {"format": 1, "machine": "Tree", "level": 1, "revision": 3, "floor": 1, "counts": [0, 1, 0, 0, 0]}
KEY = [b"k", b"v", 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([], "damaged"),
        ([b""], "damaged"),
        ([b"application's bytes"], "damaged"),
        ([b"\xc1"], "damaged"),
        (packed(HEADER), "cut off"),
        (packed(HEADER, KEY), "damaged"),
        (packed(HEADER, KEY[:-1], None), "damaged"),
        (packed(HEADER, KEY, KEY, None), "more than this program knows"),
        (packed(HEADER, KEY, None, None), "more than this program knows"),
        (packed(HEADER | {"counts": [0, 0, 0, 1, 0]}, [bytes(12), 1, b"\xc1"], None), "damaged"),
        (packed(HEADER | {"format": 2}, KEY, None), "format 2"),
        (packed(HEADER | {"machine": "KeyValue"}, KEY, None), "machine KeyValue"),
        (packed(HEADER | {"level": 2}, KEY, None), "level 2"),
        (packed(HEADER | {"revision": 10}, KEY, None), "revision 10"),
    ],
)
def test_what_is_no_snapshot_of_this_machine_is_refused_and_changes_nothing(parts: list[bytes], text: str) -> None:
    driver = filled()
    before = driver.machine.digest()
    with pytest.raises(BadSnapshot, match=text):
        driver.machine.restore(parts, 9)
    assert driver.machine.digest() == before


def test_snapshot_bytes_may_come_in_pieces_of_any_size() -> None:
    driver = filled()
    data = b"".join(driver.machine.freeze())
    machine = Tree()
    machine.restore((data[at : at + 3] for at in range(0, len(data), 3)), driver.index)
    assert machine.digest() == driver.machine.digest()


def test_frozen_reads_work_on_the_restored_machine_too() -> None:
    driver = restored(filled())
    assert driver.do(Range(b"a", b"c")) == [[[[b"a", b"2", 2, 2, 1, 0], [b"b", b"5", 2, 3, 2, 1]], False]]
