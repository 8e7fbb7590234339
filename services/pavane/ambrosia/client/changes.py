"""What the code of a handler is, so that the next life can tell that it has changed (docs/specs/ambrosia.md 14).

A log holds inputs only. What handlers sent for records behind the last checkpoint stands nowhere, so their code has to
be that which handled these records: each checkpoint holds a digest of the code of each handler.
"""

import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

import xxhash

from pavane.ambrosia.client.definition import Definition, Method, Query, place
from pavane.ambrosia.client.errors import ChangedCode

FIRST_START = -1
"""Number of the hook among the digests: methods have none below 0."""
_COMPILER = -2, xxhash.xxh64_intdigest(f"{sys.version} {sys.flags.optimize}".encode())
"""Another one makes other code of the same source, so then nothing can be compared."""
_FOREIGN = {"builtins", "typing", "pavane"}
Digests = Sequence[tuple[int, int]]


class Changes:
    """The handlers whose code is not that with which the checkpoint was taken, whose digests are ``saved``."""

    def __init__(self, found: Definition | None = None, saved: Digests = ()) -> None:
        self._changed: set[int] = set()
        before = dict(saved)
        if found is not None and before.pop(_COMPILER[0], 0) == _COMPILER[1]:
            self._changed = {number for number, digest in digests(found) if before.get(number, digest) != digest}
            self._first: Callable[..., Any] = inspect.getattr_static(found.kind, "first_start")

    def check(self, method: Method[Any, ..., Any] | None, seq: int) -> None:
        """Raise ``ChangedCode`` if ``method``, or the first start, which handles record ``seq``, has changed."""
        if self._changed and (method.number if method is not None else FIRST_START) in self._changed:
            function = method.function if method is not None else self._first
            raise ChangedCode(
                f"{function.__qualname__}, or a function that it names, has changed since it handled record {seq}, "
                "which stands behind the last checkpoint: what it sent then is with others already",
                where=place(function),
                remedy="start it with the former code, or give the change a greater version; --any-code allows it "
                "in development",
            )


def digests(found: Definition) -> Digests:
    """Return the digest of the code of each method of a class, by number."""
    return _digests(found.kind, tuple(found.methods.values()))


@functools.cache
def _digests(kind: type, methods: tuple[Method[Any, ..., Any], ...]) -> Digests:
    handlers = {FIRST_START: inspect.getattr_static(kind, "first_start")}
    handlers |= {each.number: each.function for each in methods}
    return [_COMPILER, *((number, _digest(kind, function)) for number, function in handlers.items())]


def _digest(kind: type, handler: Callable[..., Any]) -> int:
    """Return a digest of what a function, and those that it names, do: comments and lines do not count."""
    total = xxhash.xxh64()
    seen: set[int] = set()
    todo = list(_functions(handler))
    for function in todo:
        if id(function.__code__) not in seen:
            seen.add(id(function.__code__))
            names: dict[str, None] = {}
            for word in _words(function.__code__, names):
                total.update(word.encode("utf-8", "backslashreplace") + b"\n")
            todo += [each for each in _named(kind, function, names) if _is_own(kind, each, handler)]
    return total.intdigest()


def _words(code: types.CodeType, names: dict[str, None]) -> Iterator[str]:
    """Yield what ``code`` does, step by step; adds to the ``names`` that it uses."""
    names.update(dict.fromkeys(code.co_names))
    if code.co_flags & inspect.CO_OPTIMIZED:  # the body of a class knows its lines and its docstring
        steps = list(dis.get_instructions(code))
        places = {step.offset: index for index, step in enumerate(steps)}
        for step in steps:
            argument = step.argval
            if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
                argument = places.get(argument)
            elif isinstance(argument, frozenset):  # its order is that of this process
                argument = sorted(map(repr, argument))
            if not isinstance(argument, types.CodeType):
                yield f"{step.opname} {argument!r}"
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _words(inner, names)


def _named(kind: type, function: types.FunctionType, names: dict[str, None]) -> Iterator[types.FunctionType]:
    """Yield the functions that ``function`` may mean by ``names``: of its class, its module, modules in that."""
    around = function.__globals__
    modules = [found for name in names if isinstance(found := around.get(name), types.ModuleType)]
    for scope in (*map(vars, kind.__mro__), around, *map(vars, modules)):
        for name in names:
            yield from _functions(scope.get(name))
    for cell in function.__closure__ or ():
        try:
            yield from _functions(cell.cell_contents)
        except ValueError:  # nothing is in it yet
            continue


def _functions(found: Any) -> Iterator[types.FunctionType]:
    """Yield what ``found`` is made of; by its type alone, for a proxy would answer for others."""
    made = type(found)
    if issubclass(made, (Method, Query)):
        yield from _functions(found.function)
    elif issubclass(made, (staticmethod, classmethod)):
        yield from _functions(found.__func__)
    elif issubclass(made, property):
        yield from _functions(found.fget)
    elif made.__module__ == "functools" and hasattr(found, "__wrapped__"):
        yield from _functions(found.__wrapped__)
    elif issubclass(made, types.FunctionType):
        yield from _functions(found.__dict__.get("__wrapped__"))
        yield found
    elif issubclass(made, type) and not hasattr(found, "first_start"):  # of another immortal only calls are made
        for each in vars(found).values():
            if not issubclass(type(each), type):
                yield from _functions(each)


def _is_own(kind: type, function: types.FunctionType, handler: Callable[..., Any]) -> bool:
    """Say whether ``function`` belongs to the application: to a package of its classes, or to a file beside it."""
    packages = {each.__module__.partition(".")[0] for each in kind.__mro__} - _FOREIGN
    beside = PurePath(function.__code__.co_filename).parent == PurePath(place(handler)).parent
    return beside or function.__module__.partition(".")[0] in packages
