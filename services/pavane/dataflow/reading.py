"""Spark's SQL to statements: the parser's, but for string literals, which it reads as other versions of Spark do."""

from __future__ import annotations

import re
import sys

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

from pavane.dataflow.functions import ViewsSql

TOKENS_MAX = 10_000
"""Of a script or a query: each becomes a node, which costs the parser and what reads it up to 0.2 ms."""
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7]{2})|(.))", re.DOTALL)
_LETTERS = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": r"\%", "_": r"\_"}


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a script. Raises sqlglot's errors, and ValueError for an escape that is no letter.

    `'q''q'` is one literal, as in Spark from version 4.0 on; `'q' 'q'` are two that the parser joins.
    """
    found: list[Token] = []
    tokens = sqlglot.tokenize(text, dialect="spark")
    if len(tokens) > TOKENS_MAX:
        text = f"this has more than {TOKENS_MAX} words and signs: make several of it, or join a table instead of a list"
        raise ParseError.new(text, description=text, line=tokens[TOKENS_MAX].line, col=tokens[TOKENS_MAX].col)
    for token in tokens:
        if token.token_type is not TokenType.STRING:
            found.append(token)
            continue
        value, start = _unescaped(text[token.start + 1 : token.end]), token.start
        before = found[-1] if found else None
        quote = text[start]
        if (
            before is not None
            and before.token_type is TokenType.STRING
            and before.end + 1 == start
            and text[before.end] == quote
        ):
            found.pop()
            value, start = f"{before.text}{quote}{value}", before.start
        found.append(Token(TokenType.STRING, value, token.line, token.col, start, token.end, token.comments))
    return found


def statements_of(
    text: str, tokens: list[Token] | None = None, dialect: type[sqlglot.Dialect] = ViewsSql
) -> list[exp.Expr]:
    """Parse a script; what is empty is left out. Raises sqlglot's errors, and what `tokens_of` raises."""
    parser = dialect().parser()
    return [each for each in parser.parse(tokens_of(text) if tokens is None else tokens, text) if each is not None]


def _unescaped(written: str) -> str:
    return _ESCAPE.sub(_letter, written) if "\\" in written else written


def _letter(found: re.Match[str]) -> str:
    short, long, octal, letter = found.groups()
    if short or long:
        number = int(short or long, 16)
        if number > sys.maxunicode or 0xD800 <= number < 0xE000:  # half a surrogate pair
            raise ValueError(f"{found[0]} is no letter")
        return chr(number)
    return chr(int(octal, 8)) if octal else _LETTERS.get(letter, letter)
