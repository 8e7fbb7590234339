"""Peers that serve a key-value machine: results, reads, leases, watches (docs/specs/raft.md 4.4, 12.4-12.7)."""

from itertools import pairwise
from typing import Any

import pytest

from pavane.raft.core import serving, watching
from pavane.raft.errors import Code
from pavane.raft.machines import limits
from pavane.raft.machines.commands import (
    Command,
    Compare,
    Delete,
    DeleteRange,
    LeaseExpire,
    LeaseGrant,
    Op,
    Put,
    Range,
    Relation,
    Target,
    Txn,
    encode_command,
    op_fields,
)
from pavane.raft.machines.history import Cursor, Scope, Watch
from pavane.raft.state.roles import Role
from pavane.raft.wire.pv import (
    FEATURE_KV,
    PvHello,
    PvHelloReply,
    PvKv,
    PvLease,
    PvRead,
    PvReply,
    PvWatch,
    PvWatchAcknowledge,
    PvWatchReply,
)
from pavane.raft.wire.replies import RequestUpdateReply, UpdateStatus
from pavane.raft.wire.requests import RequestUpdate
from tests.services.raft.ensemble import IDENT, WALL_S, Ensemble, decoded, reqid


class Cluster(Ensemble):
    """An ensemble with a client that numbers its requests."""

    def __init__(self, voters: str = "abc", learners: str = "", **settings: Any) -> None:
        super().__init__(voters, learners, keys=True, **settings)
        self.number = 0

    def kv(self, name: str, command: Command | bytes, request_id: bytes | None = None) -> list[tuple[int, Any]]:
        """Send a command; return the answers that come before time moves."""
        self.number += 1
        data = command if isinstance(command, bytes) else encode_command(command)
        frames = (request_id or reqid(self.number), *PvKv(data).encode(IDENT))
        replies = [decoded(PvReply, reply) for reply in self.ask(name, frames)]
        return [(reply.code, reply.value) for reply in replies]

    def do(self, *ops: Op) -> int:
        """Carry out a transaction at the leader; return its revision."""
        (_, (_, revision, (succeeded, _))) = self.result(self.leader(), Txn(then=ops))
        assert succeeded
        return int(revision)

    def result(self, name: str, command: Command) -> tuple[int, Any]:
        accepted, result = self.kv(name, command)
        assert accepted == (Code.PENDING, None)
        return result

    def grant(self, ttl_ms: int) -> int:
        code, (_, revision, _) = self.result(self.leader(), LeaseGrant(ttl_ms))
        assert code == Code.OK
        return int(revision)

    def pv_read(self, name: str, query: list[Any], client: str = "reader") -> list[tuple[int, Any]]:
        """Send a read; return all answers that come before time moves."""
        self.number += 1
        frames = (b"read %d" % self.number, *PvRead(query).encode(IDENT))
        return [
            (reply.code, reply.value) for reply in (decoded(PvReply, one) for one in self.ask(name, frames, client))
        ]

    def renew(self, name: str, *leases: int) -> list[tuple[int, Any]]:
        self.number += 1
        frames = (b"lease %d" % self.number, *PvLease(list(leases)).encode(IDENT))
        replies = self.ask(name, frames, "holder")
        return [(reply.code, reply.value) for reply in (decoded(PvReply, one) for one in replies)]

    def last_told(self, client: str) -> tuple[int, Any]:
        reply = decoded(PvReply, self.told(client)[-1])
        return reply.code, reply.value

    def watch(self, name: str, watch: Watch) -> None:
        self.ask(name, (b"watch", *PvWatch(watch.encode()).encode(IDENT)), "watcher")

    def acknowledge(self, name: str, revision: int, *, proceed: bool = True) -> None:
        self.ask(name, (b"watch", *PvWatchAcknowledge(revision, proceed).encode(IDENT)), "watcher")

    def watched(self) -> list[tuple[int, int, list[Any]]]:
        """What the watcher was told so far: code, revision, keys of the events."""
        replies = [decoded(PvWatchReply, frames) for frames in self.told("watcher")]
        return [
            (reply.code, reply.revision, [event[1] if isinstance(event, list) else event for event in reply.events])
            for reply in replies
        ]

    def follower(self) -> str:
        return next(name for name in self.voters if name != self.leader())

    def keys(self, name: str) -> list[bytes]:
        machine = self.machines[name]
        assert machine is not None
        return [key for key, _ in machine.state.keys.between(b"", None)]


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.elect()
    return cluster


