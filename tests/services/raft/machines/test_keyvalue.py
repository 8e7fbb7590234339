"""What a user of the key-value machine relies on (docs/specs/raft.md 12.2–12.5, 12.7)."""

import pytest

from pavane.raft.errors import Code
from pavane.raft.machines import limits
from pavane.raft.machines.commands import (
    END_OF_KEYS,
    Compare,
    Create,
    Delete,
    DeleteRange,
    Get,
    LeaseExpire,
    LeaseGrant,
    LeaseRevoke,
    Put,
    Range,
    Relation,
    Set,
    SetLevel,
    Target,
    Txn,
    encode_command,
)
from pavane.raft.machines.keyvalue import KeyValue, decode_query
from pavane.raft.machines.state import decode_result
from tests.services.raft.machines.driver import Driver, refused

EQUAL, NOT_EQUAL, LESS, GREATER = Relation


@pytest.fixture
def kv() -> Driver:
    return Driver(KeyValue())


def test_a_key_carries_its_revisions_version_and_lease(kv: Driver) -> None:
    lease = kv.grant()
    assert kv.do(Put(b"k", b"1")) == [1]
    assert kv.do(Put(b"k", b"2", lease)) == [2]
    assert kv.do(Range(b"k")) == [[[[b"k", b"2", 2, 3, 2, 1]], False]]
    assert kv.do(Delete(b"k"), Delete(b"missing")) == [1, 0]
    kv.do(Put(b"k", b"3"))
    assert kv.do(Range(b"k")) == [[[[b"k", b"3", 6, 6, 1, 0]], False]]


def test_ranges_are_ordered_by_bytes_and_end_before_their_end(kv: Driver) -> None:
    kv.do(*(Put(key, b"v") for key in (b"b", b"a", b"\xff", b"a/1", b"\0", b"c")))
    assert [item[0] for item in kv.do(Range(b"a", b"c"))[0][0]] == [b"a", b"a/1", b"b"]
    assert [item[0] for item in kv.do(Range(b"b", END_OF_KEYS))[0][0]] == [b"b", b"c", b"\xff"]
    assert [item[0] for item in kv.do(Range(b"", END_OF_KEYS))[0][0]] == [b"\0", b"a", b"a/1", b"b", b"c", b"\xff"]
    down = kv.do(Range(b"a", b"c", 2, Range.DESCENDING | Range.KEYS_ONLY))[0]
    assert down == [[[b"b", b"", 1, 1, 1, 0], [b"a/1", b"", 1, 1, 1, 0]], True]
    assert kv.do(Range(b"a", b"d", 1, Range.COUNT_ONLY), Range(b"d", b"a"), Range(b"d", b"a", 0, 2)) == [
        [4, False],
        [[], False],
        [0, False],
    ]


def test_a_range_may_begin_and_end_right_behind_the_longest_key(kv: Driver) -> None:
    longest = bytes([7]) * limits.KEY_BYTES_MAX
    kv.do(Put(longest, b""), Put(b"\x08", b""))
    assert kv.do(Range(longest + b"\0", END_OF_KEYS, 0, Range.COUNT_ONLY)) == [[1, False]]
    assert kv.do(Range(longest, longest + b"\0", 0, Range.COUNT_ONLY)) == [[1, False]]
    assert kv.fails(Range(longest + b"\0\0", END_OF_KEYS))[0] == Code.TOO_LARGE
    assert kv.fails(Range(longest + b"\0"))[0] == Code.TOO_LARGE


def test_a_range_says_when_there_is_more(kv: Driver) -> None:
    for first in range(0, 1100, 100):
        kv.do(*(Put(b"%04d" % number, b"") for number in range(first, first + 100)))
    found, more = kv.do(Range(b"0", b"2"))[0]
    assert (len(found), more) == (1000, True)
    found, more = kv.do(Range(b"0", b"2", 5000))[0]
    assert (len(found), more) == (1000, True)
    found, more = kv.do(Range(b"0", b"2", 3))[0]
    assert ([item[0] for item in found], more) == ([b"0000", b"0001", b"0002"], True)
    assert kv.do(Range(b"0000", b"0003", 3))[0][1] is False


