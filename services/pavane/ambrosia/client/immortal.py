"""The base class of applications, and what their handlers may do (docs/specs/ambrosia.md 18.6, 18.8)."""

import contextlib
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar, cast, overload

from pavane.ambrosia.client.definition import Definition, Method
from pavane.ambrosia.client.errors import DefinitionError, OutsideHandler, UndeclaredState
from pavane.ambrosia.client.flows import First, Gathered, parts_of
from pavane.ambrosia.client.retries import Retry

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class Tools(Protocol):
    """What the engine does for a handler."""

    name: str
    app_version: int

    def assigned(self, name: str, value: Any) -> None:
        """Note that an attribute of the state was set; raises when nobody may set it now."""

    def fork(self, method: Method[Any, ..., Any], to: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Send a Fork."""

    def start(self, method: Method[Any, ..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a flow of one's own."""

    def impulse(self, method: Method[Any, ..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Send an Impulse to oneself."""

    def chance(self) -> random.Random:
        """Return the generator of the running handler."""


class Immortal:
    """An application whose object survives: annotated attributes are its state, handlers change it.

    ``def`` methods under ``@method`` run to their end; ``async def`` methods are flows, which may wait for days.
    """

    _tools: Tools

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # An annotation may name a class further down: then it is looked at when it is needed.
        with contextlib.suppress(NameError):
            if "_is_view" not in cls.__dict__:  # the self of flows
                Definition.of(cls, Immortal)

    # What an application may override

    def first_start(self) -> None:
        """Run once in the life of the instance, before any call."""

    def upgrade(self, old_version: int, old: Any) -> None:
        """Run once, when the instance changes over to a new version of its application.

        ``self`` has the new version and what fits of the former state; ``old`` is the former object, or ``self`` where
        the class is the same. It changes the state and sends nothing.
        """

    def became_primary(self) -> None:
        """Run whenever this process begins to lead; it may send Impulses only."""

    # What handlers use

    @property
    def name(self) -> str:
        """The name of the instance, which is its address."""
        return self._tools.name

    @property
    def app_version(self) -> int:
        """The version of the application, for code that branches; in a flow the one with which it began."""
        return self._tools.app_version

    @property
    def random(self) -> random.Random:
        """A generator that gives the same numbers again in a replay."""
        return self._tools.chance()

    def uuid(self) -> uuid.UUID:
        """Return a new identifier, the same one in a replay."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def fork(self, method: Method[Any, P, Any], to: str, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call ``method`` of the instance ``to`` and forget it: exactly once, in order."""
        self._tools.fork(method, to, args, kwargs)

    def start(self, method: Method[Any, P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Begin a flow of this instance after this handler; nobody waits for it."""
        self._tools.start(method, args, kwargs)

    def impulse(self, method: Method[Any, P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Send a new message to oneself, from ``became_primary`` only; raises ``NotPrimary`` before."""
        self._tools.impulse(method, args, kwargs)

    @overload
    def call(
        self, method: Method[Any, P, Coroutine[Any, Any, R]], to: str, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]: ...
    @overload
    def call(self, method: Method[Any, P, R], to: str, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...
    def call(self, method: Method[Any, ..., Any], to: str, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Call ``method`` of the instance ``to`` and wait, for days if need be; raises ``RemoteError``. Flows only."""
        raise self._only_flows("call", "use `self.start` to begin a flow, or `self.fork` if nobody waits")

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait, also across crashes. Flows only."""
        raise self._only_flows("sleep", "use `self.start` to begin a flow that sleeps")

    def now(self) -> Awaitable[int]:
        """Return the wall clock in milliseconds, never less than before. Flows only."""
        raise self._only_flows("now", "take the time as an argument")

    def restart(self, method: Method[Any, P, Coroutine[Any, Any, Any]], *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        """End this run of the flow and begin anew, with ``method`` and an empty history. Flows only.

        Whoever waits for the flow waits for the last run. The next one has the version that the application has now.
        """
        raise self._only_flows("restart", "use `self.start` to begin a flow")

    def search_attributes(self, **attributes: str | float | bool | None) -> None:
        """Say by which values people find this flow while it is open; ``None`` takes one away. Flows only.

        A flow has at most 20, of at most 255 characters. They are nothing that a program may decide by: no handler
        sees them, and they are not part of the history. Each run of a flow sets its own.
        """
        raise self._only_flows("search_attributes", "use it in the flow that is to be found")

    @overload
    def run(
        self, retry: Retry, function: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]: ...
    @overload
    def run(self, retry: Retry, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...
    @overload
    def run(self, function: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...
    @overload
    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...
    def run(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Run any code outside, at least once: HTTP, files …; with a ``Retry`` again if it raises. Flows only."""
        raise self._only_flows("run", "use `self.start` to begin a flow that runs it")

    def _only_flows(self, tool: str, remedy: str) -> Exception:
        return OutsideHandler(f"self.{tool}() belongs to flows (async def methods)", remedy=remedy)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in Definition.of(type(self), Immortal).fields:
            remedy = f"write `{name}: <type>` in the class, or use a local variable"
            raise UndeclaredState(f"{type(self).__name__}.{name} is not part of the state", remedy=remedy)
        self._tools.assigned(name, value)
        object.__setattr__(self, name, value)


def definition(kind: type[Immortal]) -> Definition:
    """Return what the class says; raises ``DefinitionError``."""
    try:
        return Definition.of(kind, Immortal)
    except NameError as error:
        raise DefinitionError(f"{kind.__qualname__}: an annotation names what does not exist: {error}") from error


def create(kind: type[Immortal], tools: Tools) -> Immortal:
    """Return a new object with its initial state, without running any code of the application."""
    made = object.__new__(kind)
    object.__setattr__(made, "_tools", tools)
    for field in definition(kind).fields.values():
        object.__setattr__(made, field.name, field.initial())
    return made


@overload
def gather(first: Awaitable[A], second: Awaitable[B], /) -> Awaitable[tuple[A, B]]: ...
@overload
def gather(first: Awaitable[A], second: Awaitable[B], third: Awaitable[C], /) -> Awaitable[tuple[A, B, C]]: ...
@overload
def gather(*awaitables: Awaitable[A]) -> Awaitable[tuple[A, ...]]: ...
def gather(*awaitables: Awaitable[Any]) -> Awaitable[Any]:
    """Wait for all of several calls, timers or runs of a flow; raises the first exception of them."""
    return cast("Awaitable[Any]", Gathered(parts_of(awaitables, "gather")))


@overload
def first(one: Awaitable[A], two: Awaitable[B], /) -> Awaitable[A | B]: ...
@overload
def first(*awaitables: Awaitable[A]) -> Awaitable[A]: ...
def first(*awaitables: Awaitable[Any]) -> Awaitable[Any]:
    """Wait for the one of several whose answer stands first in the log; the others are dropped."""
    if not awaitables:
        raise ValueError("first() needs something to wait for")
    return cast("Awaitable[Any]", First(parts_of(awaitables, "first")))
