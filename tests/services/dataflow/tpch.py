"""The 22 queries of TPC-H in the SQL of views, and small tables on which each of them finds something.

Where the benchmark computes dates, or averages and shares of decimals, the queries say dates and doubles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from pavane.dataflow.rows import Row

TABLES = """
CREATE TABLE region (r_regionkey BIGINT, r_name STRING) USING waltz OPTIONS (partitions '0', diff 'true');
CREATE TABLE nation (n_nationkey BIGINT, n_name STRING, n_regionkey BIGINT) USING waltz
  OPTIONS (partitions '0', diff 'true');
CREATE TABLE supplier (s_suppkey BIGINT, s_name STRING, s_nationkey BIGINT, s_acctbal DECIMAL(12,2), s_comment STRING)
  USING waltz OPTIONS (partitions '0', diff 'true');
CREATE TABLE part (p_partkey BIGINT, p_name STRING, p_mfgr STRING, p_brand STRING, p_type STRING, p_size BIGINT,
  p_container STRING) USING waltz OPTIONS (partitions '0', diff 'true');
CREATE TABLE partsupp (ps_partkey BIGINT, ps_suppkey BIGINT, ps_availqty BIGINT, ps_supplycost DECIMAL(12,2))
  USING waltz OPTIONS (partitions '0', diff 'true');
CREATE TABLE customer (c_custkey BIGINT, c_name STRING, c_nationkey BIGINT, c_phone STRING, c_acctbal DECIMAL(12,2),
  c_mktsegment STRING) USING waltz OPTIONS (partitions '0', diff 'true');
CREATE TABLE orders (o_orderkey BIGINT, o_custkey BIGINT, o_orderstatus STRING, o_totalprice DECIMAL(12,2),
  o_orderdate DATE, o_orderpriority STRING, o_comment STRING) USING waltz OPTIONS (partitions '0', diff 'true');
CREATE TABLE lineitem (l_orderkey BIGINT, l_partkey BIGINT, l_suppkey BIGINT, l_linenumber BIGINT, l_quantity BIGINT,
  l_extendedprice DECIMAL(12,2), l_discount DECIMAL(4,2), l_tax DECIMAL(4,2), l_returnflag STRING, l_linestatus STRING,
  l_shipdate DATE, l_commitdate DATE, l_receiptdate DATE, l_shipinstruct STRING, l_shipmode STRING) USING waltz
  OPTIONS (partitions '0', diff 'true');