RANGE = op_fields(Range(b"k"))
TAKE = Txn((Compare(Target.CREATE_REVISION, Relation.EQUAL, b"k", 0),), (Put(b"k", b"me"),))


# --- commands ----------------------------------------------------------------------------------------------------


def test_a_command_is_accepted_and_then_its_result_told(cluster: Cluster) -> None:
    accepted, done = cluster.kv(cluster.leader(), TAKE)
    assert accepted == (Code.PENDING, None)
    assert done == (Code.OK, [0, cluster.status(cluster.leader()).applied, [True, [[1, 1]]]])


def test_a_follower_names_the_leader(cluster: Cluster) -> None:
    assert cluster.kv(cluster.follower(), TAKE) == [(Code.NOT_LEADER, cluster.leader())]


def test_a_command_that_is_repeated_gets_its_first_result_from_any_leader(cluster: Cluster) -> None:
    first = cluster.leader()
    _, done = cluster.kv(first, TAKE, reqid(1000))
    _, other = cluster.kv(first, TAKE, reqid(1001))
    assert (done[1][2][0], other[1][2][0]) == (True, False)
    assert cluster.kv(first, TAKE, reqid(1000)) == [done]
    cluster.down(first)
    cluster.voters = cluster.voters.replace(first, "")
    second = cluster.elect()
    cluster.do(Delete(b"k"))
    assert cluster.kv(second, TAKE, reqid(1000)) == [done]
    assert cluster.kv(second, TAKE, reqid(1001)) == [other]


def test_a_result_that_is_forgotten_is_told_to_be_lost(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESULTS_KEPT_MAX", 1)
    cluster.kv(cluster.leader(), TAKE, reqid(1000))
    index = cluster.status(cluster.leader()).applied
    cluster.do(Put(b"other", b""))
    assert cluster.kv(cluster.leader(), TAKE, reqid(1000)) == [(Code.RESULT_LOST, index)]


def test_a_request_id_that_is_too_old_is_expired(cluster: Cluster) -> None:
    assert cluster.kv(cluster.leader(), TAKE, reqid(1, WALL_S - 8 * 3600)) == [(Code.EXPIRED, None)]


def test_a_command_under_way_is_told_to_be_alive_and_moves_with_the_leader(cluster: Cluster) -> None:
    leader = cluster.leader()
    others = [name for name in cluster.voters if name != leader]
    cluster.stuck |= set(others)
    assert cluster.kv(leader, TAKE, reqid(1000)) == [(Code.PENDING, None)]
    cluster.advance(0.25)
    assert [decoded(PvReply, reply).code for reply in cluster.told("client")] == [Code.PENDING, Code.PENDING]
    cluster.cuts |= {(other, leader) for other in others}
    cluster.until(lambda: cluster.status(leader).role != Role.LEADER)
    assert cluster.last_told("client")[0] == Code.NOT_LEADER


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"nonsense", Code.BAD_COMMAND),
        (encode_command(LeaseExpire((1,))), Code.BAD_COMMAND),
        (b"\x91\x63", Code.UNSUPPORTED),
        (bytes(limits.TXN_BYTES_MAX + 1), Code.TOO_LARGE),
    ],
)
def test_what_cannot_take_effect_does_not_reach_the_log(cluster: Cluster, data: bytes, code: Code) -> None:
    leader = cluster.leader()
    last = cluster.status(leader).last
    assert [answer[0] for answer in cluster.kv(leader, data)] == [code]
    assert cluster.ask(leader, (reqid(999), *RequestUpdate(data).encode(IDENT))) == []
    assert cluster.status(leader).last == last


