"""Which views Spark's executors maintain."""

import pytest

from pavane.dataflow.sql import parse
from pavane.spark.stages import covers

TABLE = "CREATE TABLE t (a BIGINT, b BIGINT) USING waltz OPTIONS (partitions '0');"


@pytest.mark.parametrize(("levels", "covered"), [(4, True), (30, False)])
def test_inner_selects_that_read_each_other_twice_do_not_double_the_plan_for_ever(levels: int, covered: bool) -> None:
    inner = ["x0 AS (SELECT a, b FROM t)"]
    for n in range(levels):
        of = f"SELECT a, b FROM x{n} WHERE b"
        inner.append(f"x{n + 1} AS ({of} = {n} UNION ALL {of} <> {n})")
    script = parse(f"{TABLE}CREATE MATERIALIZED VIEW v AS WITH {', '.join(inner)} SELECT a, b FROM x{levels}")
    assert covers(script, script.views[0]) is covered