def test_replies_stay_below_their_limit_but_one_large_value_alone_is_given(kv: Driver) -> None:
    large = bytes(limits.VALUE_BYTES_MAX)
    kv.do(Put(b"a", large))
    kv.do(Put(b"b", b""))
    assert kv.do(Range(b"a", b"c")) == [[[[b"a", large, 1, 1, 1, 0]], True]]
    assert kv.do(Range(b"b"), Range(b"a")) == [[[[b"b", b"", 2, 2, 1, 0]], False], [[], True]]
    kv.do(*(Put(b"m%d" % number, bytes(300_000)) for number in range(4)))
    first, second = kv.read(Range(b"m0", b"m2"), Range(b"m2", b"n"))
    assert (len(first[1]), first[2]) == (2, False)
    assert (len(second[1]), second[2]) == (1, True)


def test_ops_see_what_earlier_ones_did_and_a_failure_undoes_all(kv: Driver) -> None:
    kv.do(Put(b"a", b"1"), Put(b"b", b"1"))
    assert kv.do(DeleteRange(b"a", b"c"), Range(b"a", b"c"), Put(b"d", b""), Range(b"d", b"", 0, 2)) == [
        2,
        [[], False],
        1,
        [1, False],
    ]
    kv.do(Put(b"a", b"1"), Put(b"b", b"1", 0))
    assert kv.fails(Put(b"a", b"2"), DeleteRange(b"b", b""), Put(b"n", b""), Put(b"z", b"", 77)) == (Code.NO_LEASE, 77)
    assert kv.keys() == [b"a", b"b", b"d"]


def test_a_failed_compare_runs_the_other_branch(kv: Driver) -> None:
    guard = (Compare(Target.CREATE_REVISION, EQUAL, b"k", 0),)
    take = Txn(guard, (Put(b"k", b"me"),), (Range(b"k"),))
    assert kv.apply(take) == (Code.OK, [True, [[1, 1]]])
    assert kv.apply(take) == (Code.OK, [False, [[4, [[b"k", b"me", 1, 1, 1, 0]], False]]])
    assert kv.apply(Txn(guard, (Put(b"k", b"me"),))) == (Code.OK, [False, []])


@pytest.mark.parametrize(
    ("stored", "holding"),
    [
        (None, {NOT_EQUAL, LESS}),
        (b"", {NOT_EQUAL, LESS}),
        (b"l\xff", {NOT_EQUAL, LESS}),
        (b"m", {EQUAL}),
        (b"m\0", {NOT_EQUAL, GREATER}),
        (b"\xff", {NOT_EQUAL, GREATER}),
    ],
)
def test_values_compare_as_unsigned_bytes_and_a_missing_one_is_least(
    kv: Driver, stored: bytes | None, holding: set[Relation]
) -> None:
    if stored is not None:
        kv.do(Put(b"k", stored))
    assert {relation for relation in Relation if kv.holds(Compare(Target.VALUE, relation, b"k", b"m"))} == holding


def test_numbers_of_a_key_compare_and_are_zero_where_it_is_missing(kv: Driver) -> None:
    lease = kv.grant()
    kv.do(Put(b"k", b"", lease))
    kv.do(Put(b"k", b"", lease))
    numbers = {Target.VERSION: 2, Target.CREATE_REVISION: 2, Target.MOD_REVISION: 3, Target.LEASE: 1}
    for target, number in numbers.items():
        assert kv.holds(Compare(target, EQUAL, b"k", number), Compare(target, LESS, b"k", number + 1))
        assert kv.holds(Compare(target, GREATER, b"k", number - 1), Compare(target, NOT_EQUAL, b"k", -1))
        assert kv.holds(Compare(target, EQUAL, b"missing", 0))
        assert not kv.holds(Compare(target, EQUAL, b"k", number), Compare(target, GREATER, b"missing", 0))