def test_a_plain_update_is_a_command_too(cluster: Cluster) -> None:
    replies = cluster.update(cluster.leader(), 999, encode_command(TAKE))
    assert [reply.status for reply in replies] == [UpdateStatus.ACCEPTED, UpdateStatus.DONE]
    assert cluster.keys(cluster.leader()) == [b"k"]
    # Asked again by the other message, it tells the result.
    assert cluster.kv(cluster.leader(), TAKE, reqid(999)) == [(Code.OK, [0, replies[1].index, [True, [[1, 1]]]])]
    assert isinstance(replies[1], RequestUpdateReply)


def test_a_peer_says_that_it_serves_keys_and_one_without_them_does_not() -> None:
    for keys, machine in ((True, "Tree"), (False, "Broadcast")):
        ensemble = Ensemble("a", keys=keys)
        [reply] = ensemble.ask("a", (b"hello", *PvHello("", 0, bytes(8), {}).encode(IDENT)))
        info = decoded(PvHelloReply, reply).info
        assert info["machine"] == machine
        assert isinstance(info["feat"], int)
        assert bool(info["feat"] & FEATURE_KV) is keys


def test_a_log_without_keys_says_so() -> None:
    ensemble = Ensemble("a")
    ensemble.elect()
    for frames in (PvKv(b"\x90").encode(IDENT), PvRead([0, []]).encode(IDENT), PvLease([]).encode(IDENT)):
        [reply] = ensemble.ask("a", (reqid(1), *frames))
        assert decoded(PvReply, reply) == PvReply(Code.UNSUPPORTED, 1)
    [reply] = ensemble.ask("a", (b"watch", *PvWatch({}).encode(IDENT)))
    assert decoded(PvWatchReply, reply) == PvWatchReply(Code.UNSUPPORTED, 0, [1])


# --- reads -------------------------------------------------------------------------------------------------------


def test_a_read_of_the_leader_sees_what_was_acknowledged_before(cluster: Cluster) -> None:
    revision = cluster.do(Put(b"k", b"1"))
    found = [[4, [[b"k", b"1", revision, revision, 1, 0]], False]]
    assert cluster.pv_read(cluster.leader(), [0, [RANGE]]) == [(Code.OK, [0, revision, found])]
    assert cluster.pv_read(cluster.follower(), [0, [RANGE]]) == [(Code.NOT_LEADER, cluster.leader())]


