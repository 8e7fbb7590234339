"""What a class of an application says: methods with their numbers, queries, state (docs/specs/ambrosia.md 18.6)."""

import enum
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import xxhash

from pavane.ambrosia.client.errors import DefinitionError, OutsideHandler
from pavane.ambrosia.client.values import MARKER, Codec, pack, unpack
from pavane.parts import documents

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

FREE_NAMES = frozenset({"restart", "search_attributes"})  # of tools younger than applications that may have such names
NUMBER_BITS = 20  # of a method's number when it is made of its name: three bytes on the wire
_EMPTY = inspect.Parameter.empty
_EMPTY_VALUES: dict[Any, Any] = {int: 0, float: 0.0, bool: False, str: "", bytes: b"", type(None): None}


def place(function: Callable[..., Any]) -> str:
    """Return file:line of ``function``."""
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


class Signature:
    """Parameters and result of a function, as bytes."""

    def __init__(self, function: Callable[..., Any], title: str) -> None:
        self.title = title
        where = place(function)
        hints = typing.get_type_hints(function, include_extras=True)
        self.parameters: list[tuple[str, Codec, Any]] = []
        signature = inspect.signature(function)
        for parameter in list(signature.parameters.values())[1:]:
            if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
                raise DefinitionError(f"{where}: {title}: parameter {parameter.name} must be an ordinary one")
            if parameter.name not in hints:
                raise DefinitionError(f"{where}: {title}: parameter {parameter.name} needs an annotation")
            codec = _codec(hints[parameter.name], f"{where}: {title}: parameter {parameter.name}")
            if parameter.default is not _EMPTY:
                try:
                    codec.pack(parameter.default)
                except (ValueError, TypeError) as error:
                    text = f"{where}: {title}: the default of {parameter.name} does not fit its annotation: {error}"
                    raise DefinitionError(text) from error
            self.parameters.append((parameter.name, codec, parameter.default))
        self.returns = hints.get("return", Any)
        self.result = _codec(self.returns, f"{where}: {title}: result")
        self._plain = signature.replace(parameters=list(signature.parameters.values())[1:])

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return a call's arguments as bytes; raises ``TypeError`` or ``ValueError`` if they do not fit."""
        if kwargs:
            bound = self._plain.bind(*args, **kwargs)
            bound.apply_defaults()
            args = bound.args
        self._count(len(args))
        plain = [codec.plain(value) for (_, codec, _), value in zip(self.parameters, args, strict=False)]
        return MARKER + pack(plain) if plain else b""

    def unpack(self, data: bytes) -> list[Any]:
        """Return the arguments in ``data``, with defaults for what it lacks; raises ``ValueError`` or ``TypeError``."""
        if not data:
            plain: Any = ()
        elif data[:1] == b"{":
            # Deeper JSON would end the application whenever it gets to this message, so for ever.
            plain = documents.parse(data)
        else:
            plain = unpack(memoryview(data)[1:])
        return self.check(plain)

    def check(self, plain: Any) -> list[Any]:
        """Return arguments given as a sequence, or as a map by name; raises ``ValueError`` or ``TypeError``."""
        if type(plain) is tuple and len(plain) == len(self.parameters):
            try:
                return [codec.check(value) for (_, codec, _), value in zip(self.parameters, plain, strict=True)]
            except ValueError:
                pass  # which parameter it is comes out below
        if isinstance(plain, dict):
            known = [name for name, _, _ in self.parameters]
            if unknown := [str(name) for name in plain if name not in known]:
                raise TypeError(
                    f"{self.title} has no parameter {', '.join(unknown)}; it has {', '.join(known) or 'none'}"
                )
            given = [plain.get(name, _EMPTY) for name in known]
        elif isinstance(plain, (list, tuple)):
            self._count(len(plain))
            given = [*plain, *[_EMPTY] * (len(self.parameters) - len(plain))]
        else:
            raise TypeError(f"{self.title}: arguments are a list, or an object by name")
        values = []
        for (name, codec, default), value in zip(self.parameters, given, strict=True):
            if value is _EMPTY:
                if default is _EMPTY:
                    raise TypeError(f"{self.title}: {name} is missing")
                values.append(default)
                continue
            try:
                values.append(codec.check(value))
            except ValueError as error:
                raise ValueError(f"{self.title}: {name}: {_short(error)}") from error
        return values

    def _count(self, given: int) -> None:
        if given > len(self.parameters):
            raise TypeError(f"{self.title} takes {len(self.parameters)} arguments, {given} were given")


