import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pavane.raft.config import PRESETS, Config
from pavane.raft.state.commands import Recovered, SnapshotSource
from pavane.raft.state.configuration import (
    MEMBERS_MAX,
    Configuration,
    ConfigurationStack,
    Refusal,
    check_change,
    generation_of,
    needs_resolving,
)
from pavane.raft.state.dedup import BEYOND_FLOOR_S, DedupTable, Freshness, id_clock
from pavane.raft.state.log import Log
from pavane.raft.state.quorum import has_majority, majority_value
from pavane.raft.state.roles import TRANSITIONS, Role
from pavane.raft.wire.entry import encode_entry, entry_reqid
from pavane.raft.wire.snapshot import encode_group, join_groups

A, B, C = ("a", "tcp://10.0.0.1:1"), ("b", "tcp://10.0.0.2:1"), ("c", "tcp://10.0.0.3:1")
JOINT = Configuration(new=(B, C), old=(A, B))


def reqid(second: int, number: int = 0) -> bytes:
    return second.to_bytes(4, "big") + number.to_bytes(8, "big")


def entry(term: int, number: int = 0) -> bytes:
    return encode_entry(reqid(1000, number), 0, term, b"data %d" % number)


class Shelf:
    """Entries on a disk."""

    def __init__(self, entries: list[bytes]) -> None:
        self.entries = entries

    def read(self, first: int, last: int, bytes_max: int) -> list[bytes]:
        del bytes_max
        return self.entries[first - 1 : last]

    def open_snapshot(self, index: int) -> SnapshotSource:
        raise FileNotFoundError(index)


# --- configuration -------------------------------------------------------------------------------------------------


def test_a_joint_configuration_needs_both_majorities() -> None:
    assert not has_majority(JOINT, {"b", "c"})
    assert not has_majority(JOINT, {"a", "b"})
    assert has_majority(JOINT, {"a", "b", "c"})
    assert JOINT.members == (A, B, C)


def test_nobody_is_a_majority_of_nobody() -> None:
    assert not has_majority(Configuration(()), {"a"})
    assert majority_value(Configuration(()), lambda _peer: 9, 0) == 0


def test_what_a_majority_reached_is_the_lesser_of_both_groups() -> None:
    match = {"a": 9, "b": 7, "c": 3}
    assert majority_value(Configuration((A, B, C)), match.__getitem__, 0) == 7
    assert majority_value(JOINT, match.__getitem__, 0) == 3


def test_truncation_puts_the_configuration_before_in_force_again() -> None:
    stack = ConfigurationStack(Configuration((A,)))
    stack.push(5, JOINT)
    stack.push(8, Configuration((B, C)))
    assert [index for index, _ in stack.truncate(4)] == [8, 5]
    assert stack.effective == Configuration((A,))
    assert stack.index == 0


def test_a_former_voter_counts_itself_until_the_entry_without_it_is_committed() -> None:
    stack = ConfigurationStack(Configuration((A,)), [(3, Configuration((A, B))), (7, Configuration((B,)))])
    assert stack.names_since("a", commit=6)
    assert not stack.names_since("a", commit=7)
    assert stack.ever_named("a")


@pytest.mark.parametrize(
    ("proposed", "message"),
    [
        ([], "peers must not be empty"),
        ([["b"]], "peers must be pairs of an id and an url, both strings"),
        ([["a", 5]], "peers must be pairs of an id and an url, both strings"),
        ([[*A], ["b", A[1]]], "peer urls must be distinct"),
        ([[*A], ["a", B[1]]], "peer ids must be distinct"),
        ([["a", "tcp://10.0.0.9:1"]], "peer 'a' is known by another url"),
        ([["z", A[1]]], f"url '{A[1]}' belongs to another peer"),
        ([["a", "udp://10.0.0.1:1"]], "url 'udp://10.0.0.1:1' must be tcp://address:port"),
        ([["a", "tcp://10.0.0.1:1/path"]], "url 'tcp://10.0.0.1:1/path' must be tcp://address:port"),
        ([["a", "tcp://0.0.0.0:1"]], "url 'tcp://0.0.0.0:1' must be tcp://address:port"),
        ([["a", "tcp://10.0.0.1:0"]], "url 'tcp://10.0.0.1:0' must be tcp://address:port"),
        ([["a", "tcp://10.0.0.1:99999"]], "url 'tcp://10.0.0.1:99999' must be tcp://address:port"),
        ([[*B], [*A]], "no change in cluster membership"),
        ([[str(n), f"tcp://10.0.1.{n}:1"] for n in range(1, MEMBERS_MAX + 2)], f"more than {MEMBERS_MAX} peers"),
    ],
)
def test_a_wrong_list_of_members_is_refused_in_words(proposed: list[object], message: str) -> None:
    assert check_change((A, B), proposed) == Refusal("Error", message)


def test_a_right_list_of_members_is_taken_in_its_order() -> None:
    assert check_change((A, B), [[*C], [*A]]) == (C, A)


