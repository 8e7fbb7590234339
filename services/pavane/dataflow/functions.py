"""Scalar functions of a view: one row each (docs/specs/compute.md 14.2).

A row says what a function takes and gives in Spark, and its body in DuckDB's SQL, which becomes a macro. The test
`tests/spark/test_spark_functions.py` compares each row with Spark on values at which engines differ: a row comes in if
none is found. The parser hands these calls on as they are written, without an opinion of what they mean elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser

from pavane.dataflow.casing import ONCE

PREFIX = "spark_"
"""Begins the names of macros."""
TEXT_MAX = 1_000
"""What a literal may say of how long a text becomes, or how often it is there."""
LETTERS = "abcdefgh"
"""Arguments of a body."""


RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


def is_literal(takes: str) -> bool:
    """Whether an argument is a literal."""
    kind = takes.partition("=")[0]
    return kind.startswith(("LITERAL", "DELIMITER")) or "'" in kind or RANGE.search(kind) is not None


@dataclass(frozen=True, slots=True)
class Function:
    """A row of the table.

    What it takes are types of columns, or ``NUMBER`` (any, as DOUBLE), ``INT`` (a BIGINT of that range), ``DIGITS
    n`` (a BIGINT of so many digits), ``ALIKE`` (one type for all of these), ``ANY``, ``LITERAL`` (a text),
    ``DELIMITER`` (one that does not end as it begins), ``from..to`` (a whole number) or ``'A' 'B'`` (one of these
    literals). ``= x`` behind it is what Spark takes where the argument is missing, ``*`` any number of more.
    ``DECIMAL n`` is given of the argument's digits before the point, with n or what argument ``b`` says behind it.
    """

    name: str
    takes: tuple[str, ...]
    gives: str
    body: str
    means: bool = False
    """The body is Spark's SQL, and all that it names is known."""

    @property
    def macro(self) -> str:
        """The name of the macro."""
        return f"{PREFIX}{self.name}"

    @property
    def nothing(self) -> bool:
        """Whether it leaves its argument as it is."""
        return self.body == "a"

    @property
    def many(self) -> bool:
        """Whether it takes any number of arguments; the body is then a function of DuckDB."""
        return self.takes[-1:] != () and self.takes[-1].endswith("*")

    @property
    def least(self) -> int:
        """How many arguments it takes at least."""
        return sum("=" not in each for each in self.takes)

    @property
    def twice(self) -> bool:
        """Whether the body names an argument more than once."""
        doubles = "array_to_string" in self.body or "nullif" in self.body  # macros of DuckDB's own
        return doubles or any(len(re.findall(rf"\b{letter}\b", self.body)) > 1 for letter in LETTERS[: len(self.takes)])

    def macros(self) -> Iterator[str]:
        """Give the statements that make its macros."""
        letters = LETTERS[: len(self.takes)]
        listed = ", ".join(letters)
        yield f"CREATE MACRO {self.macro}({listed}) AS {self.body}"
        if self.twice:
            costly = [each for each, takes in zip(letters, self.takes, strict=True) if not is_literal(takes)]
            struct = ", ".join(f"'{letter}': {letter}" for letter in costly)
            parts = ", ".join(f"x.{letter}" if letter in costly else letter for letter in letters)
            yield (
                f"CREATE MACRO {self.macro}{ONCE}({listed}) AS "
                f"list_transform([{{{struct}}}], lambda x: {self.macro}({parts}))[1]"
            )


_FLOOR = "(({0} - ((({0}) % {1}) + {1}) % {1}) // {1})"
_SINCE = "epoch_us(a)::HUGEINT"
_REVERSED = "array_to_string(list_reverse(string_split({0}, '')), '')"
_BACKWARDS = (
    f"array_to_string(string_split({_REVERSED.format('a')}, {_REVERSED.format('b')})[1:-c], {_REVERSED.format('b')})"
)
_UNITS = "'YEAR' 'QUARTER' 'MONTH' 'WEEK'"
_DAYS = "'MON' 'TUE' 'WED' 'THU' 'FRI' 'SAT' 'SUN'"

_NAMED = {
    "YEAR": "year", "QUARTER": "quarter", "MONTH": "month", "WEEK": "weekofyear", "DAY": "day",
    "DAYOFWEEK": "dayofweek", "DOW": "dayofweek", "DOY": "dayofyear", "HOUR": "hour", "MINUTE": "minute",
}  # fmt: skip
_PARTS = "\n".join(
    f"{name} | '{part}', ANY | = | {named}(b)" for name in ("date_part", "datepart") for part, named in _NAMED.items()
)

