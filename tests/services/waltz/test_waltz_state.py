"""Locks, recovery and assignment as functions."""

from hypothesis import given
from hypothesis import strategies as st

from pavane.waltz.state.assignment import Candidate, assign
from pavane.waltz.state.locks import Conflicting, LockTable, Taken, Waiting
from pavane.waltz.state.recovery import (
    Info,
    Member,
    Plan,
    Report,
    Verdict,
    classify,
    next_members,
    resolve,
)
from pavane.waltz.wire.blobs import UNRESOLVED, Rollout
from pavane.waltz.wire.locks import lock_hash

NODES = ("a", "b", "c")
HASH = lock_hash("account", 1)


def test_slots_are_those_of_the_original() -> None:
    assert LockTable(-1).slots_of([HASH]) == [9493, 29706, 26539]


def test_a_lock_is_held_until_its_append_is_resolved() -> None:
    table = LockTable(-1)
    first = table.begin(-1, [HASH], [], [])
    assert isinstance(first, Taken)
    assert isinstance(table.begin(-1, [], [HASH], []), Waiting)
    table.commit(first.slots, 0)
    assert table.begin(-1, [], [HASH], []) == Conflicting(0)
    assert isinstance(table.begin(0, [], [HASH], []), Taken)
    added = table.begin(-1, [], [], [HASH])
    assert isinstance(added, Taken)
    table.release(added.slots)
    assert isinstance(table.begin(0, [HASH], [], []), Taken)


def test_a_new_table_lets_nobody_pass_who_is_behind() -> None:
    assert LockTable(7).begin(6, [HASH], [], []) == Conflicting(7)
    assert LockTable(7).begin(-2, [], [], []) == Conflicting(-1)


@given(st.lists(st.tuples(st.integers(-50, 50), st.booleans()), max_size=60))
def test_no_conflict_is_missed(appends: list[tuple[int, bool]]) -> None:
    table, last = LockTable(-1, slots=40), dict[int, int]()
    for txid, (value, commits) in enumerate(appends):
        verdict = table.begin(txid - 2, [value], [], [])
        if isinstance(verdict, Taken):
            assert last.get(value, -1) <= txid - 2
            if commits:
                table.commit(verdict.slots, txid)
                last[value] = txid
            else:
                table.release(verdict.slots)


def members(**closing: int) -> dict[str, Member]:
    return {node: Member(4, closing.get(node, UNRESOLVED)) for node in NODES}


def test_replicas_take_part_as_their_disks_allow() -> None:
    assert classify(members(), "a", Info(4, 5, 5, 9)) == Plan(voting=True)
    assert classify(members(), "a", Info(3, 5, 5, 9)) == Plan(lossy=True, truncate_to=5)
    assert classify(members(a=7), "a", Info(4, 5, 5, 9)) == Plan(truncate_to=7, stamp=True)
    assert classify(members(), "d", Info(-1, -1, -1, 9)) == Plan(truncate_to=-1)
    assert classify(members(), "a", Info(5, 12, 9, 9)) == Plan()  # far behind, and says so
    absent = {**members(), "a": Member(-1, -1)}
    assert classify(absent, "a", Info(2, 5, 5, 9)) == Plan(truncate_to=-1, stamp=True)


def voter(hwm: int) -> Report:
    return Report(hwm, voting=True, lossy=False)


def test_what_a_majority_holds_is_in_the_log() -> None:
    assert resolve(NODES, {node: voter(9) for node in NODES}) == 9
    assert resolve(NODES, {"a": voter(9), "b": voter(9)}) == 9
    assert resolve(NODES, {"a": voter(9), "b": voter(7), "c": voter(7)}) == 7
    assert resolve((), {}) == -1


def test_what_may_be_committed_is_waited_for() -> None:
    assert resolve(NODES, {"a": voter(9), "b": voter(7)}) == Verdict.BLOCKED  # c may hold 9
    assert resolve(NODES, {"a": voter(9)}) == Verdict.BLOCKED
    lossy = {"a": voter(9), "b": Report(-1, voting=False, lossy=True), "c": voter(7)}
    assert resolve(NODES, lossy) == Verdict.BLOCKED  # b may have acknowledged 9 and forgotten it
    assert resolve(NODES, {**lossy, "b": Report(-1, voting=False, lossy=False)}) == 7
    copied = {**lossy, "b": Report(9, voting=False, lossy=True)}
    assert resolve(NODES, copied) == 9
    nobody = {node: Report(5, voting=False, lossy=False) for node in NODES}
    assert resolve(NODES, nobody) == Verdict.NO_VOTER


def test_the_next_session_knows_who_took_part() -> None:
    before = {"a": Member(4, UNRESOLVED), "b": Member(4, UNRESOLVED), "c": Member(2, 3)}
    after = next_members(before, ("a", "b", "c", "d"), ("a",), 5, 9)
    assert after == {
        "a": Member(5, UNRESOLVED),
        "b": Member(4, 9),
        "c": Member(2, 3),
        "d": Member(-1, -1),
    }


servers = st.dictionaries(
    st.integers(1, 9),
    st.builds(Candidate, preferred=st.lists(st.integers(0, 12), max_size=3).map(tuple), rollout=st.integers(0, 2)),
    min_size=1,
    max_size=5,
)


@given(servers, servers, st.integers(1, 12), st.integers(1, 5))
def test_every_partition_has_one_owner_and_a_new_owner_a_new_generation(
    before: dict[int, Candidate], after: dict[int, Candidate], partitions: int, wanted: int
) -> None:
    first = assign({}, before, partitions)
    assert first is not None
    assert sorted(first_owned for owned in first.values() for first_owned in owned) == [
        (number, 1) for number in range(partitions)
    ]
    second = assign(first, after, partitions, Rollout(2, wanted))
    assert second is not None
    old = {number: server for server, owned in first.items() for number, _ in owned}
    new = {number: (server, generation) for server, owned in second.items() for number, generation in owned}
    assert sorted(new) == list(range(partitions))
    assert all(generation == 1 + (server != old[number]) for number, (server, generation) in new.items())


def test_a_rollout_waits_for_half_of_its_servers_then_takes_everything_step_by_step() -> None:
    old, new = Candidate(rollout=1), Candidate(rollout=2)
    now = assign({}, {1: old}, 4)
    assert now is not None
    assert assign(now, {1: old, 2: new}, 4, Rollout(2, 3)) == {1: now[1], 2: []}
    live = {1: old, 2: new, 3: new}
    for left in (3, 2, 1, 0):
        now = assign(now, live, 4, Rollout(2, 3), moves_max=1)
        assert now is not None
        assert len(now[1]) == left
    assert [len(now[server]) for server in (2, 3)] == [2, 2]


def test_without_the_node_a_later_generation_gets_nothing() -> None:
    assert assign({}, {1: Candidate(rollout=1), 2: Candidate(rollout=2)}, 2) == {1: [(0, 1), (1, 1)], 2: []}