def _short(error: ValueError) -> str:
    errors = getattr(error, "errors", None)
    return "; ".join(each["msg"] for each in errors()) if errors else str(error)


def _codec(kind: Any, what: str) -> Codec:
    try:
        return Codec(kind)
    except Exception as error:
        raise DefinitionError(f"{what}: {kind!r} cannot be written as bytes: {error}".splitlines()[0]) from error


class _Handler(Generic[S, P, R]):
    """A function of a class that can be called from outside; on an object it is the plain function."""

    def __init__(self, function: Callable[Concatenate[S, P], R]) -> None:
        self.function: Callable[..., R] = function
        self.name = function.__name__
        self.__doc__ = function.__doc__
        self.title = function.__qualname__

    @overload
    def __get__(self, instance: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: Any) -> Callable[P, R]: ...
    def __get__(self, instance: object | None, owner: Any) -> Self | Callable[P, R]:
        return self if instance is None else types.MethodType(self.function, instance)

    @functools.cached_property
    def signature(self) -> Signature:
        """Parameters and result; raises ``DefinitionError``."""
        return Signature(self.function, self.title)


class Method(_Handler[S, P, R]):
    """A handler: ``Account.deposit``."""

    def __init__(self, function: Callable[Concatenate[S, P], R], number: int | None) -> None:
        super().__init__(function)
        self.number = xxhash.xxh64_intdigest(self.name.encode()) % (1 << NUMBER_BITS) if number is None else number
        self.is_flow = inspect.iscoroutinefunction(function)


class Query(_Handler[S, P, R]):
    """A question that changes nothing and sends nothing; also answered while the log is replayed."""

    def __init__(self, function: Callable[Concatenate[S, P], R]) -> None:
        super().__init__(function)
        if inspect.iscoroutinefunction(function):
            raise DefinitionError(f"{place(function)}: {self.title}: a query is a plain def: it answers at once")


@overload
def method(number: Callable[Concatenate[S, P], R], /) -> Method[S, P, R]: ...
@overload
def method(number: int, /) -> Callable[[Callable[Concatenate[S, P], R]], Method[S, P, R]]: ...
def method(number: Any, /) -> Any:
    """Make a function of an immortal callable from outside: ``def`` runs to its end, ``async def`` is a flow.

    ``@method`` makes the number on the wire from the name; ``@method(7)`` fixes it, for peers in other languages and
    for a method that gets another name.
    """
    if callable(number):
        return Method(number, None)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**31:
        raise DefinitionError(f"@method({number!r}): a method's number is a whole number from 0 to 2147483647")
    return lambda function: Method(function, number)


def query(function: Callable[Concatenate[S, P], R]) -> Query[S, P, R]:
    """Make a function of an immortal a query: it reads the state, changes nothing and sends nothing."""
    return Query(function)


class Field:
    """One attribute of the state."""

    def __init__(self, name: str, kind: Any, default: Any, where: str) -> None:
        self.name = name
        self.kind = kind
        self.codec = _codec(kind, where)
        self._default = default
        if default is _EMPTY:
            empty(kind, where)
        else:
            if default.__class__.__hash__ is None:
                raise DefinitionError(f"{where}: the default {default!r} would be shared by all objects; leave it out")
            try:
                self.codec.pack(default)
            except (ValueError, TypeError) as error:
                raise DefinitionError(f"{where}: the default {default!r} does not fit the annotation") from error

    def initial(self) -> Any:
        """Return the value that a new object has."""
        value = empty(self.kind, self.name) if self._default is _EMPTY else self._default
        return self.codec.unpack(self.codec.pack(value))  # as after a restore: 0 of a float is 0.0