"""
QUERIES = (
    """SELECT l_returnflag, l_linestatus, sum(l_quantity) AS qty, sum(l_extendedprice) AS base,
      sum(l_extendedprice * (1.00 - l_discount)) AS disc, avg(l_quantity) AS mean, count(*) AS n,
      sum(l_extendedprice * (1.00 - l_discount) * (1.00 + l_tax)) AS charge, avg(CAST(l_discount AS DOUBLE))
        AS mean_disc
    FROM lineitem WHERE l_shipdate <= DATE '1998-09-02' GROUP BY l_returnflag, l_linestatus""",
    """SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr FROM part, supplier, partsupp, nation, region
    WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND p_size < 20 AND p_type LIKE '%BRASS'
      AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE' AND ps_supplycost = (
        SELECT min(ps_supplycost) FROM partsupp, supplier, nation, region WHERE p_partkey = ps_partkey
          AND s_suppkey = ps_suppkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE')
    ORDER BY s_acctbal DESC, n_name, s_name, p_partkey, p_mfgr LIMIT 10""",
    """SELECT l_orderkey, sum(l_extendedprice * (1.00 - l_discount)) AS revenue, o_orderdate FROM customer,
        orders, lineitem
    WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
      AND o_orderdate < DATE '1996-03-15' AND l_shipdate > DATE '1995-03-15'
    GROUP BY l_orderkey, o_orderdate ORDER BY revenue DESC, o_orderdate, l_orderkey LIMIT 10""",
    """SELECT o_orderpriority, count(*) AS n FROM orders WHERE o_orderdate >= DATE '1994-07-01' AND EXISTS (
      SELECT * FROM lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate) GROUP BY
        o_orderpriority""",
    """SELECT n_name, sum(l_extendedprice * (1.00 - l_discount)) AS revenue
    FROM customer, orders, lineitem, supplier, nation, region
    WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey AND c_nationkey = s_nationkey
      AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'ASIA'
      AND o_orderdate >= DATE '1994-01-01' GROUP BY n_name""",
    """SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem WHERE l_shipdate >= DATE '1994-01-01'
      AND l_shipdate < DATE '1996-01-01' AND l_discount BETWEEN 0.03 AND 0.07 AND l_quantity < 24""",
    """SELECT supp_nation, cust_nation, l_year, sum(volume) AS revenue FROM (
      SELECT n1.n_name AS supp_nation, n2.n_name AS cust_nation, year(l_shipdate) AS l_year,
        l_extendedprice * (1.00 - l_discount) AS volume
      FROM supplier, lineitem, orders, customer, nation n1, nation n2
      WHERE s_suppkey = l_suppkey AND o_orderkey = l_orderkey AND c_custkey = o_custkey AND s_nationkey = n1.n_nationkey
        AND c_nationkey = n2.n_nationkey AND ((n1.n_name = 'FRANCE' AND n2.n_name = 'GERMANY')
          OR (n1.n_name = 'GERMANY' AND n2.n_name = 'FRANCE'))) AS shipping
    GROUP BY supp_nation, cust_nation, l_year""",
    """SELECT o_year, CAST(sum(CASE WHEN nation = 'BRAZIL' THEN volume ELSE 0.00 END) AS DOUBLE)
      / CAST(sum(volume) AS DOUBLE) AS share FROM (
      SELECT year(o_orderdate) AS o_year, l_extendedprice * (1.00 - l_discount) AS volume, n2.n_name AS nation
      FROM part, supplier, lineitem, orders, customer, nation n1, nation n2, region
      WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey AND o_custkey = c_custkey
        AND c_nationkey = n1.n_nationkey AND n1.n_regionkey = r_regionkey AND r_name = 'AMERICA'
        AND s_nationkey = n2.n_nationkey AND p_type LIKE 'ECONOMY%') AS all_nations GROUP BY o_year""",
    """SELECT nation, o_year, sum(amount) AS profit FROM (
      SELECT n_name AS nation, year(o_orderdate) AS o_year,
        l_extendedprice * (1.00 - l_discount) - ps_supplycost * l_quantity AS amount
      FROM part, supplier, lineitem, partsupp, orders, nation
      WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey AND p_partkey = l_partkey
        AND o_orderkey = l_orderkey AND s_nationkey = n_nationkey AND p_name LIKE '%green%') AS profit
    GROUP BY nation, o_year""",
    """SELECT c_custkey, c_name, sum(l_extendedprice * (1.00 - l_discount)) AS revenue, c_acctbal, n_name
    FROM customer, orders, lineitem, nation WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey
      AND o_orderdate >= DATE '1993-10-01' AND l_returnflag = 'R' AND c_nationkey = n_nationkey
    GROUP BY c_custkey, c_name, c_acctbal, n_name ORDER BY revenue DESC, c_custkey, c_name, c_acctbal, n_name
        LIMIT 5""",
    """SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value FROM partsupp, supplier, nation
    WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY' GROUP BY ps_partkey
    HAVING CAST(sum(ps_supplycost * ps_availqty) AS DOUBLE) > (
      SELECT CAST(sum(ps_supplycost * ps_availqty) AS DOUBLE) * 0.2D FROM partsupp, supplier, nation
      WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY')""",
    """SELECT l_shipmode, sum(CASE WHEN o_orderpriority = '1-URGENT' OR o_orderpriority = '2-HIGH' THEN 1
        ELSE 0 END) AS high,
      sum(CASE WHEN o_orderpriority <> '1-URGENT' AND o_orderpriority <> '2-HIGH' THEN 1 ELSE 0 END) AS low
    FROM orders, lineitem WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP')
      AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate GROUP BY l_shipmode""",
    """SELECT c_count, count(*) AS custdist FROM (SELECT c_custkey, count(o_orderkey) AS c_count FROM customer
      LEFT OUTER JOIN orders ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%' GROUP BY c_custkey)
      AS c_orders GROUP BY c_count""",
    """SELECT 100.00D * CAST(sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1.00 - l_discount)
        ELSE 0.00 END)
      AS DOUBLE) / CAST(sum(l_extendedprice * (1.00 - l_discount)) AS DOUBLE) AS promo
    FROM lineitem, part WHERE l_partkey = p_partkey AND l_shipdate >= DATE '1995-01-01'""",
    """WITH revenue AS (SELECT l_suppkey AS supplier_no, sum(l_extendedprice * (1.00 - l_discount)) AS total
        FROM lineitem
      WHERE l_shipdate >= DATE '1994-01-01' GROUP BY l_suppkey)
    SELECT s_suppkey, s_name, total FROM supplier, revenue
    WHERE s_suppkey = supplier_no AND total = (SELECT max(total) FROM revenue)""",
    """SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS n FROM partsupp, part
    WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM%' AND p_size IN (3, 9,
        14, 19, 49)
      AND ps_suppkey NOT IN (SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%Customer%Complaints%')
    GROUP BY p_brand, p_type, p_size""",
    """SELECT CAST(sum(l_extendedprice) AS DOUBLE) / 7.0D AS yearly FROM lineitem, part WHERE p_partkey = l_partkey
      AND p_brand = 'Brand#23' AND CAST(l_quantity AS DOUBLE) < (
        SELECT 0.8D * avg(l_quantity) FROM lineitem WHERE l_partkey = p_partkey)""",
    """SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS qty
    FROM customer, orders, lineitem WHERE o_orderkey IN (
        SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 90)
      AND c_custkey = o_custkey AND o_orderkey = l_orderkey
    GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
    ORDER BY o_totalprice DESC, o_orderdate, c_name, c_custkey, o_orderkey, qty LIMIT 10""",
    """SELECT sum(l_extendedprice * (1.00 - l_discount)) AS revenue FROM lineitem, part WHERE
      (p_partkey = l_partkey AND p_brand = 'Brand#12' AND p_container IN ('SM CASE', 'SM BOX') AND l_quantity <= 30
        AND l_shipmode IN ('AIR', 'MAIL'))
      OR (p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container IN ('MED BAG', 'MED BOX')
        AND l_shipinstruct = 'DELIVER IN PERSON')
      OR (p_partkey = l_partkey AND p_brand = 'Brand#45' AND p_size BETWEEN 1 AND 15)""",
    """SELECT s_name, s_acctbal FROM supplier, nation WHERE s_suppkey IN (
        SELECT ps_suppkey FROM partsupp WHERE ps_partkey IN (SELECT p_partkey FROM part WHERE p_name LIKE '%green%')
          AND CAST(ps_availqty AS DOUBLE) > (SELECT 0.1D * CAST(sum(l_quantity) AS DOUBLE) FROM lineitem
            WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey AND l_shipdate >= DATE '1993-01-01'))
      AND s_nationkey = n_nationkey AND n_name IN ('CANADA', 'GERMANY')""",
    """SELECT s_name, count(*) AS numwait FROM supplier, lineitem l1, orders, nation
    WHERE s_suppkey = l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F'
      AND l1.l_receiptdate > l1.l_commitdate
      AND EXISTS (SELECT * FROM lineitem l2 WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey)
      AND NOT EXISTS (SELECT * FROM lineitem l3 WHERE l3.l_orderkey = l1.l_orderkey AND l3.l_suppkey <> l1.l_suppkey
        AND l3.l_receiptdate > l3.l_commitdate)
      AND s_nationkey = n_nationkey AND n_name IN ('CANADA', 'GERMANY', 'FRANCE')
    GROUP BY s_name ORDER BY numwait DESC, s_name LIMIT 10""",
    """SELECT cntrycode, count(*) AS numcust, sum(c_acctbal) AS total FROM (
      SELECT substring(c_phone, 1, 2) AS cntrycode, c_acctbal FROM customer
      WHERE substring(c_phone, 1, 2) IN ('13', '31', '23') AND CAST(c_acctbal AS DOUBLE) > (
          SELECT avg(CAST(c_acctbal AS DOUBLE)) FROM customer WHERE c_acctbal > 0.00
            AND substring(c_phone, 1, 2) IN ('13', '31', '23'))
        AND NOT EXISTS (SELECT * FROM orders WHERE o_custkey = c_custkey)) AS custsale GROUP BY cntrycode""",
)
REGIONS = ("EUROPE", "ASIA", "AMERICA")
NATIONS = (("FRANCE", 0), ("GERMANY", 0), ("INDIA", 1), ("CHINA", 1), ("BRAZIL", 2), ("CANADA", 2))
SUPPLIERS, PARTS, CUSTOMERS, ORDERS = 8, 16, 14, 40


