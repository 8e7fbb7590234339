"""Controllers and replicas of two generations lose nothing and tell nothing wrong; planted bugs are found."""

from collections.abc import Mapping

import pytest

from pavane.compute.core.collections import Collection
from pavane.compute.core.controller import ControllerCore, Effect, _Waiting
from pavane.compute.core.exports import Export
from pavane.compute.core.replica import ReplicaCore
from pavane.compute.state import as_of
from pavane.compute.wire.commands import DataflowDescription, MaterializedView
from pavane.compute.wire.common import CLOSED, Epoch
from pavane.compute.wire.responses import Response
from tests.sim.compute.world import World, play
from tests.sim.kit.seeds import BrokenError, played, replayable

SEEDS_MAX = 1000  # a planted bug is found by one of these, mostly by one of the first


@played(10, one_in=5)
def test_nothing_is_lost_and_nothing_is_wrong(seeds: range) -> None:
    for seed in seeds:
        with replayable(seed, lambda: 0.0):
            play(seed)


def found(*rules: str) -> None:
    """Play seeds until one of the rules breaks."""
    broken = next(filter(None, map(what_breaks, range(SEEDS_MAX))), None)
    assert broken is not None, f"{SEEDS_MAX} seeds did not find the planted bug"
    assert broken.startswith(rules), broken


def what_breaks(seed: int) -> str | None:
    try:
        play(seed)
    except BrokenError as error:
        return str(error)
    return None


def test_now_falls_without_the_floor_that_a_leader_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    tick = ControllerCore.tick
    monkeypatch.setattr(ControllerCore, "tick", lambda self, last, floor=None: tick(self, last))
    found("now never falls")


def test_a_subscribe_that_may_be_compacted_to_f_tells_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ControllerCore._wanted_since

    def planted(self: ControllerCore, collection: Collection, importers: list[Collection]) -> int:
        since = wanted(self, collection, importers)
        emitted = self._emitted.get(collection.id)
        return since if emitted is None or not collection.wanted else max(since, emitted)

    monkeypatch.setattr(ControllerCore, "_wanted_since", planted)
    found("told once")


def test_a_peek_without_a_hold_meets_compacted_data(monkeypatch: pytest.MonkeyPatch) -> None:
    send = ControllerCore._send_peek

    def planted(self: ControllerCore, waiting: _Waiting, collection: Collection, tick: int) -> None:
        send(self, waiting, collection, tick)
        collection.holds.clear()

    monkeypatch.setattr(ControllerCore, "_send_peek", planted)
    found("a peek is answered", "exact")


def test_an_import_that_is_not_held_is_not_readable_for_its_importer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Collection, "input_hold", CLOSED)
    found("preconditions hold")


def test_what_a_former_connection_says_is_taken_for_the_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = ControllerCore.receive

    def planted(self: ControllerCore, replica: str, _: Epoch, response: Response) -> tuple[Effect, ...]:
        known = self._replicas[replica]
        return () if known.connection is None else receive(self, replica, known.connection, response)

    monkeypatch.setattr(ControllerCore, "receive", planted)
    found("no replica is broken")


def test_definitions_are_lost_without_their_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    put = World.put
    monkeypatch.setattr(World, "put", lambda self, token, _: put(self, token, self.revision))
    found("no definition is lost")


def test_a_chain_skips_ticks_without_its_initial_as_of(monkeypatch: pytest.MonkeyPatch) -> None:
    high = as_of._high

    def planted(flow: DataflowDescription, chains: Mapping[str, int]) -> int:
        views = [sink.connection for sink in flow.sink_exports]
        new = any(isinstance(view, MaterializedView) and view.chain not in chains for view in views)
        return CLOSED if new else high(flow, chains)

    monkeypatch.setattr(as_of, "_high", planted)
    found("preconditions hold")


def test_a_peek_before_its_tick_is_complete_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    release = ReplicaCore._release

    def planted(self: ReplicaCore, export: Export) -> None:
        write, export.write = export.write, CLOSED
        release(self, export)
        export.write = write

    monkeypatch.setattr(ReplicaCore, "_release", planted)
    found("exact")


def test_an_expected_state_that_keeps_old_dataflows_alive_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicaCore, "_clean_up", lambda self: None)
    found("exact", "told once", "no replica is broken", "the chain is the truth", "all goes on", "preconditions hold")