def test_pod_names_carry_the_generation_and_urls_may_carry_names() -> None:
    assert generation_of("quickstart-server-g12-0") == 12
    assert generation_of("1") is None
    assert needs_resolving("tcp://quickstart-server-g12-0.quickstart.default.svc:8047")
    assert not needs_resolving("tcp://[::1]:8047")


# --- exactly once --------------------------------------------------------------------------------------------------


def test_a_full_table_forgets_the_smallest_second_and_refuses_it_from_then_on() -> None:
    table = DedupTable(ids_max=3)
    for number, second in enumerate((50, 60, 60, 40), 1):
        table.add(reqid(second, number), number)
    assert table.floor == 40
    assert table.index_of(reqid(40, 4)) is None
    assert table.index_of(reqid(50, 1)) == 1
    freshness = Freshness(ttl_s=100, margin_s=20)
    assert not freshness.fresh(reqid(40, 4), 60, table.floor)
    assert freshness.fresh(reqid(41, 9), 60, table.floor)


def test_a_truncated_id_is_forgotten_without_moving_the_floor() -> None:
    table = DedupTable()
    table.add(reqid(50, 1), 1)
    table.remove(reqid(50, 1))
    assert table.index_of(reqid(50, 1)) is None
    assert (len(table), table.floor) == (0, 0)


def test_ids_beyond_their_time_are_forgotten_by_whole_seconds() -> None:
    table = DedupTable()
    for second in (10, 20, 30):
        table.add(reqid(second), second)
    table.forget_before(30)
    assert (len(table), table.floor, table.oldest_second) == (1, 20, 30)


@pytest.mark.parametrize(("second", "fresh"), [(919, False), (920, True), (1020, True), (1021, False)])
def test_freshness_is_a_window_about_now(second: int, fresh: bool) -> None:
    assert Freshness(ttl_s=100, margin_s=20).fresh(reqid(second), 1000, 0) is fresh


# --- log -----------------------------------------------------------------------------------------------------------


def test_ids_of_the_future_move_the_floor_no_further_than_the_margin_and_then_as_time_goes() -> None:
    """Whoever fills the table again and again with the greatest id that is taken moves all others' ids out of it."""
    freshness, table, wall_s = Freshness(ttl_s=28_800, margin_s=900), DedupTable(ids_max=2), 100_000
    for index in range(60):  # that is 20 times as many ids as the table holds
        newest = max(at for at in range(wall_s, wall_s + 4000) if freshness.fresh(reqid(at), wall_s, table.floor))
        table.add(reqid(newest, index), index)
    assert table.floor <= wall_s + 900 + 20 * BEYOND_FLOOR_S
    assert freshness.fresh(reqid(id_clock(wall_s, table.floor)), wall_s, table.floor)


def test_the_log_agrees_with_a_list_under_random_appends_and_truncations() -> None:
    rng = random.Random(7)
    shelf = Shelf([entry(1, number) for number in range(20)])
    ids = b"".join(item[:12] for item in shelf.entries)
    log = Log(Recovered(last_index=20, term_runs=((1, 1),), reqids=ids), shelf, cache_bytes=2000)
    model = list(shelf.entries)
    for number in range(500):
        if rng.random() < 0.7:
            added = [entry(2 + number // 50, 100 + number)]
            log.append(added)
            model += added
        else:
            keep = rng.randint(max(0, len(model) - 6), len(model))
            log.truncate(keep)
            del model[keep:]
        shelf.entries = list(model)
        assert log.last == len(model)
        assert log.last_term == (int.from_bytes(model[-1][13:20], "little") if model else 0)
        first = rng.randint(1, max(1, len(model)))
        read = list(log.read(first, len(model), 200, 5)) if model else []
        assert read == model[first - 1 : first - 1 + len(read)]
        assert not model or 1 <= len(read) <= 5
        assert [found for _, found in log.reqids()] == [item[:12] for item in model]


def test_terms_outside_the_log_are_unknown() -> None:
    log = Log(Recovered(), Shelf([]))
    log.append([entry(3)])
    assert (log.term_at(0), log.term_at(1), log.term_at(2)) == (0, 3, None)


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_valid(preset: str) -> None:
    least, greatest = PRESETS[preset]
    Config(id="1", ident=b"", election_min=least, election_max=greatest).validate()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"election_min": 40}, "election_min: 40 must be at least 50 ms"),
        ({"election_max": 299}, "election_max: 299 must be at least 1.5 x election_min"),
        ({"heartbeat": 101}, "heartbeat: 101.0 must lie between"),
        ({"append_timeout": 40}, "append_timeout: 40.0 must lie between"),
        ({"request_id_ttl_s": 59}, "request_id_ttl: 59 must be at least 60 s"),
        ({"id": ""}, "id: '' must be 1 to 128 bytes"),
        ({"machine": ""}, "machine: '' must be 1 to 64 bytes"),
        ({"peers": (A, A)}, "peers: peer ids must be distinct"),
    ],
)
def test_a_wrong_setting_is_named_with_its_rule(settings: dict[str, Any], said: str) -> None:
    base: dict[str, Any] = {"id": "1", "ident": b""}
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        Config(**(base | settings)).validate()