def test_a_stale_fencing_token_is_refused(kv: Driver) -> None:
    lease = kv.grant()
    free = (
        Compare(Target.CREATE_REVISION, EQUAL, b"lock", 0),
        Compare(Target.LEASE_ALIVE, EQUAL, b"", lease),
    )
    assert kv.apply(Txn(free, (Put(b"lock", b"me", lease),))) == (Code.OK, [True, [[1, 1]]])
    token = kv.index
    guard = (Compare(Target.CREATE_REVISION, EQUAL, b"lock", token),)
    assert kv.apply(Txn(guard, (Put(b"data", b"1"),)))[1][0] is True
    kv.apply(LeaseExpire((lease,)))
    other = kv.grant()
    kv.do(Put(b"lock", b"other", other))
    assert kv.index > token
    assert kv.apply(Txn(guard, (Put(b"data", b"2"),)))[1][0] is False
    assert kv.apply(Txn(free, (Put(b"lock", b"me", lease),)))[1][0] is False
    assert kv.holds(Compare(Target.LEASE_ALIVE, NOT_EQUAL, b"", lease))


def test_what_is_bound_to_a_lease_goes_with_it(kv: Driver) -> None:
    lease, other = kv.grant(), kv.grant()
    kv.do(Put(b"b", b"", lease), Put(b"a", b"", lease), Put(b"c", b"", other), Put(b"d", b"", lease))
    kv.do(Put(b"d", b"", other))
    assert kv.apply(LeaseRevoke(lease)) == (Code.OK, None)
    assert kv.keys() == [b"c", b"d"]
    assert kv.apply(LeaseRevoke(lease)) == (Code.NO_LEASE, lease)
    assert kv.fails(Put(b"e", b"", lease)) == (Code.NO_LEASE, lease)
    assert kv.apply(LeaseExpire((lease, other, other, 999))) == (Code.OK, None)
    assert kv.keys() == []
    assert kv.machine.state.leases == {}


def test_a_key_that_is_deleted_and_put_again_is_unbound(kv: Driver) -> None:
    lease = kv.grant()
    kv.do(Put(b"k", b"", lease))
    kv.do(Delete(b"k"))
    kv.do(Put(b"k", b""))
    kv.apply(LeaseRevoke(lease))
    assert kv.keys() == [b"k"]


def test_an_undone_write_is_bound_to_nothing(kv: Driver) -> None:
    lease = kv.grant()
    kv.do(Put(b"old", b"", lease))
    kv.fails(Put(b"old", b""), Put(b"new", b"", lease), Put(b"x", b"", 999))
    kv.apply(LeaseRevoke(lease))
    assert kv.keys() == []


def test_the_time_to_live_is_brought_into_its_limits(kv: Driver) -> None:
    assert kv.apply(LeaseGrant(0)) == (Code.OK, [1, 200])
    assert kv.apply(LeaseGrant(1 << 40)) == (Code.OK, [2, 3_600_000])
    assert kv.apply(LeaseGrant(1234, b"pod")) == (Code.OK, [3, 1234])


