"""Watchers that are behind are read for together, some revisions at a time (docs/specs/raft.md 12.6)."""

import random
from typing import Any

import pytest

from pavane.raft.core import watching
from pavane.raft.core.watching import WINDOW_MESSAGES
from pavane.raft.errors import Code
from pavane.raft.machines import limits
from pavane.raft.machines.commands import END_OF_KEYS, Put
from pavane.raft.machines.history import History, Scope, Watch
from pavane.raft.wire.pv import PvWatch, PvWatchAcknowledge, PvWatchReply
from tests.services.raft.ensemble import IDENT, decoded
from tests.services.raft.test_keyspace import Cluster

Told = list[tuple[int, bytes]]  # revision and key
ALL = Watch(Scope.KEYS, b"", END_OF_KEYS, 1)


class Alone(Cluster):
    """One peer; every watcher is a client of its own."""

    def __init__(self) -> None:
        super().__init__("a")
        self.elect()
        self.happened: Told = []

    def write(self, key: bytes) -> None:
        self.happened.append((self.do(Put(key, b"")), key))

    def begin(self, watcher: str, watch: Watch) -> None:
        self.ask("a", (b"w", *PvWatch(watch.encode()).encode(IDENT)), watcher)

    def go_on(self, watcher: str, *, proceed: bool = True) -> None:
        last = self.messages(watcher)[-1].revision
        self.ask("a", (b"w", *PvWatchAcknowledge(last, proceed).encode(IDENT)), watcher)

    def messages(self, watcher: str) -> list[PvWatchReply]:
        return [decoded(PvWatchReply, frames) for frames in self.told(watcher)]

    def heard(self, watcher: str) -> Told:
        """What the watcher was told so far."""
        return [
            (message.revision, event[1])
            for message in self.messages(watcher)
            for event in message.events
            if isinstance(event, list) and isinstance(event[1], bytes)
        ]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Alone:
    monkeypatch.setattr(watching, "ALONE_REVISIONS", 2)
    monkeypatch.setattr(watching, "GROUP_STREAMS", 3)
    monkeypatch.setattr(watching, "GROUP_REVISIONS", 4)
    return Alone()


@pytest.mark.parametrize("seed", range(5))
def test_all_are_told_everything_of_their_range_once_and_in_order(alone: Alone, seed: int) -> None:
    rng = random.Random(seed)
    watches: dict[str, Watch] = {}

    def step() -> None:
        match rng.choice(("change", "change", "change", "begin", "acknowledge", "wait")):
            case "change":
                alone.write(rng.choice((b"a", b"b", b"ba", b"c")))
            case "begin":
                name = f"w{len(watches)}"
                start, end = rng.choice(((b"a", b""), (b"b", b"c"), (b"", END_OF_KEYS), (b"none", b""), (b"a", b"ba")))
                watches[name] = Watch(Scope.KEYS, start, end, rng.randint(1, alone.happened[-1][0] + 2))
                alone.begin(name, watches[name])
            case "acknowledge" if watches:
                name = rng.choice(list(watches))
                if alone.messages(name):
                    alone.go_on(name)
            case _:
                alone.advance(rng.choice((0.001, 0.02)))

    alone.write(b"a")
    for _ in range(150):
        step()
    for _ in range(20):
        alone.advance(0.3)
        for name in watches:
            if alone.messages(name):
                alone.go_on(name)
    assert len(watches) > 10
    for name, watch in watches.items():
        first, last = watch.start, watch.end or watch.start + b"\0"
        assert alone.heard(name) == [
            (revision, key)
            for revision, key in alone.happened
            if revision >= watch.first and first <= key and (last == END_OF_KEYS or key < last)
        ]


def test_one_walk_reads_for_a_group(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "GROUP_STREAMS", 100)
    for _ in range(20):
        alone.write(b"other")
    walked = 0
    since = History.since

    def counting(history: History, revision: int) -> Any:
        nonlocal walked
        walked += 1
        return since(history, revision)

    for number in range(50):
        alone.begin(f"w{number}", Watch(Scope.KEYS, b"k%d" % number, b"", 1))
    monkeypatch.setattr(History, "since", counting)
    alone.advance(0.2)
    assert walked == 5  # of four revisions each, for all fifty
    alone.write(b"k7")
    assert [number for number in range(50) if alone.heard(f"w{number}")] == [7]


def test_who_cancels_or_begins_anew_while_behind_is_not_read_for_any_more(alone: Alone) -> None:
    for _ in range(10):
        alone.write(b"other")
    for name in ("cancelled", "anew", "stays"):
        alone.begin(name, Watch(Scope.KEYS, b"k", b"", 0 if name == "cancelled" else 1))
    alone.go_on("cancelled", proceed=False)
    alone.begin("anew", Watch(Scope.KEYS, b"l", b"", 1))
    alone.advance(0.1)
    alone.write(b"k")
    alone.write(b"l")
    assert [key for _, key in alone.heard("cancelled")] == []
    assert [key for _, key in alone.heard("anew")] == [b"l"]
    assert [key for _, key in alone.heard("stays")] == [b"k"]


def test_what_is_forgotten_before_it_was_read_is_told(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(20):
        alone.write(b"other")
    for name in ("w1", "w2", "w3", "w4"):
        alone.begin(name, Watch(Scope.KEYS, b"k", b"", 1))
    alone.advance(0.001)  # the first group has begun
    monkeypatch.setattr(limits, "HISTORY_EVENTS_MAX", 3)
    alone.write(b"k")
    alone.advance(0.2)
    first_known = alone.happened[-3][0]
    for name in ("w1", "w2", "w3", "w4"):
        [message] = alone.messages(name)
        assert (message.code, message.revision) == (Code.COMPACTED, first_known)


def test_a_full_window_holds_up_its_watcher_alone(alone: Alone) -> None:
    for _ in range(WINDOW_MESSAGES + 5):
        alone.write(b"hot")
    alone.write(b"cold")
    alone.begin("slow", ALL)
    alone.begin("quick", Watch(Scope.KEYS, b"cold", b"", 1))
    alone.advance(0.2)
    assert alone.heard("slow") == alone.happened[:WINDOW_MESSAGES]
    assert alone.heard("quick") == alone.happened[-1:]
    alone.go_on("slow")
    alone.advance(0.2)
    assert alone.heard("slow") == alone.happened
