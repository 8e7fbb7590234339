"""At which tick each dataflow starts when a controller starts (docs/specs/compute.md 10.7)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pavane.compute.wire.commands import DataflowDescription, MaterializedView
from pavane.compute.wire.common import CLOSED


@dataclass(frozen=True, slots=True)
class Stored:
    """Where an input in the log is readable: ``since`` <= tick < ``upper``."""

    since: int
    upper: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The ``as_of`` of a dataflow; ``None`` with ``reason`` when it cannot start, without when it has finished."""

    as_of: int | None
    reason: str = ""


def choose_as_of(
    dataflows: Sequence[DataflowDescription],
    stored: Mapping[str, Stored],
    chains: Mapping[str, int],
    *,
    tick: int,
    lag: int = 1,
) -> tuple[Choice, ...]:
    """Return a choice for each dataflow; imports come before importers, and the as_of given in them does not matter.

    ``chains`` holds the upper of each chain that exists, by chain name. ``tick`` is the present tick.
    """
    of = {id_: number for number, flow in enumerate(dataflows) for id_ in flow.exports}
    imports = [[of[index.id] for index in flow.indexes if index.id in of] for flow in dataflows]
    low = [_low(flow, stored) for flow in dataflows]
    high = [_high(flow, chains) for flow in dataflows]
    finished = [_finished(flow, chains) for flow in dataflows]
    for number, before in enumerate(imports):
        low[number] = max([low[number], *(low[each] for each in before)])
    for number in reversed(range(len(dataflows))):
        for each in imports[number]:
            if not finished[number]:
                high[each] = min(high[each], high[number])
    failed = [
        low[number] > high[number] or any(index.id not in of for index in flow.indexes)
        for number, flow in enumerate(dataflows)
    ]
    for number, before in enumerate(imports):
        failed[number] = failed[number] or any(failed[each] for each in before)
    chosen = [
        _chosen(low[number], high[number], _soft(flow, stored, tick, lag)) for number, flow in enumerate(dataflows)
    ]
    for number in reversed(range(len(dataflows))):
        for each in imports[number]:
            if not finished[number] and not failed[number]:
                chosen[each] = min(chosen[each], chosen[number])
    return tuple(
        Choice(None)
        if finished[number]
        else Choice(None, f"SinceAdvanced: readable from {low[number]} on, but it must start by {high[number]}")
        if failed[number]
        else Choice(chosen[number])
        for number in range(len(dataflows))
    )


def _low(flow: DataflowDescription, stored: Mapping[str, Stored]) -> int:
    return max((stored[source.id].since for source in flow.sources if source.id in stored), default=0)


def _high(flow: DataflowDescription, chains: Mapping[str, int]) -> int:
    """No tick of a chain may be skipped: start at its upper at the latest, without a chain where it is to begin."""
    views = (sink.connection for sink in flow.sink_exports if isinstance(sink.connection, MaterializedView))
    return min((chains.get(view.chain, view.initial_as_of) for view in views), default=CLOSED)


def _finished(flow: DataflowDescription, chains: Mapping[str, int]) -> bool:
    views = [sink.connection for sink in flow.sink_exports if isinstance(sink.connection, MaterializedView)]
    return bool(views) and not flow.index_exports and all(chains.get(view.chain) == CLOSED for view in views)


def _soft(flow: DataflowDescription, stored: Mapping[str, Stored], tick: int, lag: int) -> list[int]:
    uppers = [stored[source.id].upper for source in flow.sources if source.id in stored]
    bounds = [tick, *(upper - 1 for upper in uppers)]
    return [*bounds, *(upper - lag for upper in uppers)] if flow.index_exports else bounds


def _chosen(low: int, high: int, soft: list[int]) -> int:
    for bound in soft:
        if bound >= low:
            high = min(high, bound)
    return high if high < CLOSED else low
