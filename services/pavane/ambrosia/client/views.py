"""``self`` in a flow: everything that it gives is written into the flow's history (docs/specs/ambrosia.md 18.8)."""

import functools
import inspect
import math
import typing
from collections import deque
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, NoReturn, Protocol

from pavane.ambrosia.client.beside import name_of
from pavane.ambrosia.client.definition import FREE_NAMES, Definition, Method, Query
from pavane.ambrosia.client.errors import OutsideHandler, StateInFlow
from pavane.ambrosia.client.flows import (
    ERROR,
    OPEN,
    VALUE,
    Flow,
    GivenUp,
    Pending,
    Restarted,
    Step,
    error_bytes,
    frozen,
)
from pavane.ambrosia.client.immortal import Immortal
from pavane.ambrosia.client.retries import Retry
from pavane.ambrosia.client.values import Codec, pack, unpack
from pavane.ambrosia.core.binding import Binding

_NONE = pack(None)
ATTRIBUTES_MAX = 20  # of a flow: 10,000 of them may be open
ATTRIBUTE_BYTES_MAX = 255  # of a name, and of a value

_TOOLS = frozenset({"call", "fork", "start", "sleep", "now", "run", "impulse", "restart", "search_attributes"})
_OURS = frozenset({"_tools", "_flow"})
_PLAIN = frozenset({"name", "app_version", "uuid"})


class Member:
    """A function of the class as a flow sees it."""

    def __init__(self, found: Any) -> None:
        self.is_property = isinstance(found, property)
        self.method = found if isinstance(found, (Method, Query)) else None
        function: Any = found.fget if isinstance(found, property) else getattr(found, "function", found)
        self.function: Callable[..., Any] | None = function if isinstance(function, FunctionType) else None
        self.is_flow = inspect.iscoroutinefunction(function)
        self._codec: Codec | None = None

    @property
    def codec(self) -> Codec:
        """How its result is written down."""
        if self.method is not None:
            return self.method.signature.result
        if self._codec is None:
            hints = typing.get_type_hints(self.function) if self.function is not None else {}
            self._codec = Codec(hints.get("return", Any))
        return self._codec


class Host(Protocol):
    """What a flow's view needs of the engine that runs it."""

    name: str
    definition: Definition
    binding: Binding
    object: Any
    begun: deque[tuple[Method[Any, ..., Any], bytes]]

    def guarded(self, title: str, mode: str, seed: str, body: Callable[..., Any], *args: Any) -> Any:
        """Run code of the application."""

    def new_call(self, flow: Flow) -> int:
        """Return the number of a call that the last step of ``flow`` makes."""

    def called_out(self, flow: Flow, step: Step) -> None:
        """Begin the span of a call, if its flow has one."""

    def outside(self, flow: Flow, index: int) -> None:
        """Have a step carried out beside the log, if this process leads."""


