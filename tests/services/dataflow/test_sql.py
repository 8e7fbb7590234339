"""Scripts: what is known, and what is refused with line, column and what to write instead."""

from contextlib import nullcontext

import pytest

from pavane.dataflow import sql
from pavane.dataflow.evaluating import QueryError
from pavane.dataflow.explaining import explained
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.plan import digests
from pavane.dataflow.ports import Column, Format, Mode, SqlError
from pavane.dataflow.querying import Query
from pavane.dataflow.reading import TOKENS_MAX
from pavane.dataflow.sql import parse

TABLES = """CREATE TABLE orders (id INT, customer STRING, cents BIGINT, price DECIMAL(12,2), at TIMESTAMP) USING waltz
OPTIONS (partitions '0-2,7', format 'json', mode 'DROPMALFORMED');
CREATE TABLE names (id BIGINT, name STRING) USING waltz OPTIONS (partitions '3');
"""


def test_a_script() -> None:
    found = parse(
        TABLES
        + "CREATE MATERIALIZED VIEW Revenue AS SELECT customer, count(*) AS n, sum(price) AS p FROM orders GROUP BY 1"
    )
    orders = found.tables[0]
    assert (orders.partitions, orders.format, orders.mode, orders.diff) == (
        (0, 1, 2, 7),
        Format.JSON,
        Mode.DROPMALFORMED,
        False,
    )
    assert orders.columns[0] == Column("id", "BIGINT")
    (view,) = found.views
    assert (view.name, view.tables) == ("Revenue", ("orders",))
    assert view.columns == (Column("customer", "STRING"), Column("n", "BIGINT"), Column("p", "DECIMAL(38,2)"))


def test_equal_queries_have_equal_plans() -> None:
    texts = (
        "SELECT customer, sum(cents) AS c FROM orders WHERE cents > 1 GROUP BY customer",
        "select  o.customer,sum(o.cents) AS c\nfrom orders AS o where (o.cents>1) group by O.CUSTOMER",
    )
    plans = {parse(f"{TABLES}CREATE MATERIALIZED VIEW v AS {text}").views[0].plan for text in texts}
    assert len(plans) <= 2
    assert parse(f"{TABLES}CREATE MATERIALIZED VIEW w AS {texts[0]}").views[0].plan in plans


def test_a_plan_is_what_it_was_so_that_kept_state_stays() -> None:
    """Digests of an older version: state of another one is built anew, from the whole log."""
    tables = "".join(
        f"CREATE TABLE {name} ({columns}) USING waltz OPTIONS (partitions '{place}');"
        for place, (name, columns) in enumerate(
            (("a", "id BIGINT, x BIGINT"), ("b", "id2 BIGINT, y BIGINT"), ("c", "x3 BIGINT, z BIGINT"))
        )
    )
    counted = "(SELECT x3, count(*) AS n FROM c GROUP BY x3) s"
    others = "(SELECT id2, count(*) AS n FROM b GROUP BY id2) p"
    found = [
        digests(parse(f"{tables}CREATE MATERIALIZED VIEW v AS SELECT a.id FROM {text}"), 1)["v"][:16]
        for text in (
            f"a, b, {counted} WHERE id = id2 AND s.n = y",
            f"a, {others}, {counted} WHERE id = id2 AND x3 = x",
        )
    ]
    assert found == ["c6b6a2f65ab2eba6", "8caccab7e50d29dd"]