def test_a_peer_that_is_removed_never_stands_in_the_table_of_roles() -> None:
    assert {new for old, new in TRANSITIONS if old == Role.REMOVED} == {Role.FOLLOWER}
    assert {old for old, new in TRANSITIONS if new == Role.LEADER} == {Role.CANDIDATE}


def test_a_compacted_log_knows_the_term_in_front_of_it_and_reads_on() -> None:
    entries = [entry(term, number) for number, term in enumerate((1, 1, 2, 2, 2, 5), 1)]
    log = Log(Recovered(), Shelf(entries))
    log.append(entries)
    log.compact(4)
    assert (log.first, log.last, log.last_term) == (4, 6, 5)
    assert [log.term_at(index) for index in range(8)] == [None, None, None, 2, 2, 2, 5, None]
    assert [index for index, _ in log.reqids()] == [4, 5, 6]
    assert log.reqid_at(5) == entry_reqid(entries[4])
    assert list(log.read(4, 6, 1 << 20, 10)) == entries[3:]
    log.truncate(4)
    assert (log.last, log.last_term) == (4, 2)
    log.compact(5)
    assert (log.first, log.last, log.last_term, log.term_at(4)) == (5, 4, 2, 2)
    log.append([entries[4]])
    assert (log.term_at(5), log.reqid_at(5)) == (2, entry_reqid(entries[4]))


def test_a_log_behind_a_snapshot_begins_with_its_term() -> None:
    log = Log(Recovered(), Shelf([]))
    log.append([entry(1, 1)])
    log.begin_behind(40, 7)
    assert (log.first, log.last, log.last_term) == (41, 40, 7)
    assert [log.term_at(index) for index in (0, 39, 40, 41)] == [None, None, 7, None]
    log.append([entry(8, 41)])
    assert log.term_at(41) == 8


def test_what_a_snapshot_tells_replaces_the_configurations_in_front_of_it() -> None:
    first, second = Configuration((A, B)), Configuration((B, C))
    stack = ConfigurationStack(Configuration((("d", "tcp://10.0.0.4:1"),)), [(3, first), (9, second)])
    stack.begin_with(5, 3, first)
    assert (stack.index, stack.effective) == (9, second)
    assert stack.committed(6) == (3, first)
    assert stack.committed(1) == (3, first)
    assert stack.ever_named("d")
    stack.truncate(5)
    assert (stack.index, stack.effective) == (3, first)


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 30)), max_size=60, unique=True),
    st.integers(0, 60),
    st.integers(0, 12),
)
def test_a_table_restored_from_a_snapshot_knows_what_was_told_up_to_its_index(
    ids: list[tuple[int, int]], index: int, forgotten: int
) -> None:
    table = DedupTable()
    for at, (second, number) in enumerate(ids, 1):
        table.add(reqid(second, number), at, 2**64 - at)
    table.forget_before(forgotten)
    again = DedupTable()
    groups, digests = join_groups(table.freeze(index))
    again.restore(groups, table.floor, digests)
    assert again.floor == table.floor
    for at, (second, number) in enumerate(ids, 1):
        known = table.find(reqid(second, number))
        assert known in (None, (at, 2**64 - at))
        assert again.find(reqid(second, number)) == (known if at <= index else None)


def test_ids_of_old_seconds_take_little_memory_and_are_found_all_the_same() -> None:
    table = DedupTable()
    ids = [reqid(100 + number // 5000, number) for number in range(100_000)]
    tracemalloc.start()
    try:
        for at, one in enumerate(ids, 1):
            table.add(one, at)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 120 * len(ids)
    assert all(table.index_of(one) == at for at, one in enumerate(ids, 1))
    late = reqid(101, 900_000)
    table.add(late, 7)
    assert table.index_of(late) == 7
    table.remove(ids[0])
    assert table.index_of(ids[0]) is None
    assert len(table) == len(ids)


def test_forgetting_while_a_snapshot_is_taken_raises_the_floor_that_is_stored_with_it() -> None:
    table = DedupTable()
    for second in (10, 20, 30):
        table.add(reqid(second), second)
    groups = table.freeze(100)
    taken = [next(groups)]
    table.forget_before(25)
    taken += groups
    again = DedupTable()
    ids, digests = join_groups(taken)
    again.restore(ids, table.floor, digests)
    assert [again.index_of(reqid(second)) for second in (10, 20, 30)] == [None, None, 30]
    assert again.floor == 20


def test_a_snapshot_has_the_ids_of_a_second_ascending_whenever_they_came() -> None:
    table = DedupTable()
    table.add(reqid(10, 5), 1)
    assert len(list(table.freeze(1))) == 1
    table.add(reqid(10, 3), 258)
    table.add(reqid(10, 4), 259)

    (group,) = table.freeze(258)

    told = [(3, b"\x02\x01" + bytes(6)), (5, b"\x01" + bytes(7))]
    assert group.ids == encode_group(10, b"".join(reqid(10, number)[4:] + index for number, index in told))