_ROWS = f"""
replace | STRING, STRING, LITERAL = '' | STRING | replace(a, b, c)
translate | STRING, STRING, STRING | STRING | translate(a, b, c)
lpad | STRING, 0..{TEXT_MAX}, STRING = ' ' | STRING | CASE WHEN c = '' THEN left(a, b) ELSE lpad(a, b, c) END
rpad | STRING, 0..{TEXT_MAX}, STRING = ' ' | STRING | CASE WHEN c = '' THEN left(a, b) ELSE rpad(a, b, c) END
ltrim | STRING | STRING | ltrim(a, ' ')
rtrim | STRING | STRING | rtrim(a, ' ')
btrim | STRING, STRING = ' ' | STRING | trim(a, b)
left | STRING, INT | STRING | left(a, CASE WHEN b < 0 THEN 0 ELSE b END)
right | STRING, INT | STRING | right(a, CASE WHEN b < 0 THEN 0 ELSE b END)
repeat | STRING, 0..{TEXT_MAX} | STRING | repeat(a, b)
space | 0..{TEXT_MAX} | STRING | repeat(' ', a)
reverse | STRING | STRING | {_REVERSED.format("a")}
instr | STRING, STRING | BIGINT | instr(a, b)
locate | STRING, STRING | BIGINT | instr(b, a)
position | STRING, STRING | BIGINT | instr(b, a)
ascii | STRING | BIGINT | ascii(a)
chr | BIGINT | STRING | CASE WHEN a < 0 THEN '' ELSE chr((a % 256)::INT) END
char | BIGINT | STRING | CASE WHEN a < 0 THEN '' ELSE chr((a % 256)::INT) END
concat_ws | LITERAL, STRING* | STRING | concat_ws
startswith | STRING, STRING | BOOLEAN | starts_with(a, b)
endswith | STRING, STRING | BOOLEAN | ends_with(a, b)
contains | STRING, STRING | BOOLEAN | contains(a, b)
split_part | STRING, STRING, -{TEXT_MAX}..-1 1..{TEXT_MAX} | STRING | CASE WHEN b = '' THEN CASE WHEN c IN (1, -1) THEN a WHEN a IS NOT NULL THEN '' END ELSE split_part(a, b, c) END
substring_index | STRING, DELIMITER, -{TEXT_MAX}..-1 1..{TEXT_MAX} | STRING | CASE WHEN b = '' THEN CASE WHEN a IS NOT NULL THEN '' END WHEN c > 0 THEN array_to_string(string_split(a, b)[1:c], b) ELSE {_REVERSED.format(_BACKWARDS)} END
overlay | STRING, STRING, 1..{TEXT_MAX}, 0..{TEXT_MAX} | STRING | left(a, c - 1) || b || substring(a, c + d)
quote | STRING | STRING | chr(39) || replace(a, chr(39), chr(92) || chr(39)) || chr(39)
find_in_set | STRING, STRING | BIGINT | CASE WHEN b IS NULL OR a IS NULL THEN NULL WHEN contains(a, ',') THEN 0 ELSE coalesce(list_position(string_split(b, ','), a), 0) END
octet_length | STRING | BIGINT | strlen(a)
bit_length | STRING | BIGINT | strlen(a) * 8
md5 | STRING/BINARY | STRING | md5(a)
sha | STRING/BINARY | STRING | sha1(a)
sha1 | STRING/BINARY | STRING | sha1(a)
sha2 | STRING/BINARY, 256..256 0..0 | STRING | CASE WHEN b >= 0 THEN sha256(a) END
hex | STRING/BIGINT/BINARY | STRING | hex(a)
unhex | STRING | BINARY | CASE WHEN regexp_full_match(a, '[0-9A-Fa-f]*') THEN unhex(CASE WHEN length(a) % 2 = 1 THEN '0' || a ELSE a END) END
base64 | BINARY | STRING | rtrim(regexp_replace(base64(a), '.{{76}}', '\\0' || chr(13) || chr(10), 'g'), chr(13) || chr(10))
encode | STRING, 'UTF-8' | BINARY | CASE WHEN b = b THEN encode(a) END
bin | BIGINT | STRING | bin(a)
url_encode | STRING | STRING | replace(replace(replace(url_encode(a), '%20', '+'), '~', '%7E'), '%2A', '*')
sqrt | NUMBER | DOUBLE | CASE WHEN a < 0 THEN 'NaN'::DOUBLE ELSE sqrt(a) END
rint | NUMBER | DOUBLE | round_even(a, 0)
ceil | BIGINT | BIGINT | a
ceil | DOUBLE | BIGINT | ceil(a)
ceil | DECIMAL | DECIMAL 0 | ceil(a)
ceiling | BIGINT | BIGINT | a
ceiling | DOUBLE | BIGINT | ceil(a)
ceiling | DECIMAL | DECIMAL 0 | ceil(a)
floor | BIGINT | BIGINT | a
floor | DOUBLE | BIGINT | floor(a)
floor | DECIMAL | DECIMAL 0 | floor(a)
round | BIGINT, 0..38 = 0 | BIGINT | a
round | DECIMAL, 0..38 = 0 | DECIMAL b | round(a, b)
sign | NUMBER | DOUBLE | CASE WHEN isnan(a) OR a = 0 THEN a WHEN a > 0 THEN 1e0 WHEN a < 0 THEN -1e0 END
signum | NUMBER | DOUBLE | CASE WHEN isnan(a) OR a = 0 THEN a WHEN a > 0 THEN 1e0 WHEN a < 0 THEN -1e0 END
degrees | NUMBER | DOUBLE | a * 57.29577951308232e0
radians | NUMBER | DOUBLE | a * 0.017453292519943295e0
pi | | DOUBLE | 3.141592653589793e0
e | | DOUBLE | 2.718281828459045e0
pmod | BIGINT, BIGINT | BIGINT | CASE WHEN b = 0 THEN error('division by zero') WHEN a::HUGEINT % b < 0 THEN ((a::HUGEINT % b + b) % b)::BIGINT ELSE (a::HUGEINT % b)::BIGINT END
try_add | BIGINT, BIGINT | BIGINT | TRY_CAST(a::HUGEINT + b AS BIGINT)
try_subtract | BIGINT, BIGINT | BIGINT | TRY_CAST(a::HUGEINT - b AS BIGINT)
try_multiply | BIGINT, BIGINT | BIGINT | TRY_CAST(a::HUGEINT * b AS BIGINT)
try_divide | BIGINT/DOUBLE, BIGINT/DOUBLE | DOUBLE | a::DOUBLE / nullif(b::DOUBLE, 0e0)
try_mod | BIGINT, BIGINT | BIGINT | (a::HUGEINT % nullif(b, 0))::BIGINT
greatest | ALIKE, ALIKE* | ALIKE | greatest
least | ALIKE, ALIKE* | ALIKE | least
bit_count | BIGINT | BIGINT | bit_count(a)
shiftright | BIGINT, INT | BIGINT | a >> (b & 63)
shiftleft | BIGINT, INT | BIGINT | CASE WHEN (a::HUGEINT & ((1::HUGEINT << (64 - (b & 63))) - 1)) << (b & 63) >= 9223372036854775808 THEN ((a::HUGEINT & ((1::HUGEINT << (64 - (b & 63))) - 1)) << (b & 63)) - 18446744073709551616 ELSE (a::HUGEINT & ((1::HUGEINT << (64 - (b & 63))) - 1)) << (b & 63) END
shiftrightunsigned | BIGINT, INT | BIGINT | CASE WHEN b & 63 = 0 THEN a ELSE ((a >> 1) & 9223372036854775807) >> ((b & 63) - 1) END
bit_get | BIGINT, INT | BIGINT | CASE WHEN b NOT BETWEEN 0 AND 63 THEN error('there is no such bit') ELSE (a >> b) & 1 END
getbit | BIGINT, INT | BIGINT | CASE WHEN b NOT BETWEEN 0 AND 63 THEN error('there is no such bit') ELSE (a >> b) & 1 END
factorial | INT | BIGINT | CASE WHEN a BETWEEN 0 AND 20 THEN factorial(a)::BIGINT END
isnan | NUMBER | BOOLEAN | coalesce(isnan(a), FALSE)
nanvl | NUMBER, NUMBER | DOUBLE | CASE WHEN isnan(a) THEN b ELSE a END
date_add | DATE/TIMESTAMP, DIGITS 7 | DATE | a + b
dateadd | DATE/TIMESTAMP, DIGITS 7 | DATE | a + b
date_sub | DATE/TIMESTAMP, DIGITS 7 | DATE | a - b
datediff | DATE/TIMESTAMP, DATE/TIMESTAMP | BIGINT | a - b
date_diff | DATE/TIMESTAMP, DATE/TIMESTAMP | BIGINT | a - b
add_months | DATE/TIMESTAMP, DIGITS 5 | DATE | (a + to_months(b))::DATE
last_day | DATE/TIMESTAMP | DATE | last_day(a)
next_day | DATE/TIMESTAMP, {_DAYS} | DATE | a + (((list_position(['MON', 'TUE', 'WED', 'THU', 'FRI', 'SAT', 'SUN'], b) - isodow(a) + 6) % 7) + 1)::INT
trunc | DATE/TIMESTAMP, {_UNITS} | DATE | date_trunc(b, a)::DATE
date_trunc | {_UNITS} 'DAY' 'HOUR' 'MINUTE' 'SECOND' 'MILLISECOND' 'MICROSECOND', TIMESTAMP | TIMESTAMP | date_trunc(a, b)
quarter | DATE/TIMESTAMP | BIGINT | quarter(a)
weekofyear | DATE/TIMESTAMP | BIGINT | week(a)
weekday | DATE/TIMESTAMP | BIGINT | isodow(a) - 1
dayofweek | DATE/TIMESTAMP | BIGINT | dayofweek(a) + 1
dayofyear | DATE/TIMESTAMP | BIGINT | dayofyear(a)
dayname | DATE/TIMESTAMP | STRING | left(dayname(a), 3)
monthname | DATE/TIMESTAMP | STRING | left(monthname(a), 3)
to_date | DATE/TIMESTAMP | DATE | a
hour | TIMESTAMP | BIGINT | hour(a)
minute | TIMESTAMP | BIGINT | minute(a)
second | TIMESTAMP | BIGINT | second(a)
make_date | DIGITS 4, INT, INT | DATE | make_date(a, b, c)
unix_date | DATE | BIGINT | a - DATE '1970-01-01'
date_from_unix_date | DIGITS 7 | DATE | DATE '1970-01-01' + a
unix_micros | TIMESTAMP | BIGINT | epoch_us(a)
unix_millis | TIMESTAMP | BIGINT | {_FLOOR.format(_SINCE, 1000)}::BIGINT
unix_seconds | TIMESTAMP | BIGINT | {_FLOOR.format(_SINCE, 1000000)}::BIGINT
unix_timestamp | TIMESTAMP | BIGINT | epoch_us(a) // 1000000
to_unix_timestamp | TIMESTAMP | BIGINT | epoch_us(a) // 1000000
timestamp_micros | DIGITS 18 | TIMESTAMP | make_timestamp(a)
timestamp_millis | DIGITS 15 | TIMESTAMP | make_timestamp(a * 1000)
timestamp_seconds | DIGITS 12 | TIMESTAMP | make_timestamp(a * 1000000)
nvl2 | ANY, ANY, ANY | = | CASE WHEN a IS NOT NULL THEN b ELSE c END
zeroifnull | ANY | = | COALESCE(a, 0)
nullifzero | ANY | = | NULLIF(a, 0)
isnull | ANY | = | a IS NULL
isnotnull | ANY | = | a IS NOT NULL
equal_null | ANY, ANY | = | a <=> b
negative | ANY | = | -a
positive | BIGINT | BIGINT | a
positive | DOUBLE | DOUBLE | a
{_PARTS}
dayofmonth | ANY | = | DAY(a)
lcase | ANY | = | LOWER(a)
ucase | ANY | = | UPPER(a)
"""  # noqa: E501 - a row is a line