def test_a_leader_that_is_cut_off_answers_no_read(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.cuts |= {(name, leader) for name in cluster.voters}
    assert cluster.pv_read(leader, [0, [RANGE]]) == []
    cluster.until(lambda: cluster.status(leader).role != Role.LEADER)
    assert cluster.last_told("reader")[0] == Code.NOT_LEADER


def test_any_peer_reads_what_it_has_applied_and_waits_for_a_revision() -> None:
    cluster = Cluster("abc", "l")
    cluster.elect()
    cluster.do(Put(b"k", b"1"))
    cluster.advance(1.0)
    for name in (*cluster.voters, "l"):
        assert [code for code, _ in cluster.pv_read(name, [1, [RANGE]])] == [Code.OK], name
    follower = cluster.follower()
    cluster.cuts.add((cluster.leader(), follower))
    revision = cluster.do(Put(b"k", b"2"))
    before = cluster.pv_read(follower, [1, [RANGE]])
    assert before[0][1][1] < revision
    assert cluster.pv_read(follower, [1, [RANGE], revision]) == []
    cluster.cuts.clear()
    cluster.until(lambda: len(cluster.told("reader")) == 6)
    code, (_, applied, [[_, [item], _]]) = cluster.last_told("reader")
    assert (code, applied, item[1]) == (Code.OK, revision, b"2")


def test_a_revision_that_does_not_come_is_not_waited_for_longer_than_a_second(cluster: Cluster) -> None:
    assert cluster.pv_read(cluster.follower(), [1, [RANGE], 1000]) == []
    cluster.advance(0.9)
    assert cluster.told("reader") == []
    cluster.advance(0.2)
    assert cluster.last_told("reader") == (Code.BUSY, 1000)


@pytest.mark.parametrize(
    "query", [[], [3, []], [0, [[1, b"k", b"", 0]]], [0, [RANGE] * 129], [0, [[4, b"k"]]], [1, [[*RANGE, 0]]]]
)
def test_a_read_of_a_wrong_form_is_refused(cluster: Cluster, query: list[Any]) -> None:
    [(code, _)] = cluster.pv_read(cluster.leader(), query)
    assert code in {Code.BAD_COMMAND, Code.TOO_LARGE}


# --- leases ------------------------------------------------------------------------------------------------------


def test_a_lease_that_nobody_renews_ends_everywhere_by_an_entry(cluster: Cluster) -> None:
    lease = cluster.grant(1000)
    cluster.do(Put(b"k", b"", lease))
    cluster.advance(0.9)
    assert all(cluster.keys(name) == [b"k"] for name in cluster.voters)
    cluster.advance(0.5)
    assert all(cluster.keys(name) == [] for name in cluster.voters)
    assert cluster.renew(cluster.leader(), lease) == [(Code.OK, [[lease, 0]])]


def test_a_lease_that_is_renewed_lives_on(cluster: Cluster) -> None:
    lease = cluster.grant(1000)
    for _ in range(10):
        cluster.advance(0.6)
        assert cluster.renew(cluster.leader(), lease, 999) == [(Code.OK, [[lease, 1000], [999, 0]])]
    cluster.advance(1.2)
    assert cluster.renew(cluster.leader(), lease) == [(Code.OK, [[lease, 0]])]


def test_a_lease_granted_long_after_the_election_has_its_time_and_no_more(cluster: Cluster) -> None:
    cluster.advance(60.0)
    lease = cluster.grant(1000)
    cluster.do(Put(b"k", b"", lease))
    cluster.advance(0.9)
    assert cluster.keys(cluster.leader()) == [b"k"]
    cluster.advance(0.3)
    assert cluster.keys(cluster.leader()) == []


def test_a_new_leader_gives_full_time(cluster: Cluster) -> None:
    lease = cluster.grant(2000)
    cluster.do(Put(b"k", b"", lease))
    cluster.advance(1.5)
    old = cluster.leader()
    cluster.down(old)
    cluster.voters = cluster.voters.replace(old, "")
    new = cluster.elect()
    began = cluster.time
    cluster.advance(1.8)
    assert cluster.keys(new) == [b"k"]
    cluster.until(lambda: cluster.keys(new) == [])
    assert cluster.time - began < 2.3


def test_a_new_leader_proves_its_term_before_it_promises_time(cluster: Cluster) -> None:
    lease = cluster.grant(5000)
    cluster.advance(1.0)
    old = cluster.leader()
    cluster.down(old)
    cluster.voters = cluster.voters.replace(old, "")
    new = cluster.elect()
    last, term = cluster.status(new).last, cluster.status(new).term
    assert cluster.renew(new, lease) == [(Code.OK, [[lease, 5000]])]
    status = cluster.status(new)
    # The first one may have to append what proves the term; the second finds it.
    assert (status.term, status.commit) == (term, status.last)
    assert status.last in {last, last + 1}
    assert cluster.renew(new, lease) == [(Code.OK, [[lease, 5000]])]
    assert cluster.status(new).last == status.last


def test_a_leader_that_is_cut_off_promises_nothing(cluster: Cluster) -> None:
    lease = cluster.grant(5000)
    leader = cluster.leader()
    cluster.cuts |= {(name, leader) for name in cluster.voters}
    assert cluster.renew(leader, lease) == []
    cluster.until(lambda: cluster.status(leader).role != Role.LEADER)
    assert cluster.last_told("holder")[0] == Code.NOT_LEADER


def test_a_stopped_leader_expires_nothing_that_is_renewed_when_it_goes_on() -> None:
    cluster = Cluster("a")
    cluster.elect()
    lease, idle = cluster.grant(1000), cluster.grant(1000)
    cluster.advance(0.5)
    cluster.time += 5.0  # stopped: no timer fired, and what came in meanwhile is read first
    assert cluster.renew("a", lease) == [(Code.OK, [[lease, 1000]])]
    cluster.advance(0.4)
    assert cluster.renew("a", lease, idle) == [(Code.OK, [[lease, 1000], [idle, 1000]])]


def test_leases_end_in_time_however_many_others_are_kept(cluster: Cluster) -> None:
    leader = cluster.leader()
    kept, lost = cluster.grant(1000), cluster.grant(1000)
    cluster.do(Put(b"k", b"", lost))
    core = cluster.cores[leader]
    for _ in range(60):
        # As in a busy process: what came in is read before timers are looked at.
        cluster.time += 0.02
        assert cluster.renew(leader, kept)[0][0] == Code.OK
        core.handle_timer(cluster.now())
        cluster.settle()
    assert cluster.keys(leader) == []
    assert cluster.renew(leader, kept, lost) == [(Code.OK, [[kept, 1000], [lost, 0]])]


def test_keep_alives_go_to_the_leader_in_a_known_form(cluster: Cluster) -> None:
    assert cluster.renew(cluster.follower(), 1) == [(Code.NOT_LEADER, cluster.leader())]
    assert cluster.renew(cluster.leader(), -1)[0][0] == Code.BAD_COMMAND
    assert cluster.renew(cluster.leader(), *range(1001)) == [(Code.TOO_LARGE, 1000)]


# --- watches -----------------------------------------------------------------------------------------------------


def test_a_watcher_at_a_follower_is_told_of_every_change_in_order(cluster: Cluster) -> None:
    first = cluster.do(Put(b"k", b"1"))
    follower = cluster.follower()
    cluster.advance(0.2)
    cluster.watch(follower, Watch(Scope.KEYS, b"k", b"l", 1))
    second = cluster.do(Put(b"k", b"2"), Put(b"other", b""), Put(b"k2", b""))
    cluster.advance(0.2)
    assert cluster.watched() == [(0, first, [b"k"]), (0, second, [b"k", b"k2"])]


def test_an_event_is_looked_at_only_for_those_whom_it_interests(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        watch = Watch(Scope.KEYS, b"k%d" % number, b"", 1)
        cluster.ask(cluster.leader(), (b"%d" % number, *PvWatch(watch.encode()).encode(IDENT)), "watcher")
    looked: list[bytes] = []
    take = Cursor.take

    def counting(cursor: Cursor, *arguments: Any) -> Any:
        looked.append(cursor.watch.start)
        return take(cursor, *arguments)

    monkeypatch.setattr(Cursor, "take", counting)
    revision = cluster.do(Put(b"k7", b""), Put(b"other", b""))
    assert cluster.watched() == [(0, revision, [b"k7"])]
    assert set(looked) == {b"k7"}


def test_a_watcher_in_whose_range_nothing_happens_is_never_behind(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HISTORY_EVENTS_MAX", 4)
    leader = cluster.leader()
    cluster.watch(leader, Watch(Scope.KEYS, b"k", b"", 1))
    for _ in range(10):
        cluster.do(Put(b"other", b""))
    revision = cluster.do(Put(b"k", b""))
    assert cluster.watched() == [(0, revision, [b"k"])]


def test_what_happens_while_a_window_is_full_by_a_sign_of_life_is_told_later(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.watch(leader, Watch(Scope.KEYS, b"k", b"", 1, progress=True))
    for _ in range(watching.WINDOW_MESSAGES - 1):
        cluster.do(Put(b"k", b""))
    cluster.advance(2 * watching.PROGRESS_S + 0.1)
    assert len(cluster.watched()) == watching.WINDOW_MESSAGES
    revisions = [cluster.do(Put(b"k", b"")) for _ in range(2)]
    assert len(cluster.watched()) == watching.WINDOW_MESSAGES
    cluster.acknowledge(leader, cluster.watched()[-1][1])
    assert [found for _, found, _ in cluster.watched()[watching.WINDOW_MESSAGES :]] == revisions


def test_signs_of_life_of_many_watchers_are_spread_over_the_second(cluster: Cluster) -> None:
    cluster.do(Put(b"other", b""))
    count = 3 * watching.LOOK_STREAMS
    query = PvWatch(Watch(Scope.KEYS, b"k", b"", 1, progress=True).encode())
    for number in range(count):
        cluster.ask(cluster.leader(), (b"%d" % number, *query.encode(IDENT)), "watcher")
    told = [len(cluster.watched())]
    for _ in range(100):
        cluster.advance(2 * watching.PROGRESS_S / 100)
        told.append(len(cluster.watched()))
    assert max(later - former for former, later in pairwise(told)) <= watching.LOOK_STREAMS
    cluster.advance(watching.PROGRESS_S)
    assert {frames[0] for frames in cluster.told("watcher")} == {b"%d" % number for number in range(count)}


def test_a_watcher_from_now_on_is_told_when_that_is(cluster: Cluster) -> None:
    revision = cluster.do(Put(b"k", b"1"))
    cluster.watch(cluster.leader(), Watch(Scope.KEYS, b"k", b""))
    later = cluster.do(Put(b"k", b"2"))
    assert cluster.watched() == [(0, revision, []), (0, later, [b"k"])]


def test_a_watcher_that_does_not_acknowledge_is_sent_a_window_and_then_given_up(cluster: Cluster) -> None:
    leader = cluster.leader()
    revisions = [cluster.do(Put(b"k", b"")) for _ in range(20)]
    cluster.watch(leader, Watch(Scope.KEYS, b"k", b"", 1))
    assert [revision for _, revision, _ in cluster.watched()] == revisions[:16]
    cluster.acknowledge(leader, revisions[1])
    assert [revision for _, revision, _ in cluster.watched()] == revisions[:18]
    cluster.advance(10.6)
    cluster.acknowledge(leader, revisions[17])
    cluster.do(Put(b"k", b""))
    assert len(cluster.watched()) == 18


def test_a_watcher_that_acknowledges_or_has_nothing_to_acknowledge_stays(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.watch(leader, Watch(Scope.KEYS, b"k", b"", 1))
    cluster.advance(30.0)
    revision = cluster.do(Put(b"k", b""))
    cluster.acknowledge(leader, revision)
    cluster.advance(30.0)
    later = cluster.do(Put(b"k", b""))
    assert [found for _, found, _ in cluster.watched()] == [revision, later]


def test_a_watcher_that_cancels_is_told_nothing_more(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.watch(leader, Watch(Scope.KEYS, b"k", b"", 1))
    cluster.acknowledge(leader, cluster.do(Put(b"k", b"")), proceed=False)
    cluster.do(Put(b"k", b""))
    assert len(cluster.watched()) == 1


def test_progress_is_told_to_who_wants_it_while_nothing_happens(cluster: Cluster) -> None:
    leader = cluster.leader()
    revision = cluster.do(Put(b"other", b""))
    cluster.watch(leader, Watch(Scope.KEYS, b"k", b"", 1, progress=True))
    cluster.advance(1.1)
    assert cluster.watched()[0] == (0, revision, [])
    assert len(cluster.watched()) <= 3
    cluster.advance(30.0)
    assert len(cluster.watched()) <= 16  # nobody acknowledges
    cluster.watch(leader, Watch(Scope.KEYS, b"k", b"", 1))
    told = len(cluster.watched())
    cluster.advance(3.0)
    assert len(cluster.watched()) == told


def test_who_has_seen_more_than_a_peer_has_is_told_how_far_it_is(cluster: Cluster) -> None:
    leader = cluster.leader()
    revision = cluster.do(Put(b"k", b""))
    cluster.watch(leader, Watch(Scope.KEYS, b"k", b"", revision + 3, progress=True))
    cluster.advance(1.1)
    assert {told for _, told, _ in cluster.watched()} == {revision}
    for number in range(1, 4):
        assert cluster.do(Put(b"k", b"%d" % number)) == revision + number
    cluster.advance(0.1)
    assert [(told, keys) for _, told, keys in cluster.watched() if keys] == [(revision + 3, [b"k"])]


def test_who_asks_for_what_is_compacted_is_told_where_history_begins(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HISTORY_EVENTS_MAX", 1)
    first = cluster.do(Put(b"k", b"1"))
    cluster.do(Put(b"k", b"2"))
    cluster.watch(cluster.leader(), Watch(Scope.KEYS, b"k", b"", first))
    assert cluster.watched() == [(Code.COMPACTED, first + 1, [first + 1])]


def test_a_watch_of_a_wrong_form_or_too_many_are_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = cluster.leader()
    cluster.ask(leader, (b"watch", *PvWatch({"start": 1}).encode(IDENT)), "watcher")
    monkeypatch.setattr(watching, "WATCHES_MAX", 1)
    cluster.ask(leader, (b"one", *PvWatch({"start": b"k", "from": 1}).encode(IDENT)), "watcher")
    cluster.ask(leader, (b"two", *PvWatch({"start": b"k", "from": 1}).encode(IDENT)), "watcher")
    assert [(code, found) for code, _, found in cluster.watched()] == [
        (Code.BAD_COMMAND, ["not binary"]),
        (Code.BUSY, [1000]),
    ]


def test_many_events_of_one_revision_come_in_parts(cluster: Cluster) -> None:
    cluster.watch(cluster.leader(), Watch(Scope.KEYS, b"k", b"l", 1))
    revision = cluster.do(*(Put(b"k%d" % number, bytes(600_000)) for number in range(3)))
    assert cluster.watched() == [(2, revision, [b"k0"]), (2, revision, [b"k1"]), (0, revision, [b"k2"])]


def test_the_events_of_a_command_that_deletes_very_many_keys_can_be_read(cluster: Cluster) -> None:
    keys = [b"k%05d" % number for number in range(11_000)]
    for first in range(0, len(keys), limits.TXN_ITEMS_MAX):
        last = cluster.do(*(Put(key, b"") for key in keys[first : first + limits.TXN_ITEMS_MAX]))
    cluster.watch(cluster.leader(), Watch(Scope.KEYS, b"k", b"l", last + 1))
    revision = cluster.do(DeleteRange(b"k", b"l"))
    told = cluster.watched()
    assert [part[:2] for part in told] == [(Code.PENDING, revision), (Code.OK, revision)]
    assert [key for part in told for key in part[2]] == keys


def test_a_command_that_finds_no_room_is_to_be_sent_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "UNCOMMITTED_ENTRIES_MAX", 1)
    monkeypatch.setattr(serving, "PENDING_UPDATES_MAX", 0)
    cluster.stuck = set("abc")
    put = Txn((), (Put(b"k", b"v"),))
    assert cluster.kv(cluster.leader(), put)[-1][0] == Code.PENDING
    assert cluster.kv(cluster.leader(), put) == [(Code.BUSY, serving.RETRY_MS)]


def test_a_removed_peer_sends_its_clients_away() -> None:
    cluster = Cluster("abc")
    cluster.elect()
    cluster.do(Put(b"k", b""))
    leaving = cluster.follower()
    cluster.watch(leaving, Watch(Scope.KEYS, b"k", b""))
    before = len(cluster.watched())
    cluster.change(cluster.leader(), 900, cluster.voters.replace(leaving, ""))
    cluster.until(lambda: cluster.status(leaving).role == Role.REMOVED)
    cluster.advance(1.0)
    cluster.watch(leaving, Watch(Scope.KEYS, b"k", b""))
    leaders = [found for code, _, found in cluster.watched()[before:] if code == Code.NOT_LEADER]
    assert len(leaders) == 2
    assert cluster.pv_read(leaving, [1, [RANGE]])[0][0] == Code.NOT_LEADER


def test_a_follower_without_a_leader_shows_its_watchers_no_life(cluster: Cluster) -> None:
    follower = cluster.follower()
    cluster.watch(follower, Watch(Scope.KEYS, b"k", b"", 1, progress=True))
    cluster.cuts |= {(name, follower) for name in cluster.voters} | {(follower, name) for name in cluster.voters}
    cluster.until(lambda: cluster.status(follower).leader is None)
    told = len(cluster.watched())
    cluster.advance(5.0)
    assert len(cluster.watched()) == told