@pytest.mark.parametrize(
    ("select", "column", "words"),
    [
        ("SELECT customr FROM orders", 8, "there is no column customr. Is customer meant?"),
        (
            "SELECT id FROM order_s",
            16,
            "there is no table order_s, and no view before this one. Known here: names, orders",
        ),
        ("SELECT customer, FROM orders", 16, "nothing follows this comma"),
        ("SELECT customer FROM orders GROUP", 29, "GROUP is not complete"),
        ("SELECT * FROM orders", 8, "* is not supported. Name the columns"),
        ("SELECT rand() AS r FROM orders", 8, "RAND() is not supported. Known: "),
        ("SELECT now() AS r FROM orders", 8, "now() stands in WHERE alone, in a comparison that must be true. Write"),
        *(
            (f"SELECT {name}(id > 1) AS r FROM orders", None, f"{name.upper()}(id > 1) is not supported. Known: ")
            for name in ("bool_and", "bool_or", "every", "any", "some")
        ),
        ("SELECT id, ntile(2) OVER (ORDER BY id) AS s FROM orders", 12, "NTILE(2) is no window function here"),
        (
            "SELECT id, row_number() OVER (PARTITION BY cents) AS s FROM orders",
            12,
            "ROW_NUMBER takes ORDER BY, and no frame",
        ),
        ("SELECT sum(cents) OVER (ORDER BY id RANGE 1 PRECEDING) AS s FROM orders", 8, "a frame is one of ROWS"),
        ("SELECT count(DISTINCT id) OVER () AS s FROM orders", 8, "is no window function here. Known: ROW_NUMBER"),
        ("SELECT id FROM orders WHERE rank() OVER (ORDER BY id) = 1", 29, "is not supported. Known"),
        ("SELECT count(*) AS n FROM orders HAVING sum(count(*)) OVER () > 1", None, "stands in SELECT and QUALIFY"),
        (
            f"SELECT {', '.join(f'sum(id + {i}) AS c{i}' for i in range(101))} FROM orders",
            None,
            "more than 100 aggregates",
        ),
        (
            "SELECT o.id FROM orders o, names n FULL JOIN names m ON n.id = m.id",
            46,
            "FULL JOIN behind a comma or CROSS",
        ),
        ("SELECT id, DATE '2026-02-30' AS d FROM orders", 17, "'2026-02-30' is no DATE. Write DATE '2026-12-31'"),
        (
            "SELECT id, count(*) AS n FROM orders GROUP BY id HAVING id IN (SELECT id FROM names)",
            71,
            "a SELECT is no part of an expression here. Write it in WHERE, or join it in FROM",
        ),
        ("SELECT id FROM orders QUALIFY id > 1", 31, "is about window functions, and there is none"),
        ("SELECT customer, cents FROM orders GROUP BY customer", 18, "column cents is neither grouped nor aggregated"),
        ("SELECT count(*) FROM orders", 8, "COUNT(*) has no name. Write AS NAME"),
        ("SELECT id, cents AS ID FROM orders", 12, "two columns are called ID"),
        ("SELECT id FROM orders ORDER BY id", 32, "a view has no order. Order where it is read, or add LIMIT"),
        ("SELECT id FROM orders INTERSECT ALL SELECT id FROM names", 44, "INTERSECT ALL is not supported"),
        (
            "SELECT id, cents, rank() OVER (ORDER BY id) AS r FROM orders GROUP BY CUBE(id, cents)",
            None,
            "function beside",
        ),
        ("SELECT id, grouping(cents) AS n FROM orders GROUP BY ROLLUP(id)", 12, "GROUPING takes one expression of the"),
        (
            "SELECT count(*) AS n FROM orders GROUP BY CUBE(id, cents, customer, id + 1, id + 2, id + 3, id + 4)",
            None,
            "there are more than 64 grouping sets",
        ),
        ("SELECT id FROM orders UNION ALL SELECT id, id AS x FROM names", 40, "UNION of 1 and 2 columns"),
        ("SELECT id FROM orders UNION ALL SELECT customer AS id FROM orders", 40, "column id is BIGINT in the first"),
        ("SELECT id FROM v", 16, "there is no table v, and no view before this one"),
        ("SELECT x.id FROM (SELECT idd FROM orders) x", 26, "there is no column idd. Is id meant?"),
        ("SELECT x.id FROM (SELECT id FROM orders) x JOIN (SELECT id FROM names) X ON x.id = X.id", 57, "with itself"),
        ("SELECT x.i FROM (SELECT id FROM orders) x(i)", 43, "i is not supported here"),
        (
            "SELECT o.id FROM orders o JOIN names n ON o.id = n.id JOIN names m ON n.x = m.id",
            71,
            "there is no column n.x",
        ),
        (
            "SELECT o.id FROM orders o LEFT SEMI JOIN names n ON o.id = n.id",
            None,
            "for SEMI and ANTI write [NOT] EXISTS",
        ),
        ("SELECT o.custmer FROM orders o JOIN names n ON o.id = n.id", 8, "Is customer meant?"),
        ("WITH x AS (SELECT id FROM y), y AS (SELECT id FROM orders) SELECT id FROM x", 27, "there is no table y"),
        ("WITH x AS (SELECT id FROM orders), X AS (SELECT id FROM orders) SELECT id FROM x", 36, "WITH names X twice"),
        ("WITH RECURSIVE x AS (SELECT id FROM orders) SELECT id FROM x", None, "RECURSIVE is not supported here"),
        ("SELECT o.id FROM orders o FULL JOIN names n ON o.id < n.id", 37, "is no equality between the two tables"),
        ("SELECT o.id FROM orders o RIGHT JOIN names n ON TRUE", 38, "is no equality between the two tables"),
        ("SELECT id FROM orders o JOIN names n ON o.id = n.id", 8, "column id is ambiguous"),
        (  # the table that is joined first does not have it
            "SELECT m.key FROM orders o, names n, (SELECT cents AS key FROM orders) m WHERE id = m.key",
            80,
            "column id is ambiguous",
        ),
        ("SELECT customer || cents AS x FROM orders", 20, "cents is BIGINT, not a STRING"),
        ("SELECT customer + 1 AS x FROM orders", 8, "customer is STRING, not a number"),
        ("SELECT id FROM orders WHERE cents", 29, "cents is BIGINT, not a condition"),
        ("SELECT id FROM orders WHERE customer = 1", 29, "a comparison of BIGINT and STRING. CAST one"),
        (
            "SELECT CAST(customer AS BIGINT) AS x FROM orders",
            13,
            "a cast from STRING to BIGINT is not supported. Known: ",
        ),
        ("SELECT avg(price) AS x FROM orders", 8, "avg of DECIMAL is not supported"),
        ("SELECT sum(id) OVER (ORDER BY id ROWS 2 FOLLOWING) AS s FROM orders", 8, "a frame ends before it begins"),
        (
            "SELECT sum(id) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND UNBOUNDED PRECEDING) AS s FROM orders",
            8,
            "a frame ends before it begins",
        ),
        (
            "SELECT sum(id) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED FOLLOWING AND 1 FOLLOWING) AS s FROM orders",
            8,
            "a frame ends before it begins",
        ),
        (
            "SELECT sum(id) OVER (ORDER BY id ROWS 2147483648 PRECEDING) AS s FROM orders",
            8,
            "a frame goes from a number of rows",
        ),
        ("SELECT lag(id, 2147483648) OVER (ORDER BY id) AS s FROM orders", 8, "LAG goes a literal number of rows"),
        ("SELECT id FROM orders ORDER BY 2 LIMIT 1", 32, "there is no column 2: the SELECT makes 1"),
        ("SELECT count(*) AS n FROM orders GROUP BY 0", 43, "there is no column 0: the SELECT makes 1"),
        ("SELECT id, (SELECT max(id) FROM names) FROM orders", 20, "a SELECT as a column has no name. Write AS NAME"),
        (
            "SELECT id FROM orders o WHERE id NOT IN (SELECT max(n.id) FROM names n WHERE n.id = o.cents)",
            49,
            "an aggregate with columns of the outer SELECT behind IN. Write = or <>",
        ),
        ("SELECT id FROM orders LIMIT 20000", 29, "LIMIT and OFFSET take a number up to 10000"),
        ("SELECT NULL AS x FROM orders", 16, "a column that is always NULL has no type"),
        ("SELECT sum(DISTINCT cents) AS x FROM orders", 8, "DISTINCT is known of count(DISTINCT x) alone"),
        ("SELECT id FROM orders TABLESAMPLE (10 PERCENT)", None, "is not supported here"),
        (
            "SELECT id FROM orders WHERE id IN (SELECT id, id AS x FROM names)",
            43,
            "IN (SELECT …) of 2 columns. Name one",
        ),
        (
            "SELECT id FROM orders WHERE customer IN (SELECT id FROM names)",
            29,
            "STRING is compared with BIGINT. CAST",
        ),
        (
            "SELECT id FROM orders WHERE id IN (SELECT n.id FROM names n WHERE n.id = x.cents)",
            74,
            "FROM of this SELECT has no x",
        ),
        ("SELECT id FROM orders WHERE EXISTS (SELECT n.id FROM names n WHERE n.id = customer)", 44, "is compared with"),
        (
            "SELECT id FROM orders WHERE id > (SELECT id FROM names)",
            42,
            "may give more than one row. Take an aggregate",
        ),
        ("SELECT id FROM orders WHERE id > (SELECT max(n.id) AS m FROM names n WHERE n.id < cents)", 76, "no equality"),
        (
            "SELECT id, (SELECT max(id) AS a, min(id) AS b FROM names) AS m FROM orders",
            20,
            "in an expression of 2 columns",
        ),
        (
            "SELECT o.id FROM orders o JOIN names n ON o.id = n.id AND n.id IN (SELECT id FROM orders)",
            75,
            "a SELECT is no part",
        ),
        ("SELECT id AS __diff FROM orders", 8, "__diff is no name of a column"),
        ("SELECT id, 'a' || (SELECT max(id) FROM names) AS x FROM orders", 27, "is BIGINT, not a STRING"),
        ("SELECT id FROM orders WHERE id + 1 = 2 AND abs(EXISTS (SELECT id FROM names)) = 1", 63, "is BOOLEAN, not a"),
        (
            f"SELECT id IN ({'1, ' * 2000}1) AS x FROM orders ORDER BY {', '.join(['NOT x'] * 20)} LIMIT 1",
            None,
            "names here stand for expressions that are too long. Make an inner SELECT of them",
        ),
        ("SELECT id AS `made 0` FROM orders", 8, "made 0 is no name of a column. Write AS NAME behind it"),
        ("SELECT id AS `` FROM orders", 8, "has no name. Write AS NAME behind it"),
        ("SELECT s.`` AS x FROM (SELECT id AS `` FROM orders) s", None, "has no name. Write AS NAME behind it"),
        (r"SELECT id, '\ud800' AS x FROM orders", None, r"\ud800 is no letter"),
        ("SELECT id, sum(rank() OVER (ORDER BY id)) OVER () AS s FROM orders", None, "stands within another one"),
        ("SELECT count() AS n FROM orders", None, "an argument is missing"),
        ("SELECT id, count() OVER () AS n FROM orders", None, "an argument is missing"),
        ("SELECT id, year() AS y FROM orders", None, "an argument is missing"),
        (
            "SELECT id, (SELECT id FROM names FETCH FIRST 1 ROWS ONLY) AS m FROM orders",
            None,
            "may give more than one row",
        ),
        (
            "SELECT id FROM orders o WHERE id IN (SELECT rank() OVER (ORDER BY n.id) FROM names n WHERE n.id = o.id)",
            None,
            "a window function beside columns of the outer SELECT. Put it into an inner SELECT in FROM",
        ),
        ("SELECT substring(customer) AS s FROM orders", None, "a literal start and length, both from 1"),
        ("SELECT substring(customer, 2147483648) AS s FROM orders", None, "a literal start and length, both from 1"),
    ],
)
def test_what_is_refused(select: str, column: int | None, words: str) -> None:
    with pytest.raises(SqlError) as refused:
        parse(f"{TABLES}CREATE MATERIALIZED VIEW v AS\n{select}")
    assert words in str(refused.value)
    if column is not None:
        assert (refused.value.line, refused.value.column) == (5, column), str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the script has no view"),
        ("SELEC 1", "line 1, column 7: "),
        ("DROP TABLE x", "a script has tables and views"),
        ("CREATE TABLE t (a BIGINT) USING parquet", "table t is not made of the log. Write USING waltz"),
        ("CREATE TABLE t (a BIGINT) USING waltz", "partitions '' are none"),
        ("CREATE TABLE t (__TIME BIGINT) USING waltz OPTIONS (partitions '0')", "__TIME is no name of a column"),
        ("CREATE TABLE t (a BIGINT) USING waltz OPTIONS (partitions '5-1')", "partitions '5-1' are none"),
        (
            "CREATE TABLE t (a BIGINT) USING waltz OPTIONS (partitions '0', fromat 'json')",
            "fromat is no option of a table",
        ),
        ("CREATE TABLE t (a BIGINT) USING waltz OPTIONS (partitions '0', format 'csv')", "format 'csv' is not known"),
        ("CREATE TABLE t (a BIGINT, b BIGINT) USING waltz OPTIONS (partitions '0', key 'c')", "key 'c' is no key of"),
        (
            "CREATE TABLE t (a BIGINT, b BIGINT) USING waltz OPTIONS (partitions '0', key 'b,a')",
            "key 'b,a' is no key of",
        ),
        (
            "CREATE TABLE t (a BIGINT, b BIGINT) USING waltz OPTIONS (partitions '0', key 'a', diff 'true')",
            "a table with a key has neither diff nor the format raw",
        ),
        ("CREATE TABLE t (a MAP<STRING, INT>) USING waltz OPTIONS (partitions '0')", "no column has the type"),
        ("CREATE TABLE t (a BIGINT, A STRING) USING waltz OPTIONS (partitions '0')", "column A is there twice"),
        ("CREATE TABLE t (a BIGINT) USING waltz OPTIONS (partitions '0', format 'raw')", "a raw table has the columns"),
        ("CREATE TABLE t (a DECIMAL(40,2)) USING waltz OPTIONS (partitions '0')", "DECIMAL(40,2) is no type"),
        ("CREATE VIEW v (a) AS SELECT 1 AS a", "view v is not of the known form"),
        ("CREATE MATERIALIZED VIEW v AS SELECT 1 AS x", "the SELECT has no FROM"),
        (f"{TABLES}CREATE TABLE orders (a BIGINT) USING waltz OPTIONS (partitions '0')", "orders is created twice"),
        ("x" * 70_000, "the script is longer than 65536 bytes"),
    ],
)
def test_scripts_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(SqlError) as refused:
        parse(text)
    assert words in str(refused.value)


