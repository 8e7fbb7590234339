"""TPC-H, all 22 queries as views: their tables come in random order, and change; at every tenth tick they are exact."""

from collections import Counter
from contextlib import closing
from random import Random

import pytest

from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import Script
from pavane.dataflow.rows import Row, table_of, updates_of
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_schema
from tests.services.dataflow.oracle import expected, rounded
from tests.services.dataflow.tpch import QUERIES, TABLES, changes, contents

TICKS = 40
ENDS = (2, 7, 11, 21, 26, 31, 40, 41)
"""Steps end before these ticks: of one tick, or of several."""
CHANGES = changes(Random(5), TICKS)


def script(number: int) -> Script:
    return parse(f"{TABLES}CREATE MATERIALIZED VIEW v AS {QUERIES[number]}")


@pytest.mark.parametrize("number", range(len(QUERIES)), ids=lambda number: f"q{number + 1}")
def test_a_query_is_maintained(number: int) -> None:
    made = script(number)
    held, start, found = Counter[Row](), 1, []
    with closing(PlainEngine().open(made)) as state:
        flow = state.flow(made.views[0])
        for end in ENDS:
            came = [(table, (row, tick, diff)) for tick in range(start, end) for table, row, diff in CHANGES[tick - 1]]
            tables = {
                each.name: table_of([update for name, update in came if name == each.name], arrow_schema(each.columns))
                for each in made.tables
            }
            for row, _, diff in sorted(updates_of(flow.step(tables, end)), key=lambda update: update[1]):
                held[row] += diff
            start = end
            if end % 10 == 1:
                wanted = expected(made, contents(CHANGES[: end - 1]))
                found.append((end - 1, rounded(+held) == rounded(wanted), bool(wanted)))
    assert [tick for tick, right, _ in found if not right] == []
    assert any(some for _, _, some in found), "the query finds nothing"
