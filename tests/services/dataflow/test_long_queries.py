"""Wide, long and deep queries: each is refused with words, or is what the whole query gives."""

from collections.abc import Callable
from random import Random

import pytest

from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import SqlError
from tests.services.dataflow.oracle import script, wrong_ticks

NUMBERS = ("id", "cents", "length(customer)", "year(day)", "coalesce(cents, 3)", "(id + 1)", "7")
TESTS = (
    "paid",
    "cents > 40",
    "customer LIKE 'a%'",
    "id IS NULL",
    "customer IN ('ann', 'bob')",
    "day < DATE '2026-03-01'",
)


def deep(random: Random, size: int) -> str:
    """A CASE within a CASE, `size` of them."""
    text = random.choice(NUMBERS)
    for _ in range(size):
        parts = [text, random.choice(NUMBERS)]
        random.shuffle(parts)
        text = f"CASE WHEN {random.choice(TESTS)} THEN {parts[0]} ELSE {parts[1]} END"
    return f"SELECT id, {text} AS x FROM orders"


def wide(random: Random, size: int) -> str:
    shown = [f"{random.choice(NUMBERS)} + {number} AS c{number}" for number in range(size)]
    return f"SELECT {', '.join(shown)} FROM orders WHERE {random.choice(TESTS)}"


def aggregates(random: Random, size: int) -> str:
    names = ("sum", "min", "max", "count", "avg", "count(DISTINCT")
    shown = [f"{random.choice(names)}({random.choice(NUMBERS)} + {number}) AS c{number}" for number in range(size)]
    text = ", ".join(each.replace("(DISTINCT(", "(DISTINCT ") for each in shown)
    return f"SELECT customer, {text} FROM orders GROUP BY customer"


def long(random: Random, size: int) -> str:
    """An expression of `size` parts, and a condition of as many."""
    sign = random.choice((" + ", " - "))
    tests = random.choice((" AND ", " OR ")).join(random.choice(TESTS) for _ in range(size))
    return f"SELECT id, {sign.join(random.choice(NUMBERS) for _ in range(size))} AS x FROM orders WHERE {tests}"


def branches(random: Random, size: int) -> str:
    whens = " ".join(f"WHEN cents = {number} THEN {random.choice(NUMBERS)}" for number in range(size))
    return f"SELECT id, CASE {whens} END AS x FROM orders WHERE cents IN ({', '.join(map(str, range(size)))})"


def unions(random: Random, size: int) -> str:
    sign = random.choice((" UNION ALL ", " UNION ", " EXCEPT ", " INTERSECT "))
    return sign.join(f"SELECT id, {random.choice(NUMBERS)} AS x FROM orders" for _ in range(size))


def nested(random: Random, size: int) -> str:
    text = "SELECT id, cents FROM orders"
    for _ in range(size):
        text = random.choice(
            (
                f"SELECT id, cents FROM ({text}) AS q WHERE id > 3",
                f"SELECT id, max(cents) AS cents FROM ({text}) AS q GROUP BY id",
                f"SELECT o.id, o.cents FROM orders o WHERE EXISTS (SELECT 1 FROM ({text}) AS q WHERE q.id = o.id)",
            )
        )
    return text


def joins(random: Random, size: int) -> str:
    kinds = [random.choice(("JOIN", "LEFT JOIN", "FULL JOIN")) for _ in range(size)]
    joined = " ".join(f"{kind} customers c{i} ON c{i}.name = o.customer" for i, kind in enumerate(kinds))
    return f"SELECT o.id, {', '.join(f'c{i}.city AS y{i}' for i in range(size))} FROM orders o {joined}"


def windows(random: Random, size: int) -> str:
    by = [f"PARTITION BY {random.choice(NUMBERS)} + {number} ORDER BY id" for number in range(size)]
    shown = [f"{random.choice(('rank()', 'count(*)'))} OVER ({each}) AS c{i}" for i, each in enumerate(by)]
    return f"SELECT id, {', '.join(shown)} FROM orders"


SIZES: dict[Callable[[Random, int], str], tuple[int, ...]] = {
    deep: (5, 16, 34, 40, 200),
    wide: (60, 200),
    aggregates: (6, 25, 300),
    long: (10, 33, 40, 400),
    branches: (60, 150),
    unions: (6, 40, 300),
    nested: (4, 12, 40, 150),
    joins: (3, 70),
    windows: (4, 70),
}


@pytest.fixture(scope="module")
def engine() -> PlainEngine:
    return PlainEngine()


@pytest.mark.parametrize(
    ("made", "size"), [(made, size) for made, sizes in SIZES.items() for size in sizes],
    ids=lambda value: value if isinstance(value, int) else value.__name__,
)  # fmt: skip
def test_a_long_query_is_right_or_refused(made: Callable[[Random, int], str], size: int, engine: PlainEngine) -> None:
    text = made(Random(size), size)
    assert is_refused(text) or wrong_ticks(text, size, engine, 2) == []


@pytest.mark.parametrize("made", SIZES, ids=lambda made: made.__name__)
def test_what_is_not_long_is_taken(made: Callable[[Random, int], str]) -> None:
    assert not is_refused(made(Random(1), SIZES[made][0]))


def is_refused(text: str) -> bool:
    try:
        script(text)
    except SqlError:
        return True
    return False
