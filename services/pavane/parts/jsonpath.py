"""Templates as ``kubectl -o jsonpath=…`` takes them: text, and in braces paths, quoted text and ``range … end``.

Of paths there are fields (``.a``, ``['a']``, ``a\\.b`` for a dot in a name), ``[*]``, ``.*``, ``[n]``, ``[from:to]``
and ``[?(@.a=="b")]``. Anything else is refused in words.
"""

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Piece = str | tuple[str, "Sequence[Piece]"]
"""Text, or a path with what ``range`` repeats for each of its values (None of it: the values themselves)."""

_BRACES = re.compile(r"""\{((?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^{}"'])*)\}""")
_STEP = re.compile(
    r"""\.(?P<field>(?:[^.\[\]\\\s{}()]|\\.)+)
    | \['(?P<key>(?:[^'\\]|\\.)*)'\]
    | \[(?P<index>-?\d+|\*)\]
    | \[(?P<first>-?\d*):(?P<last>-?\d*)\]
    | \[\?\(@(?P<path>[^=!<>()\s]+)\s*
      (?:(?P<compare>[=!<>]=|[<>])\s*(?P<value>"[^"]*"|'[^']*'|-?(?:0|[1-9]\d*)(?:\.\d+)?|true|false))?\s*\)\]
    """,
    re.VERBOSE,
)
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ABSENT = object()


def render(template: str, document: Any) -> str:
    """Return the text of a template; what is absent is empty. Raises ``ValueError`` for what is none, in words."""
    open_: list[list[Piece]] = [[]]
    loops: list[str] = []
    end = 0
    for braces in _BRACES.finditer(template):
        _add_text(open_[-1], template[end : braces.start()])
        end, inner = braces.end(), braces[1].strip()
        if inner[:1] in {'"', "'"}:
            open_[-1].append(_unquoted(inner))
        elif inner == "end":
            if not loops:
                raise ValueError("jsonpath: {end} has no {range …}")
            repeated = open_.pop()
            open_[-1].append((loops.pop(), repeated))
        elif inner.startswith("range "):
            loops.append(inner[6:].strip())
            open_.append([])
        else:
            open_[-1].append((inner, ()))
    _add_text(open_[-1], template[end:])
    if loops:
        raise ValueError(f"jsonpath: {{range {loops[-1]}}} has no {{end}}")
    return "".join(_rendered(open_[0], document))


def _add_text(pieces: list[Piece], text: str) -> None:
    if "{" in text or "}" in text:
        raise ValueError(f"jsonpath: {text!r} has a brace without its other one")
    pieces.append(text)


def _rendered(pieces: Sequence[Piece], document: Any) -> Iterator[str]:
    for piece in pieces:
        if isinstance(piece, str):
            yield piece
            continue
        path, repeated = piece
        values = list(_values(path, document))
        if repeated:
            for value in values:
                yield from _rendered(repeated, value)
        else:
            yield " ".join(map(_text, values))


def _values(path: str, document: Any) -> Iterator[Any]:
    """Yield what is at a path."""
    rest = re.sub(r"^[$@]", "", path)
    found = [document]
    at = 0
    while at < len(rest) and rest != ".":
        step = _STEP.match(rest, at)
        if step is None:
            raise ValueError(
                f"jsonpath: {rest[at:]!r} in {{{path}}} is not known here; there are .field, ['field'], [n], "
                '[from:to], [*], [?(@.field=="text")], {range …}{end} and {"text"}'
            )
        found = [inner for each in found for inner in _stepped(step, each)]
        at = step.end()
    yield from found


def _stepped(step: "re.Match[str]", value: Any) -> Iterator[Any]:
    name = step["field"] if step["field"] is not None else step["key"]
    items = value if isinstance(value, list) else []
    if "*" in {step["field"], step["index"]}:
        yield from value.values() if isinstance(value, dict) else items
    elif name is not None:
        name = re.sub(r"\\(.)", r"\1", name)
        if isinstance(value, dict) and name in value:
            yield value[name]
    elif step["index"] is not None:
        if isinstance(value, list):
            if not -len(items) <= int(step["index"]) < len(items):
                raise ValueError(f"jsonpath: there is no element {step['index']} of {len(items)}")
            yield items[int(step["index"])]
    elif step["first"] is not None:
        yield from items[slice(*(int(each) if each else None for each in (step["first"], step["last"])))]
    else:
        yield from (each for each in items if _holds(step, each))


def _holds(step: "re.Match[str]", value: Any) -> bool:
    found = next(_values(step["path"], value), _ABSENT)
    if step["compare"] is None or found is _ABSENT:
        return found is not _ABSENT
    wanted = _unquoted(step["value"]) if step["value"][0] in "'\"" else json.loads(step["value"])
    if isinstance(wanted, str) != isinstance(found, str):
        raise ValueError(f"jsonpath: {_text(found)} and {step['value']} cannot be compared: text stands in quotes")
    try:
        return _COMPARE[step["compare"]](found, wanted)
    except TypeError as error:
        raise ValueError(f"jsonpath: {_text(found)} is neither below nor above {step['value']}") from error


def _unquoted(text: str) -> str:
    inner = text[1:-1].replace('\\"', '"').replace("\\'", "'").replace('"', '\\"')
    try:
        return str(json.loads(f'"{inner}"', strict=False))
    except ValueError as error:
        raise ValueError(f"jsonpath: {text} is no text in quotes") from error


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
