"""Tables and rules of the state (docs/specs/swim.md 5.3, 9.1, 10, 11.1, 17)."""

import itertools
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from pavane.parts.rates import BUCKETS_MAX, Bucket, SharedLimit
from pavane.parts.timers import Timers
from pavane.swim.state.members import TOMBSTONES_PER_PEER, Members, entry_hash
from pavane.swim.state.news import News, NewsQueue
from pavane.swim.state.precedence import RULES, Verdict, judge
from pavane.swim.state.suspicion import Suspicion, transmissions
from pavane.swim.wire.values import UNSPECIFIED, Address, NodeId, NodeInfo, State

VECTORS = {row["name"]: row for row in json.loads((Path(__file__).parent / "vectors.json").read_text())["auth"]}
ALIVE, SUSPECT, DEAD, LEFT = State
WHERE = Address.parse("10.0.0.1:7946")

# The rows of 5.3: what applies at h < g, h = g and h > g.
TABLE = {
    (ALIVE, ALIVE): "..a",
    (ALIVE, SUSPECT): "..a",
    (ALIVE, DEAD): "..a",
    (ALIVE, LEFT): "..a",
    (SUSPECT, ALIVE): ".aa",
    (SUSPECT, SUSPECT): ".ca",
    (SUSPECT, DEAD): "...",
    (SUSPECT, LEFT): "...",
    (DEAD, ALIVE): ".aa",
    (DEAD, SUSPECT): ".aa",
    (DEAD, DEAD): "..a",
    (DEAD, LEFT): "..a",
    (LEFT, ALIVE): ".aa",
    (LEFT, SUSPECT): ".aa",
    (LEFT, DEAD): ".aa",
    (LEFT, LEFT): "..a",
}


@pytest.mark.parametrize(("news", "known"), list(itertools.product(State, State)))
def test_precedence_is_that_of_the_table(news: State, known: State) -> None:
    words = {".": Verdict.IGNORE, "a": Verdict.APPLY, "c": Verdict.CONFIRM}
    found = [judge(news, gen, known, 5) for gen in (4, 5, 6)]
    assert found == [words[letter] for letter in TABLE[news, known]]
    assert len(RULES) == len(TABLE)


def info(node: int, gen: int = 1, address: Address = WHERE) -> NodeInfo:
    return NodeInfo(node, gen, address)


def test_the_digest_is_that_of_the_vectors() -> None:
    row = VECTORS["digest.three_entries"]["fields"]
    members = Members(8)
    for entry in row["entries"][:1] + row["entries"][2:]:
        members.add(info(entry["id"], entry["gen"]), State(entry["state"]), 0.0)
    members.add(info(999), DEAD, 0.0)
    digest = members.digest(NodeId(221, 3))
    assert (digest.entries, digest.xor.hex()) == (row["n"], row["x_hex"])


def test_the_digest_follows_every_change() -> None:
    members = Members(8)
    peer, _ = members.add(info(7), ALIVE, 0.0)
    for state, gen in ((SUSPECT, 1), (ALIVE, 2), (DEAD, 2), (ALIVE, 3)):
        members.change(peer, state, gen, WHERE, 0.0)
        listed = [entry_hash(NodeId(7, gen), state)] if state <= SUSPECT else []
        xor = entry_hash(NodeId(1, 1), ALIVE)
        for one in listed:
            xor ^= one
        assert members.digest(NodeId(1, 1)) == (len(listed) + 1, xor.to_bytes(8, "little"))
    members.forget(peer)
    assert members.digest(NodeId(1, 1)).entries == 1
    assert members.at(WHERE) == ()
    assert 7 not in members


def test_the_oldest_tombstone_makes_room() -> None:
    members = Members(1)
    evicted = [members.add(info(node), DEAD, 0.0)[1] for node in range(1, TOMBSTONES_PER_PEER + 3)]
    assert [peer.id for peer in evicted if peer] == [1, 2]
    assert len(members.tombstones) == TOMBSTONES_PER_PEER
    assert [peer.id for peer in members.from_id(0, 4)] == [3, 4]


@pytest.mark.parametrize("live", [2, 5, 7])
def test_in_a_small_group_everybody_is_drawn_before_anybody_again(live: int) -> None:
    members, rng = Members(8), random.Random(1)
    peers = [members.add(info(node), ALIVE, 0.0)[0] for node in range(1, live + 1)]
    drawn: Counter[int] = Counter()
    for _ in range(50):
        some = [peer.id for peer in members.in_turn(3, rng)]
        assert len(set(some)) == min(3, live)
        drawn.update(some)
        assert max(drawn.values()) - min(drawn[peer.id] for peer in peers) <= 1
    # Who does not fit keeps its turn.
    assert [peer.id for peer in members.in_turn(3, rng, lambda peer: peer.id == 2)] == [2]
    members.change(peers[1], DEAD, 1, WHERE, 0.0)
    assert 2 not in {peer.id for _ in range(5) for peer in members.in_turn(3, rng)}


@pytest.mark.parametrize("tombstones", [0, 40, 900])
@pytest.mark.parametrize("live", [1, 5, 60])
def test_peers_are_drawn_without_repetition(live: int, tombstones: int) -> None:
    members, rng = Members(300), random.Random(1)
    peers = [members.add(info(node), ALIVE, 0.0)[0] for node in range(1, live + 1)]
    for node in range(1000, 1000 + tombstones):
        members.add(info(node), DEAD, 0.0)
    drawn = [members.sample(3, rng, peers[0]) for _ in range(200)]
    assert all(len(set(some)) == min(3, live - 1) for some in drawn)
    assert {peer for some in drawn for peer in some} == set(peers[1:])