class FlowTools:
    """What ``self`` offers a flow, by its history: only what is new is carried out."""

    def __init__(self, engine: Host, flow: Flow) -> None:
        self._engine = engine
        self._offered: dict[str, Callable[..., Any]] = {}
        self.closed = False
        """The code that uses it is given up: its ``finally`` changes and sends nothing."""
        self.ending = False
        """That code is being ended; nobody else looks at what it uses meanwhile."""
        self._was_told = False
        self.name = engine.name
        self.fields = engine.definition.fields
        self.app_version = flow.version
        """The version of the application with which the flow began."""

    def close(self) -> None:
        """Have no effect from now on; keep no flow alive either."""
        self.closed = True
        self._offered.clear()

    def given_up(self) -> GivenUp:
        """Tell code that has been given up to end; if it goes on, give it what it cannot await.

        What is left of an ended flow may be looked at later, as by a line of the log that shows its exception. So then
        an error is raised that everybody handles.
        """
        if self._was_told:
            return GivenUp()
        self._was_told = True
        if self.ending:
            raise GeneratorExit
        raise OutsideHandler("the flow has ended, and its code goes on", remedy="use `self` before it ends")

    def read(self, flow: Flow, name: str) -> Any:
        """Give a flow an attribute of the state, by its history."""
        step, new = flow.step("read", "", name, b"")
        codec = self._engine.definition.fields[name].codec
        if new:
            flow.settle(step, VALUE, codec.pack(getattr(self._engine.object, name)))
        return frozen(codec.unpack(step.value))

    def own(self, flow: Flow, name: str, member: Member, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an own plain method for a flow, by its history."""
        if self.closed:  # the code took the method before
            return self.given_up()
        method = member.method
        step, new = flow.step("own", "", name, method.signature.pack(args, kwargs) if method is not None else b"")
        function = member.function
        if new and function is not None:
            try:
                value = self._engine.guarded(
                    f"{flow.title} → {name}",
                    "handler",
                    f"flow {flow.number}/{flow.cursor}",
                    lambda: function(self._engine.object, *args, **kwargs),
                )
                flow.settle(step, VALUE, member.codec.pack(value))
            except (RecursionError, MemoryError):
                raise
            except Exception as error:
                flow.settle(step, ERROR, error_bytes(error))
        return Pending(step, member.codec.unpack).result()

    def tool(self, flow: Flow, name: str) -> Callable[..., Any]:
        """Return what a flow may send or wait for."""
        found = self._offered.get(name)
        if found is None:
            if name == "impulse":
                raise OutsideHandler("self.impulse() in a flow", remedy="use `self.fork` or `self.call`")
            found = self._offered[name] = functools.partial(self._use, getattr(self, f"_flow_{name}"), flow)
        return found

    def _use(self, function: Callable[..., Any], flow: Flow, *args: Any, **kwargs: Any) -> Any:
        return self.given_up() if self.closed else function(flow, *args, **kwargs)

    def _flow_call(self, flow: Flow, method: Method[Any, ..., Any], to: str, *args: Any, **kwargs: Any) -> Pending:
        data = method.signature.pack(args, kwargs)
        step, new = flow.step("call", to, method.name, data)
        if new:
            step.number = self._engine.new_call(flow)
            self._engine.called_out(flow, step)
            self._engine.binding.call(to, method.number, step.number, data)
        return Pending(step, method.signature.result.unpack)

    def _flow_fork(self, flow: Flow, method: Method[Any, ..., Any], to: str, *args: Any, **kwargs: Any) -> None:
        data = method.signature.pack(args, kwargs)
        step, new = flow.step("fork", to, method.name, data)
        if new:
            flow.settle(step, VALUE, _NONE)
            self._engine.binding.fork(to, method.number, data)

    def _flow_start(self, flow: Flow, method: Method[Any, ..., Any], *args: Any, **kwargs: Any) -> None:
        self._engine.definition.flow_of("start", method)
        data = method.signature.pack(args, kwargs)
        step, new = flow.step("start", "", method.name, data)
        if new:
            flow.settle(step, VALUE, _NONE)
            self._engine.begun.append((method, data))

    def _flow_sleep(self, flow: Flow, seconds: float) -> Pending:
        return self._flow_wait(flow, "sleep", repr(float(seconds)))

    def _flow_now(self, flow: Flow) -> Pending:
        return self._flow_wait(flow, "now", "")

    def _flow_wait(self, flow: Flow, kind: str, what: str) -> Pending:
        _, new = flow.step(kind, "", what, b"")
        index = flow.cursor - 1
        if new:
            self._engine.outside(flow, index)
        return Pending(flow.steps[index], unpack)

    def _flow_run(self, flow: Flow, function: Any, *args: Any, **kwargs: Any) -> Pending:
        retry = function if isinstance(function, Retry) else None
        if retry is not None:
            if not args:
                raise TypeError("self.run(Retry(…)) without a function: write self.run(Retry(…), function, …)")
            function, args = args[0], args[1:]
        member = Member(function)
        step, new = flow.step("run", "", name_of(function), b"")
        index = flow.cursor - 1
        if step.state == OPEN:
            flow.details[index] = (function, args, kwargs, member, retry)
        if new:
            self._engine.outside(flow, index)
        return Pending(step, member.codec.unpack)

    def _flow_search_attributes(self, flow: Flow, **attributes: str | float | bool | None) -> None:
        for name, value in attributes.items():
            if value is not None and type(value) not in (str, int, float, bool):
                raise TypeError(f"search attribute {name} is a {type(value).__name__}: give a text, a number or a bool")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"search attribute {name} is {value}, which no JSON has")
            try:
                size = max(len(name.encode()), len(str(value).encode()))
            except UnicodeEncodeError as error:
                raise ValueError(f"search attribute {name!a} holds half a character, which nobody can show") from error
            if size > ATTRIBUTE_BYTES_MAX:
                raise ValueError(f"search attribute {name:.40} has more than {ATTRIBUTE_BYTES_MAX} bytes")
        together = {name: value for name, value in {**flow.attributes, **attributes}.items() if value is not None}
        if len(together) > ATTRIBUTES_MAX:
            raise ValueError(f"{flow.title} has {len(together)} search attributes, of at most {ATTRIBUTES_MAX}")
        flow.attributes = together

    def _flow_restart(self, flow: Flow, method: Method[Any, ..., Any], *args: Any, **kwargs: Any) -> NoReturn:
        following = self._engine.definition.flow_of("restart", method)
        if method.signature.returns != self._engine.definition.methods[flow.method].signature.returns:
            remedy = f"whoever waits for {flow.title} expects what that returns: give both the same annotation"
            raise OutsideHandler(f"self.restart({method.title}) gives another result", remedy=remedy)
        data = method.signature.pack(args, kwargs)
        following.signature.unpack(data)  # while the run can still handle the exception
        step, new = flow.step("restart", "", method.name, data)
        if new:
            flow.settle(step, VALUE, _NONE)
        raise Restarted(method.number, data)


@functools.cache
def _member(kind: type, name: str) -> Member:
    return Member(inspect.getattr_static(kind, name))


@functools.cache
def view_of(kind: type) -> Any:
    """Return the class of ``self`` in the flows of ``kind``."""
    own = {name for name in FREE_NAMES if inspect.getattr_static(kind, name) is not vars(Immortal)[name]}
    offered = _TOOLS - own

    def getattribute(self: Any, name: str) -> Any:
        get = object.__getattribute__
        if name[0] == "_" and (name[:2] == "__" or name in _OURS):
            return get(self, name)
        tools: FlowTools = get(self, "_tools")
        if tools.closed and name not in _PLAIN and (name in tools.fields or hasattr(kind, name)):
            return tools.given_up()
        flow: Flow = get(self, "_flow")
        if name in tools.fields:
            return tools.read(flow, name)
        if name in offered:
            return tools.tool(flow, name)
        if name == "random":
            return flow.chance
        if name in _PLAIN:
            return get(self, name)
        member = _member(kind, name)
        if member.function is None:
            return get(self, name)
        if member.is_flow:
            return MethodType(member.function, self)
        if member.is_property:
            return tools.own(flow, name, member, (), {})
        return lambda *args, **kwargs: tools.own(flow, name, member, args, kwargs)

    def setattribute(self: Any, name: str, value: Any) -> None:
        del self, value
        raise StateInFlow(
            f"a flow sets self.{name}", remedy="others may run while it waits; set it in a def method and call that one"
        )

    space: dict[str, Any] = {"__getattribute__": getattribute, "__setattr__": setattribute, "_is_view": True}
    made: Any = type(kind.__name__, (kind,), {**space, "__module__": kind.__module__})
    return made


def view(kind: type, tools: FlowTools, flow: Flow) -> Any:
    """Return ``self`` for ``flow``."""
    made = object.__new__(view_of(kind))
    object.__setattr__(made, "_tools", tools)
    object.__setattr__(made, "_flow", flow)
    return made