def _rows() -> Iterator[Function]:
    for line in _ROWS.strip().splitlines():
        name, takes, gives, body = (part.strip() for part in re.split(r" \|(?= )", line, maxsplit=3))
        parts = tuple(part.strip() for part in takes.split(", ")) if takes else ()
        yield Function(name, parts, gives, body, means=gives == "=")


FUNCTIONS: Mapping[str, tuple[Function, ...]] = {
    name: tuple(row for row in _rows() if row.name == name) for name in dict.fromkeys(row.name for row in _rows())
}
"""The table: rows by name."""
MACROS: Mapping[str, Function] = {
    name: row for name, rows in FUNCTIONS.items() for row in rows if not (row.means or row.many or row.nothing)
}
"""The row of each name that has a macro."""


def macros(plan: str) -> Iterable[str]:
    """Return the statements that make the macros of the functions that a plan names."""
    called = {name.lower() for name in re.findall(r"\w+(?=\()", plan)}
    return [each for name in sorted(called & MACROS.keys()) for each in MACROS[name].macros()]


def _without_the_table(known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: made for name, made in known.items() if name.lower() not in FUNCTIONS}


class ViewsSql(Spark):
    """Spark's SQL, of which the parser leaves the functions of the table alone."""

    class Parser(SparkParser):
        """The parser."""

        FUNCTIONS = _without_the_table(SparkParser.FUNCTIONS)
        FUNCTION_PARSERS = _without_the_table(SparkParser.FUNCTION_PARSERS)