def rows(random: Random, scale: int = 1) -> list[tuple[str, Row]]:
    """Return the rows of all tables, in no order; of all but regions and nations `scale` times as many."""
    pick = random.choice
    made: list[tuple[str, Row]] = [("region", (key, name)) for key, name in enumerate(REGIONS)]
    made += [("nation", (key, name, region)) for key, (name, region) in enumerate(NATIONS)]
    for key in range(SUPPLIERS * scale):
        comment = pick(("quick", "Customer said Complaints", "slow"))
        made.append(("supplier", (key, f"Supplier#{key}", random.randrange(6), money(random), comment)))
    for key in range(PARTS * scale):
        name, size = f"{pick(('green', 'dark green', 'red'))} {key}", pick((3, 9, 14, 19, 49))
        kind, box = pick(("PROMO BRASS", "ECONOMY TIN", "MEDIUM BRASS")), pick(("SM CASE", "MED BAG", "MED BOX"))
        brand = pick(("Brand#12", "Brand#23", "Brand#45"))
        made.append(("part", (key, name, f"Manufacturer#{key % 3}", brand, kind, size, box)))
        for supplier in random.sample(range(SUPPLIERS * scale), 2):
            made.append(("partsupp", (key, supplier, random.randrange(1, 60), money(random))))
    supplied = [row for table, row in made if table == "partsupp"]
    for key in range(CUSTOMERS * scale):
        phone = f"{pick(('13', '31', '23'))}-{key}"
        segment = pick(("BUILDING", "MACHINERY"))
        made.append(("customer", (key, f"Customer#{key}", random.randrange(6), phone, money(random), segment)))
    for key in range(ORDERS * scale):
        made += order(random, key, supplied, scale)
    random.shuffle(made)
    return made