def test_a_full_table_of_leases_grants_none(kv: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEASES_MAX", 2)
    first = kv.grant()
    kv.grant()
    assert kv.apply(LeaseGrant(1000)) == (Code.NO_SPACE, 2)
    kv.apply(LeaseRevoke(first))
    kv.grant()


def test_a_full_store_refuses_only_what_makes_it_larger(kv: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STORE_KEYS_MAX", 2)
    monkeypatch.setattr(limits, "STORE_BYTES_MAX", 20)
    kv.do(Put(b"a", bytes(9)), Put(b"b", bytes(8)))
    assert kv.fails(Put(b"c", b"")) == (Code.NO_SPACE, 2)
    assert kv.do(Delete(b"a"), Put(b"c", b"")) == [1, 1]
    assert kv.fails(Put(b"c", bytes(11))) == (Code.NO_SPACE, 20)
    kv.do(Put(b"c", bytes(10)))
    monkeypatch.setattr(limits, "STORE_BYTES_MAX", 10)
    kv.do(Put(b"c", bytes(10)))
    kv.do(Put(b"c", bytes(9)), Delete(b"b"))
    assert kv.machine.state.bytes == 10


def test_a_repeated_request_is_told_what_the_first_came_to(kv: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESULTS_KEPT_MAX", 3)
    take = Txn((Compare(Target.CREATE_REVISION, EQUAL, b"k", 0),), (Put(b"k", b""),))
    kv.apply(take, b"first")
    kv.apply(take, b"second")
    kv.apply(LeaseRevoke(9), b"third")
    outcomes = [kv.machine.result_of(reqid) for reqid in (b"first", b"second", b"third")]
    assert [decode_result(outcome.data) for outcome in outcomes if outcome] == [
        (Code.OK, 1, [True, [[1, 1]]]),
        (Code.OK, 2, [False, []]),
        (Code.NO_LEASE, 3, 9),
    ]
    kv.apply(b"not a command", b"fourth")
    assert kv.machine.result_of(b"first") is None
    assert kv.machine.result_of(b"second") is not None


def test_large_results_are_forgotten_sooner(kv: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESULTS_BYTES_MAX", 2500)
    kv.do(Put(b"k", bytes(1000)))
    for reqid in (b"a", b"b", b"c"):
        kv.apply(Txn(then=(Range(b"k"),)), reqid)
    assert [kv.machine.result_of(reqid) is not None for reqid in (b"a", b"b", b"c")] == [False, True, True]


def test_the_level_is_raised_and_never_lowered(kv: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kv.apply(SetLevel(2)) == (Code.UNSUPPORTED, 1)
    monkeypatch.setattr(KeyValue, "level_max", 3)
    assert kv.apply(SetLevel(2)) == (Code.OK, None)
    assert kv.apply(SetLevel(1)) == (Code.OK, None)
    assert kv.machine.state.level == 2
    assert kv.apply(b"\x91\x63") == (Code.UNSUPPORTED, 2)


def test_a_leader_refuses_what_cannot_take_effect_before_it_is_in_the_log(kv: Driver) -> None:
    check = kv.machine.check
    assert refused(check, encode_command(LeaseExpire((1,))))[0] == Code.BAD_COMMAND
    assert refused(check, encode_command(SetLevel(2))) == (Code.UNSUPPORTED, 1)
    assert refused(check, encode_command(Txn(then=(Get(b"/"),)))) == (Code.UNSUPPORTED, 1)
    assert refused(check, b"")[0] == Code.BAD_COMMAND
    check(encode_command(LeaseRevoke(1)))
    check(encode_command(SetLevel(1)))


def test_reads_are_of_one_state_and_change_nothing(kv: Driver) -> None:
    kv.do(Put(b"a", b"1"))
    before = kv.machine.digest()
    assert kv.read(Range(b"a"), Range(b"", END_OF_KEYS, 0, Range.COUNT_ONLY)) == [
        [4, [[b"a", b"1", 1, 1, 1, 0]], False],
        [4, 1, False],
    ]
    assert kv.machine.digest() == before
    assert refused(kv.read, Put(b"a", b""))[0] == Code.BAD_COMMAND
    assert refused(kv.read, Get(b"/"))[0] == Code.UNSUPPORTED
    assert refused(kv.read, *[Range(b"a")] * 129) == (Code.TOO_LARGE, 128)
    assert refused(kv.machine.read, None)[0] == Code.BAD_COMMAND


def test_a_query_says_who_may_answer_it() -> None:
    assert decode_query([0, []]) == ([], None)
    assert decode_query([1, []]) == ([], 0)
    assert decode_query([1, [], 7]) == ([], 7)
    for query in (None, [], [0], [0, [], 7], [2, []], [1, [], -1], [1, [], 7, 8], [True, []]):
        assert refused(decode_query, query)[0] == Code.BAD_COMMAND


def test_keys_and_paths_share_nothing_but_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Driver()
    tree.do(Put(b"/a", b"key"), Create(b"/a", b"node"), Set(b"/", b"root"))
    assert tree.do(Range(b"/a"), Get(b"/a")) == [[[[b"/a", b"key", 1, 1, 1, 0]], False], [b"node", 0, 0, 1, 1, 0, 0]]
    monkeypatch.setattr(limits, "STORE_KEYS_MAX", 3)
    assert tree.fails(Create(b"/b")) == (Code.NO_SPACE, 3)