def test_a_query_of_views_reads_strings_as_scripts_do() -> None:
    assert Query(r"SELECT 'q''q' AS a, 'x\ty' AS b FROM v WHERE s NOT LIKE 'p'").translated() == (
        "SELECT 'q''q' AS a, 'x\ty' AS b FROM v WHERE s NOT LIKE 'p'"
    )
    with pytest.raises(QueryError, match="this is no SQL"):
        Query(r"SELECT '\UFFFFFFFF'")


def test_what_would_cost_the_parser_is_refused_before_it() -> None:
    values = ", ".join(str(number % 10) for number in range(30_000 // 6))
    words = f"more than {TOKENS_MAX} words and signs"
    with pytest.raises(SqlError, match=rf"line 2, column \d+: .*{words}"):
        parse(f"CREATE TABLE t (id BIGINT) USING waltz OPTIONS (partitions '0');\n"
              f"CREATE MATERIALIZED VIEW v AS SELECT id FROM t WHERE id IN ({values})")  # fmt: skip
    with pytest.raises(QueryError, match=words):
        Query(f"SELECT id FROM t WHERE id IN ({values})")


@pytest.mark.parametrize(("sign", "term"), [(" OR ", "k = 1"), (" + ", "k"), (" AND ", "k <> 1"), ("", "NOT ")])
def test_what_an_engine_could_not_read_is_refused(sign: str, term: str) -> None:
    """From about 50 terms on (of NOT 20) the view ended the process that was to keep it."""

    def script(terms: int) -> str:
        made = sign.join([term] * terms) + (" (k = 1)" if term == "NOT " else "")
        view = f"CREATE MATERIALIZED VIEW v AS SELECT {made} AS x FROM t"
        return f"CREATE TABLE t (k BIGINT) USING waltz OPTIONS (partitions '0'); {view}"

    for terms in (8, 14) if term == "NOT " else (8, 34):
        PlainEngine().open(parse(script(terms))).close()
    for terms in (18, 40, 60):
        with pytest.raises(SqlError, match="nested too deeply") if terms > 18 or term == "NOT " else nullcontext():
            parse(script(terms))


@pytest.mark.parametrize(
    "columns",
    [
        ", ".join(f"CASE WHEN k = {number} THEN 1 ELSE 0 END AS c{number}" for number in range(60)),
        f"'{'(' * 60} CASE' AS text",
    ],
    ids=["wide", "literal"],
)
def test_what_is_wide_or_in_a_text_is_not_deep(columns: str) -> None:
    view = f"CREATE MATERIALIZED VIEW v AS SELECT {columns} FROM t"
    PlainEngine().open(parse(f"CREATE TABLE t (k BIGINT) USING waltz OPTIONS (partitions '0'); {view}")).close()


def test_lines_are_counted_over_all_statements() -> None:
    with pytest.raises(SqlError, match=r"^line 4, column 6: a script has tables and views"):
        parse(f"{TABLES}SHOW TABLES")


def test_a_script_is_explained() -> None:
    found = explained(
        parse(
            f"""{TABLES}CREATE MATERIALIZED VIEW v AS SELECT o.customer, max(o.cents) AS most,
            rank() OVER (ORDER BY count(*)) AS r FROM orders o JOIN names n ON o.id = n.id
            WHERE EXISTS (SELECT 1 FROM names WHERE id = o.cents) GROUP BY o.customer"""
        ).views[0]
    )
    assert found[0] == "  #1: join of orders and names by 1 key: keeps the rows of both (rule 3)"
    assert (
        "  #3: rows of #2, one by one: keeps nothing (rule 1); different rows: keeps how often each is there (rule 2)"
        in found
    )
    groups = "groups by 1 key: keeps a row of sums for each group (rule 2), and values for max (rule 3)"
    assert f"  #4: join of #1 and #3 by 1 key: keeps the rows of both (rule 3); {groups}" in found
    assert "  #5: windows over #4 by 1 key: keeps its rows, looks at whole partitions (rule 3)" in found
    assert found[-1] == "v: rows of #5, one by one: keeps nothing (rule 1)"


def test_what_the_check_did_not_foresee_is_refused_as_the_scripts_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def unforeseen(*_: object) -> None:
        raise KeyError("made 0")

    monkeypatch.setattr(sql, "check_nodes", unforeseen)
    with pytest.raises(SqlError, match=r"it cannot be planned \(KeyError: 'made 0'\)\. Please report it"):
        parse(f"{TABLES}CREATE MATERIALIZED VIEW v AS SELECT id FROM orders")
