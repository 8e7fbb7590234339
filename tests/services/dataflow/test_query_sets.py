"""All queries of TPC-H, and those of NEXMark from 0 to 8, as views: at every tenth tick they are exact."""

from collections import Counter
from contextlib import closing
from random import Random

import pytest

from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.rows import Row, table_of, updates_of
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_schema
from tests.services.dataflow import nexmark, tpch
from tests.services.dataflow.oracle import expected, rounded
from tests.services.dataflow.tpch import contents

TICKS = 40
ENDS = (2, 7, 11, 21, 26, 31, 40, 41)
"""Steps end before these ticks: of one tick, or of several."""
TPCH = [
    pytest.param(tpch.TABLES, query, tpch.changes(Random(5), TICKS), id=f"q{number}")
    for number, query in enumerate(tpch.QUERIES, 1)
]
NEXMARK = [
    pytest.param(nexmark.TABLES, query, nexmark.changes(Random(5), TICKS), id=f"nexmark{number}")
    for number, query in enumerate(nexmark.QUERIES)
]


@pytest.mark.parametrize(("tables", "query", "changes"), [*TPCH, *NEXMARK])
def test_a_query_is_maintained(tables: str, query: str, changes: list[list[tuple[str, Row, int]]]) -> None:
    made = parse(f"{tables}CREATE MATERIALIZED VIEW v AS {query}")
    held, start, found = Counter[Row](), 1, []
    with closing(PlainEngine().open(made)) as state:
        flow = state.flow(made.views[0])
        for end in ENDS:
            came = [(table, (row, tick, diff)) for tick in range(start, end) for table, row, diff in changes[tick - 1]]
            inputs = {
                each.name: table_of([update for name, update in came if name == each.name], arrow_schema(each.columns))
                for each in made.tables
            }
            for row, _, diff in sorted(updates_of(flow.step(inputs, end)), key=lambda update: update[1]):
                held[row] += diff
            start = end
            if end % 10 == 1:
                wanted = expected(made, contents(changes[: end - 1]))
                found.append((end - 1, rounded(+held) == rounded(wanted), bool(wanted)))
    assert [tick for tick, right, _ in found if not right] == []
    assert any(some for _, _, some in found), "the query finds nothing"
