"""Views computed anew at every tick, from nothing but the log."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from pavane.dataflow.chain import Chain
from pavane.dataflow.entries import Minted, decode
from pavane.dataflow.rows import Row, updates_of
from pavane.waltz.client import Waltz

EVERYTHING = 2**40
Expected = Callable[[list[dict[str, Any]]], Counter[Row]]
"""What a view must be where its table has these rows."""


def revenue(orders: list[dict[str, Any]]) -> Counter[Row]:
    """`SELECT customer, count(*), sum(cents) … GROUP BY customer`."""
    groups: dict[str, list[int]] = {}
    for each in orders:
        groups.setdefault(each["customer"], []).append(each["cents"])
    return Counter((customer, len(cents), sum(cents)) for customer, cents in groups.items())


async def wrong_ticks(
    log: Waltz, partitions: tuple[int, ...], ticks_in: int, views_in: int, views: Mapping[str, Expected]
) -> tuple[int, list[tuple[str, int]]]:
    """Return how many ticks there are, and the view and tick of each that is wrong. The rows of the table are JSON."""
    rows = {p: [json.loads(t.data) async for t in log.read(p, 0, EVERYTHING)] for p in partitions}
    entries = [decode(t.header, t.data) async for t in log.read(ticks_in, 0, EVERYTHING)]
    ticks = [entry for entry in entries if isinstance(entry, Minted)]
    assert [entry.tick for entry in ticks] == list(range(1, len(ticks) + 1))
    chains = {name: Chain(name) for name in views}
    updates: dict[str, list[tuple[Row, int, int]]] = {name: [] for name in views}
    async for transaction in log.read(views_in, 0, EVERYTHING):
        entry = decode(transaction.header, transaction.data)
        assert entry is not None
        table = chains[entry.chain].take(entry)
        updates[entry.chain] += updates_of(table) if table is not None else ()
    wrong = []
    for name, chain in chains.items():
        assert chain.created is not None
        held: Counter[Row] = Counter()
        for binding in ticks[: chain.upper - 1]:
            for row, time, diff in updates[name]:
                if time == binding.tick:
                    held[row] += diff
            there = [row for p, of in rows.items() for row in of[: binding.next[p]]]
            if binding.tick >= chain.created.as_of and +held != views[name](there):
                wrong.append((name, binding.tick))
    return len(ticks), wrong
