"""Replicas of a key-value machine under random commands and restarts (docs/specs/raft.md 12, 18.2 S4, S12).

They are compared with each other and with a naive model.
"""

import random
from collections.abc import Iterator

import pytest

from pavane.raft.errors import Code
from pavane.raft.machines import limits
from pavane.raft.machines.commands import encode_command
from pavane.raft.machines.history import Scope, Watch
from pavane.raft.machines.keyvalue import KeyValue, Tree
from pavane.raft.machines.state import decode_result
from tests.sim.machine_model import Model, random_command

COMMANDS = 250
SMALL = {"STORE_KEYS_MAX": 9, "STORE_BYTES_MAX": 60}
FORGETFUL = {"HISTORY_EVENTS_MAX": 12, "RESULTS_KEPT_MAX": 5, "SNAPSHOT_SLICE": 1}


class Replica:
    """A machine that may be replaced by one that begins from a snapshot, also one that is taken slowly."""

    def __init__(self) -> None:
        self.machine: KeyValue = Tree()
        self._snapshot: tuple[int, list[bytes], Iterator[bytes]] | None = None
        self._log: list[tuple[int, bytes, bytes]] = []

    def apply(self, index: int, reqid: bytes, data: bytes) -> bytes:
        self._log.append((index, reqid, data))
        return self.machine.apply(index, reqid, memoryview(data)).data

    def snapshot_step(self, index: int) -> None:
        """Take one more slice of the snapshot under way, or begin one."""
        if self._snapshot is None:
            self._snapshot = (index, [], self.machine.freeze())
            self._log.clear()
            return
        at, parts, rest = self._snapshot
        part = next(rest, None)
        if part is not None:
            parts.append(part)
            return
        self._snapshot = None
        machine = Tree()
        machine.restore(parts, at)
        for entry in self._log:
            machine.apply(*entry)
        self.machine = machine


class Follower:
    """A watcher that goes from replica to replica and misses nothing."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._next = 1
        self.seen: dict[int, list[tuple[object, ...]]] = {}

    def follow(self, machine: KeyValue, applied: int) -> None:
        watch = Watch(self._watch.scope, self._watch.start, self._watch.end, self._next)
        cursor = machine.watch(watch.encode(), applied)
        while (found := cursor.take(machine.state.history, applied)) is not None:
            assert found[0] not in self.seen
            self.seen[found[0]] = [tuple(event) for event in found[1]]
        self._next = cursor.next


def contents(machine: KeyValue) -> list[object]:
    state = machine.state
    return [dict(state.keys.between(b"", None)), dict(state.nodes.between(b"", None)), dict(state.leases)]


def model_contents(model: Model) -> list[object]:
    keys = {
        key: (item["value"], item["create"], item["mod"], item["version"], item["lease"])
        for key, item in model.keys.items()
    }
    nodes = {
        path: (
            *(node[name] for name in ("data", "v", "cv", "created", "create", "mod", "lease")),
            len(model._children(path)),
        )
        for path, node in model.nodes.items()
    }
    return [keys, nodes, set(model.leases)]


@pytest.mark.parametrize(
    "patched", [{}, SMALL, FORGETFUL, SMALL | FORGETFUL], ids=["wide", "small", "forgetful", "both"]
)
@pytest.mark.parametrize("seed", range(8))
def test_replicas_that_restart_agree_with_each_other_and_with_the_model(
    seed: int, patched: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in patched.items():
        monkeypatch.setattr(limits, name, value)
    rng = random.Random(seed)
    model = Model(limits.STORE_KEYS_MAX, limits.STORE_BYTES_MAX)
    replicas = [Replica() for _ in range(3)]
    followers = [Follower(Watch(Scope.KEYS, b"", b"\0")), Follower(Watch(Scope.SUBTREE, b"/", b""))]
    index = 0
    for _ in range(COMMANDS):
        index += rng.choice([1, 1, 1, 2])  # other kinds of entries lie between
        command = random_command(rng, index, list(model.leases))
        reqid, data = rng.randbytes(12), encode_command(command)
        expected = model.apply(index, command)
        results = [replica.apply(index, reqid, data) for replica in replicas]
        assert results[1:] == results[:-1]
        assert list(decode_result(results[0])) == expected, command
        for replica in replicas[1:]:
            if rng.random() < 0.4:
                replica.snapshot_step(index)
        for follower in followers:
            follower.follow(rng.choice(replicas).machine, index)
        kept = [replica.machine.result_of(reqid) for replica in replicas]
        assert all(result is not None and result.data == results[0] for result in kept)
        assert len({replica.machine.digest() for replica in replicas}) == 1, command
    for replica in replicas:
        found = contents(replica.machine)
        assert [*found[:2], set(replica.machine.state.leases)] == model_contents(model)
    for follower, of_tree in zip(followers, (False, True), strict=True):
        wanted = {
            revision: [event for event in events if (event[0] >= 17) is of_tree]
            for revision, events in model.events.items()
        }
        assert follower.seen == {revision: events for revision, events in wanted.items() if events}


def test_random_commands_meet_every_outcome() -> None:
    codes: set[Code] = set()
    for seed in range(6):
        rng = random.Random(seed)
        model = Model(*((9, 60) if seed % 2 else (1000, 10_000)))
        for index in range(1, COMMANDS):
            codes.add(model.apply(index, random_command(rng, index, list(model.leases)))[0])
    outcomes = {Code.OK, Code.BAD_COMMAND, Code.NO_SPACE, Code.NO_LEASE, Code.NO_NODE, Code.NODE_EXISTS}
    assert codes == outcomes | {Code.BAD_VERSION, Code.NOT_EMPTY, Code.EPHEMERAL_PARENT}
