"""Upper and lower case in DuckDB as Unicode maps whole strings, which Spark does (docs/specs/compute.md 16.3).

DuckDB maps letter by letter. What is missing are letters that become several (`ß`, `SS`), and the sigma that ends a
word.
"""

from __future__ import annotations

from functools import cache

UPPER, LOWER = "unicode_upper", "unicode_lower"
"""Macros of DuckDB. They write their argument three times."""
ONCE = "_once"
"""Ends the names of macros that evaluate their argument once, for one that costs: they take five times as long."""
_LETTERS_END = 0x10000
"""All letters with several capitals come before."""
# Between the letters of a word may stand signs; they count neither as letters nor as its end.
_SIGNS = r"\p{Mn}\p{Me}\p{Cf}\p{Lm}\p{Sk}'.:\x{B7}\x{387}\x{55F}\x{5F4}\x{2018}\x{2019}\x{2024}\x{2027}" + (
    r"\x{FE13}\x{FE52}\x{FE55}\x{FF07}\x{FF0E}\x{FF1A}"
)
_CASED = r"\p{Lu}\p{Ll}\p{Lt}\x{AA}\x{BA}\x{2160}-\x{217F}\x{24B6}-\x{24E9}" + (
    r"\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}"
)
_LAST_SIGMA = rf"([{_CASED}][{_SIGNS}]*)Σ([{_SIGNS}]*)($|[^{_CASED}{_SIGNS}])"


@cache
def macros() -> tuple[str, ...]:
    """Return the statements that make them."""
    several = [letter for letter in map(chr, range(_LETTERS_END)) if len(letter.upper()) > 1]
    upper = "s"
    for letter in several:
        upper = f"replace({upper}, '{letter}', '{letter.upper()}')"
    any_of = "".join(several)
    pattern = _LAST_SIGMA.replace("'", "''")
    lower = f"regexp_replace(replace(s, 'İ', 'i̇'), '{pattern}', '\\1ς\\2\\3', 'g')"
    return (
        f"CREATE MACRO {UPPER}(s) AS CASE WHEN regexp_matches(s, '[{any_of}]') THEN upper({upper}) ELSE upper(s) END",
        f"CREATE MACRO {LOWER}(s) AS CASE WHEN regexp_matches(s, '[İΣ]') THEN lower({lower}) ELSE lower(s) END",
        *(f"CREATE MACRO {name}{ONCE}(s) AS list_transform([s], lambda c: {name}(c))[1]" for name in (UPPER, LOWER)),
    )