def test_a_suspicion_ends_sooner_the_more_confirm_it() -> None:
    suspicion = Suspicion(100.0, 5.0, 50, reporter=1)
    assert suspicion.due == 130.0
    assert not suspicion.confirm(1)
    assert not suspicion.confirm(0)
    ends = []
    for reporter in (2, 3, 4, 5):
        suspicion.confirm(reporter)
        ends.append(round(suspicion.due, 1))
    assert ends == [117.5, 110.2, 105.0, 105.0]


def test_in_a_tiny_group_a_suspicion_lasts_the_minimum() -> None:
    suspicion = Suspicion(100.0, 5.0, 4, reporter=1)
    assert not suspicion.confirm(2)
    assert suspicion.due == 105.0


@pytest.mark.parametrize(
    ("members", "loss", "times"), [(50, 0, 11), (100, 0, 12), (1000, 0, 14), (1, 0, 7), (10**6, 0.5, 40)]
)
def test_news_is_sent_as_often_as_the_group_needs(members: int, loss: float, times: int) -> None:
    assert transmissions(members, loss) == times


def order(queue: NewsQueue, count: int = 99, times: int = 3) -> list[int]:
    """Send the first pieces of the queue once; returns their ids."""
    taken: list[int] = []

    def fits(news: News) -> bool:
        if len(taken) < count:
            taken.append(news.about.id)
            return True
        return False

    queue.take(fits, times)
    return taken


def test_rarely_sent_news_goes_first_then_the_newest() -> None:
    queue = NewsQueue(10)
    for node in (1, 2, 3):
        queue.put(News(ALIVE, info(node)))
    assert order(queue, 2) == [3, 2]
    assert order(queue, 2)[0] == 1
    for _ in range(3):
        order(queue)
    assert len(queue) == 0


def test_newer_news_about_a_node_replaces_the_older() -> None:
    queue = NewsQueue(10)
    queue.put(News(SUSPECT, info(1), reporter=2))
    queue.put(News(SUSPECT, info(1), reporter=3))
    queue.put(News(SUSPECT, info(1), reporter=3))
    assert [news.reporter for news in queue] == [2, 3]
    queue.put(News(ALIVE, info(1, 2)))
    assert [news.kind for news in queue] == [ALIVE]


def test_a_suspicion_is_told_by_a_few_reporters_only() -> None:
    queue = NewsQueue(10)
    for reporter in range(1, 9):
        queue.put(News(SUSPECT, info(1), reporter))
    assert len(queue) == 4


def test_under_pressure_the_oldest_news_is_shed() -> None:
    queue = NewsQueue(3)
    for node in range(1, 6):
        queue.put(News(ALIVE, info(node)))
        order(queue, 1)
    assert sorted(news.about.id for news in queue) == [3, 4, 5]


def test_a_bucket_lets_through_its_rate() -> None:
    bucket = Bucket(10)
    assert [bucket.take(100.0) for _ in range(11)] == [True] * 10 + [False]
    assert [bucket.take(100.25) for _ in range(3)] == [True, True, False]


def test_a_bucket_goes_on_with_another_rate() -> None:
    bucket = Bucket(10)
    assert [bucket.take(0) for _ in range(11)] == [True] * 10 + [False]
    bucket.set_rate(1, 0.2)  # what came in until now, came at the old rate
    assert [bucket.take(at) for at in (0.2, 0.2, 1.1, 1.3)] == [True, True, False, True]


def test_a_flood_from_many_sources_meets_the_limit_of_all() -> None:
    limit = SharedLimit(50, 5)
    assert sum(limit.take("one", 100.0) for _ in range(20)) == 5
    assert sum(limit.take(source, 100.0) for source in range(3000)) == 45
    assert len(limit) == BUCKETS_MAX


def test_a_source_that_is_over_its_limit_takes_nothing_from_others() -> None:
    limit = SharedLimit(10, 2)
    for _ in range(100):
        limit.take("greedy", 100.0)
    assert [limit.take(source, 100.0) for source in "abcdefgh"] == [True] * 8


def test_timers_run_in_order_and_what_they_plan_waits() -> None:
    timers, ran = Timers(), list[str]()
    timers.plan(2.0, lambda: ran.append("second"))

    def first() -> None:
        ran.append("first")
        timers.plan(0.0, lambda: ran.append("again"))

    timers.plan(1.0, first)
    timers.plan(1.5, lambda: ran.append("never")).cancel()
    timers.plan(3.0, lambda: ran.append("later"))
    timers.run(2.0)
    assert ran == ["first", "second"]
    assert timers.next() == 0.0
    timers.run(2.0)
    assert ran[2:] == ["again"]
    timers.clear()
    assert timers.next() is None


def test_a_table_entry_without_an_address_is_a_tombstone_only() -> None:
    members = Members(4)
    members.add(NodeInfo(5, 1, UNSPECIFIED), LEFT, 0.0)
    assert len(members) == 0
    assert [peer.info.size for peer in members.from_id(0, 9)] == [10]