def order(random: Random, key: int, supplied: list[Row], scale: int = 1) -> list[tuple[str, Row]]:
    """Return an order and its lines."""
    pick, day = random.choice, date(1993, 6, 1) + timedelta(days=random.randrange(1000))
    priority, comment = pick(("1-URGENT", "2-HIGH", "5-LOW")), pick(("special new requests", "none"))
    made: list[tuple[str, Row]] = [
        ("orders", (key, random.randrange((CUSTOMERS - 4) * scale), pick("FO"), money(random), day, priority, comment))
    ]
    for line in range(random.randrange(1, 5)):
        part, supplier = pick(supplied)[:2]
        shipped, committed, received = (day + timedelta(days=random.randrange(1, 60)) for _ in range(3))
        price = (random.randrange(1, 51), money(random), cents(random), cents(random))
        how = (pick(("DELIVER IN PERSON", "NONE")), pick(("MAIL", "SHIP", "AIR")))
        row = (key, part, supplier, line, *price, pick("RAN"), pick("OF"), shipped, committed, received, *how)
        made.append(("lineitem", row))
    return made


def money(random: Random) -> Decimal:
    """Return a price."""
    return Decimal(random.randrange(-5_000, 90_000)).scaleb(-2)


def cents(random: Random) -> Decimal:
    """Return a discount."""
    return Decimal(random.randrange(11)).scaleb(-2)


def changes(random: Random, ticks: int, scale: int = 1, orders: int = 1) -> list[list[tuple[str, Row, int]]]:
    """Return by tick what comes and goes: all rows in the first half, and some of them again in the second, with so
    many new orders at each."""
    waiting, held = rows(random, scale), list[tuple[str, Row]]()
    supplied = [row for table, row in waiting if table == "partsupp"]
    found: list[list[tuple[str, Row, int]]] = []
    arriving, next_order = ticks // 2, ORDERS * scale
    for tick in range(ticks):
        came = waiting[tick::arriving] if tick < arriving else []
        gone: list[tuple[str, Row]] = []
        if tick >= arriving:
            gone = random.sample(held, 4 * orders)
            came = [(table, changed(random, row)) for table, row in gone[: 2 * orders]]
            for _ in range(orders):
                came += order(random, next_order, supplied, scale)
                next_order += 1
            left = set(gone)
            held = [each for each in held if each not in left]
        held += came
        found.append([(table, row, 1) for table, row in came] + [(table, row, -1) for table, row in gone])
    return found


def changed(random: Random, row: Row) -> Row:
    """Return a row whose last values are others: its key stays."""
    made: dict[type, Callable[[Any], Any]] = {
        Decimal: lambda value: value + Decimal(random.randrange(3)).scaleb(-2) if value < 1 else money(random),
        date: lambda value: value + timedelta(days=random.randrange(-30, 30)),
    }
    return tuple(made.get(type(value), lambda same: same)(value) for value in row)


def contents(updates: list[list[tuple[str, Row, int]]]) -> dict[str, Counter[Row]]:
    """Return the tables after some ticks."""
    held: dict[str, Counter[Row]] = {}
    for tick in updates:
        for table, row, diff in tick:
            held.setdefault(table, Counter())[row] += diff
    return {table: +counted for table, counted in held.items()}