def empty(kind: Any, where: str) -> Any:
    """Return the empty value of a type: 0, "", an empty container …; raises ``DefinitionError`` if it has none."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return empty(typing.get_args(kind)[0], where)
    if origin in (typing.Union, types.UnionType):
        if type(None) in typing.get_args(kind):
            return None
    elif kind in _EMPTY_VALUES:
        return _EMPTY_VALUES[kind]
    else:
        made = origin or kind
        if isinstance(made, type) and not issubclass(made, enum.Enum) and not inspect.isabstract(made):
            try:
                value = made()
            except Exception as error:
                raise DefinitionError(f"{where}: {made.__name__} has no empty value; give a default") from error
            try:
                Codec(kind).pack(value)
            except (ValueError, TypeError):
                pass
            else:
                return value
    raise DefinitionError(f"{where}: {kind!r} has no empty value; give a default")


class Definition:
    """All that a class says, worked out once."""

    _known: ClassVar[dict[type, "Definition"]] = {}

    def __init__(self, kind: type, base: type) -> None:
        self.kind = kind
        self.methods: dict[int, Method[Any, ..., Any]] = {}
        self.by_name: dict[str, Method[Any, ..., Any]] = {}
        self.queries: dict[str, Query[Any, ..., Any]] = {}
        where = f"{sys.modules[kind.__module__].__file__ or kind.__module__}: {kind.__qualname__}"
        for name in dir(kind):
            found = inspect.getattr_static(kind, name)
            if isinstance(found, (Method, Query)) and name in base.__dict__.keys() - FREE_NAMES:
                text = f"{place(found.function)}: {found.title}: every immortal has something of that name"
                raise DefinitionError(f"{text}: choose another one")
            if isinstance(found, Method):
                self._add(found)
            elif isinstance(found, Query):
                self.queries[name] = found
                _ = found.signature
        self.fields: dict[str, Field] = {}
        for name, annotation in _annotations(kind, base).items():
            if name in base.__dict__.keys() - FREE_NAMES or name.startswith("_"):
                raise DefinitionError(
                    f"{where}: an attribute of the state cannot be called {name}: choose another name"
                )
            default = getattr(kind, name, _EMPTY)
            if default is base.__dict__.get(name, _EMPTY):
                default = _EMPTY
            self.fields[name] = Field(name, annotation, default, f"{where}.{name}")

    def _add(self, found: Method[Any, ..., Any]) -> None:
        other = self.methods.get(found.number)
        if other is not None:
            text = f"{place(found.function)}: {found.title} has the number {found.number} of {other.title}"
            raise DefinitionError(f"{text}: give one of them a number of its own, as in @method(1)")
        self.methods[found.number] = found
        self.by_name[found.name] = found
        _ = found.signature

    def flow_of(self, tool: str, method: Method[Any, ..., Any]) -> Method[Any, ..., Any]:
        """Return the flow of this class that ``method`` names; raises ``OutsideHandler``.

        What begins otherwise would end the process, now and in each life that handles the message again.
        """
        known = self.methods.get(method.number)
        if known is None or not known.is_flow or known.name != method.name:
            remedy = f"it begins a flow of {self.kind.__qualname__}: an `async def` under @method"
            raise OutsideHandler(f"self.{tool}({method.title})", remedy=remedy)
        return known

    @classmethod
    def of(cls, kind: type, base: type) -> "Definition":
        """Return the definition of ``kind``; raises ``DefinitionError``, or ``NameError`` for a name not yet known."""
        if kind not in cls._known:
            cls._known[kind] = cls(kind, base)
        return cls._known[kind]


def _annotations(kind: type, base: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in reversed(kind.__mro__):
        if issubclass(each, base) and each is not base:
            own = set(inspect.get_annotations(each))
            hints = typing.get_type_hints(each, include_extras=True)
            found |= {
                name: hints[name] for name in hints if name in own and typing.get_origin(hints[name]) is not ClassVar
            }
    return found
