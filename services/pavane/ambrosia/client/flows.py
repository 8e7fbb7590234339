"""Flows: handlers that wait, with a history from which they begin again after a crash (docs/specs/ambrosia.md 18.8).

A flow asks for *steps*: calls, timers, reads of the state … Each is written down with its result. After a restore the
code runs again from its start and gets the results that it had, without any effect, up to where it waited.
"""

import builtins
import contextlib
import inspect
import random
import sys
import types
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import xxhash

from pavane.ambrosia.client.effects import REQUESTS_OPEN_MAX
from pavane.ambrosia.client.errors import FlowMismatch, ImmortalError, NotDurable, RemoteError, StateInFlow
from pavane.ambrosia.client.values import pack, unpack

FLOW_HISTORY_MAX = 10_000  # steps of one flow: its history is part of every checkpoint
FLOW_HISTORY_BYTES_MAX = 1 << 20
FLOW_STEPS_BEHIND_RESTART = 100  # beyond the limits: a `finally` of the run that ends may need some
FLOW_HISTORY_WARN = 0.5  # of either limit: half of its life is left to change the flow
RESTARTS_AT_ONCE_MAX = 100  # of a flow that never waits in between: meanwhile nobody else is served
BEGIN_ANEW = "let it begin anew from time to time, with self.restart(…)"
LIMITS = f"FLOW_HISTORY_MAX ({FLOW_HISTORY_MAX}) and FLOW_HISTORY_BYTES_MAX ({FLOW_HISTORY_BYTES_MAX})"
OPEN, VALUE, ERROR = 0, 1, 2


@dataclass(slots=True)
class Step:
    """One thing that a flow asked for: ``order`` counts the results of the flow as they arrived."""

    kind: str
    target: str
    method: str
    check: int
    number: int = 0
    state: int = OPEN
    value: bytes = b""
    order: int = -1
    due: int = -1
    """Of a timer, or of a run's next attempt: when, in milliseconds of the wall clock; -1 = nobody has said yet."""
    attempts: int = 0
    """Of a run: how many have failed and were followed by another one."""

    def words(self) -> str:
        """Say what it is."""
        return " ".join(each for each in (self.kind, self.target, self.method) if each)

    def dump(self) -> list[Any]:
        """Return it for a checkpoint; without a run that was tried again as versions before retries wrote it."""
        found = [getattr(self, name) for name in self.__slots__]
        return found if self.attempts else found[:-1]


class Restarted(BaseException):
    """Ends a run of a flow: the next one begins with ``method``. What handles an ``Exception`` lets it pass."""

    def __init__(self, method: int, arguments: bytes) -> None:
        super().__init__("this run of a flow has ended, and the next one begins: do not handle BaseException")
        self.method = method
        self.arguments = arguments


class Origin(NamedTuple):
    """Who waits for the result: nobody, a caller (``sender``, ``number``), or requests from outside (``key``)."""

    sender: str = ""
    number: int = -1
    tokens: tuple[str, ...] = ()
    key: str = ""

    def joined(self, token: str) -> "Origin":
        """Return it with one more request that waits: each once, and as many as one process may have."""
        others = tuple(each for each in self.tokens if each != token)
        return self._replace(tokens=(*others, token)[-REQUESTS_OPEN_MAX:])


class Pending:
    """What a flow awaits. Its result is decoded when the flow goes on."""

    def __init__(self, step: Step, decode: Callable[[bytes], Any]) -> None:
        self.step = step
        self._decode = decode

    def __await__(self) -> Generator["Pending", Any, Any]:
        return (yield self)

    def order(self) -> int:
        """Return when its result arrived, -1 while it has none."""
        return self.step.order

    def failed(self) -> bool:
        """Say whether its result is an exception."""
        return self.step.state == ERROR

    def result(self) -> Any:
        """Return the result, or raise it."""
        if self.step.state == ERROR:
            raise remote(self.step.value) if self.step.kind == "call" else revive(self.step.value)
        return self._decode(self.step.value)


class GivenUp(Pending):
    """What code gets that has been given up and goes on all the same: it never arrives, and awaiting it ends the code.

    An exception at each use would let ``while True: try: … except: pass`` run for ever.
    """

    def __init__(self) -> None:
        super().__init__(Step("", "", "", 0), unpack)

    def __call__(self, *args: Any, **kwargs: Any) -> "GivenUp":
        """Stand for any tool, or method of the class."""
        return self


class Gathered(Pending):
    """All of several: a tuple of results, or the first exception."""

    def __init__(self, parts: list[Pending]) -> None:
        self._parts = parts

    def _decisive(self) -> Pending | None:
        failed = [part for part in self._parts if part.order() >= 0 and part.failed()]
        return min(failed, key=Pending.order) if failed else None

    def order(self) -> int:
        """Return when it was decided, -1 before."""
        decisive = self._decisive()
        if decisive is not None:
            return decisive.order()
        orders = [part.order() for part in self._parts]
        return -1 if -1 in orders else max(orders, default=0)

    def failed(self) -> bool:
        """Say whether it is an exception."""
        return self._decisive() is not None

    def result(self) -> Any:
        """Return the result, or raise it."""
        decisive = self._decisive()
        return decisive.result() if decisive is not None else tuple(part.result() for part in self._parts)


class First(Pending):
    """The one of several whose answer stands first in the log."""

    def __init__(self, parts: list[Pending]) -> None:
        self._parts = parts

    def _winner(self) -> Pending | None:
        return min((part for part in self._parts if part.order() >= 0), key=Pending.order, default=None)

    def order(self) -> int:
        """Return when it was decided, -1 before."""
        winner = self._winner()
        return -1 if winner is None else winner.order()

    def failed(self) -> bool:
        """Say whether it is an exception."""
        winner = self._winner()
        return winner is not None and winner.failed()

    def result(self) -> Any:
        """Return the result, or raise it."""
        winner = self._winner()
        return winner.result() if winner is not None else None


def parts_of(awaitables: tuple[Any, ...], function: str) -> list[Pending]:
    """Return what ``gather`` and ``first`` may wait for; raises ``NotDurable``."""
    for each in awaitables:
        if not isinstance(each, Pending):
            if inspect.iscoroutine(each):
                each.close()
            remedy = "give it results of self.call, self.sleep, self.now or self.run"
            raise NotDurable(f"{function}() cannot wait for {type(each).__name__}", remedy=remedy)
    return list(awaitables)


def error_bytes(error: BaseException) -> bytes:
    """Return an exception as an answer of kind 3 carries it."""
    if isinstance(error, RemoteError):
        return pack({"type": error.type, "message": _text(error.message)})
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}:{kind.__qualname__}"
    plain = len(error.args) == 1 and isinstance(error.args[0], str)  # str() of a KeyError would quote it
    return pack({"type": name, "message": _text(error.args[0] if plain else str(error))})


def _text(message: str) -> str:
    """Return what can be written: the name of a file may hold bytes that are no text."""
    return message.encode("utf-8", "backslashreplace").decode()


def remote(value: bytes) -> RemoteError:
    """Return what an answer of kind 3 stands for, whatever its sender wrote."""
    try:
        found = unpack(value)
        return RemoteError(str(found["type"]).rpartition(":")[2], str(found["message"]))
    except (ValueError, KeyError, TypeError):
        return RemoteError("Exception", value.decode("utf-8", "replace"))


def revive(value: bytes) -> Exception:
    """Return the exception of an own method: the same class before and after a restore, or ``RemoteError``."""
    found = unpack(value)
    module, _, name = str(found["type"]).rpartition(":")
    kind: Any = builtins if not module else sys.modules.get(module)
    for part in name.split("."):
        kind = getattr(kind, part, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, ImmortalError):
        try:
            made: Exception = kind(found["message"])
        except Exception:  # a class of the application with parameters of its own
            return remote(value)
        return made
    return remote(value)


@dataclass(slots=True)
class Flow:
    """One flow: what it runs, for whom, and its history."""

    number: int
    method: int
    arguments: bytes
    origin: Origin
    version: int = 0
    """Of the application when the flow began: its code may branch on it, also after an upgrade."""
    steps: list[Step] = field(default_factory=list)
    arrived: int = 0
    size: int = 0
    """Bytes of its history."""
    cursor: int = 0
    restoring: bool = False
    waiting: Pending | None = None
    coroutine: Coroutine[Any, Any, Any] | None = None
    tools: Any = None
    """What its code uses; it does nothing once it is closed."""
    details: dict[int, Any] = field(default_factory=dict)
    """Of steps that are carried out beside the log, what has to be done; not part of a checkpoint."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """By which people find it; its code sets them again when it runs through its history, so no checkpoint has them."""
    title: str = ""
    seed: str = ""
    generator: random.Random | None = None
    span: Any = None
    """Where the flow is traced: it ends with this life."""

    @property
    def chance(self) -> random.Random:
        """The generator of this flow, made when it is first used."""
        if self.generator is None:
            self.generator = random.Random(self.seed)  # noqa: S311 - repeatable, not secret
        return self.generator

    def settle(self, step: Step, state: int, value: bytes) -> None:
        """Write the result of a step down; the first one counts."""
        if step.state == OPEN:
            step.state, step.value, step.order = state, value, self.arrived
            self.arrived += 1
            self.size += len(value)

    def step(self, kind: str, target: str, method: str, detail: bytes) -> tuple[Step, bool]:
        """Return the next step and whether it is new; raises ``FlowMismatch`` when the code has changed."""
        check = xxhash.xxh64_intdigest(detail) if detail else 0
        asked = Step(kind, target, method, check)
        if self.cursor < len(self.steps):
            step = self.steps[self.cursor]
            if (step.kind, step.target, step.method, step.check) != (kind, target, method, check):
                differs = " with other arguments" if step.words() == asked.words() else ""
                raise self.mismatch(step.words(), asked.words() + differs)
            self.cursor += 1
            return step, False
        if self.restoring:
            raise self.mismatch("to wait, or to end", asked.words())
        if kind != "restart" and self.full > 1 and not self._leaves():
            raise ImmortalError(f"{self.title}: {self.length()} of at most {LIMITS}: {BEGIN_ANEW}")
        self.steps.append(asked)
        self.cursor += 1
        return asked, True

    @property
    def full(self) -> float:
        """How much of what its history may be it is; above 1 nothing new can be asked."""
        return max((len(self.steps) + 1) / FLOW_HISTORY_MAX, self.size / FLOW_HISTORY_BYTES_MAX)

    @property
    def long(self) -> bool:
        """Whether it is time to begin anew; its arguments are part of each checkpoint too."""
        held = (self.size + len(self.arguments)) / FLOW_HISTORY_BYTES_MAX
        return max(self.full, held) > FLOW_HISTORY_WARN

    def _leaves(self) -> bool:
        return any(step.kind == "restart" for step in self.steps[-FLOW_STEPS_BEHIND_RESTART:])

    def length(self) -> str:
        """Say how long its history is."""
        size = self.size + len(self.arguments)
        return f"flow {self.number} has {len(self.steps)} steps, {size} bytes of arguments and history"

    def restless(self) -> ImmortalError:
        """Return the error for a flow that never waits."""
        return ImmortalError(
            f"{self.title} began anew {RESTARTS_AT_ONCE_MAX} times (RESTARTS_AT_ONCE_MAX) without waiting"
        )

    def mismatch(self, expected: str, found: str) -> FlowMismatch:
        """Return the error for a flow whose code asks for other things than its history says."""
        frame = self.coroutine.cr_frame if isinstance(self.coroutine, types.CoroutineType) else None
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
        return FlowMismatch(
            f"{self.title}: step {self.cursor + 1} of flow {self.number} is now: {found}",
            expected=expected,
            where=where,
            remedy="start it with the code that it began with, or change the method under another name",
        )

    def rewind(self) -> None:
        """Let the code run again from its start, against the history."""
        self.give_up()
        self.cursor, self.restoring, self.waiting = 0, True, None
        self.attributes = {}

    def give_up(self) -> None:
        """End the code without effect: it runs again, here or in another life, or its flow has ended.

        What it left behind, an asynchronous generator above all, may run later: it has no effect either.
        """
        if self.tools is not None:
            self.tools.close()
            self.tools.ending = True
        if isinstance(self.coroutine, Coroutine):
            with contextlib.suppress(Exception):  # of its `finally`, which is not the end of the flow
                self.coroutine.close()
        if self.tools is not None:
            self.tools.ending = False
        self.coroutine = self.tools = None

    def dump(self) -> list[Any]:
        """Return it for a checkpoint."""
        origin = [self.origin.sender, self.origin.number, list(self.origin.tokens), self.origin.key]
        steps = [step.dump() for step in self.steps]
        return [self.number, self.method, self.arguments, origin, self.arrived, steps, self.version]

    @classmethod
    def load(cls, data: Any) -> "Flow":
        """Return what ``dump`` wrote."""
        number, method, arguments, (sender, call, tokens, key), arrived, steps, version = data
        flow = cls(number, method, arguments, Origin(sender, call, tuple(tokens), key), version)
        flow.steps = [Step(*each) for each in steps]
        flow.arrived = arrived
        flow.size = sum(len(step.value) for step in flow.steps)
        flow.restoring = True
        return flow


def frozen(value: Any) -> Any:
    """Return a container of the state as a flow sees it: any change is refused in words."""
    if isinstance(value, dict):
        return _Dict((key, frozen(each)) for key, each in value.items())
    if isinstance(value, list):
        return _List(frozen(each) for each in value)
    if isinstance(value, set):
        return frozenset(value)
    return value


def _refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
    del args, kwargs
    raise StateInFlow(
        f"a {type(self).__mro__[1].__name__} of the state is changed",
        remedy="change it in a def method and call that one",
    )


class _Dict(dict[Any, Any]):
    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse


class _List(list[Any]):
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse


def drive(flow: Flow) -> bool:
    """Run the code of a flow; says whether it waits. Its result, or ``Restarted``, is left in ``details[-1]``."""
    coroutine = flow.coroutine
    if coroutine is None:
        raise RuntimeError("a flow without code")
    error: Exception | None = None
    value: Any = None
    if flow.waiting is not None:
        value, error = _outcome(flow.waiting)
        flow.waiting = None
    while True:
        try:
            asked = coroutine.throw(error) if error is not None else coroutine.send(value)
        except StopIteration as stop:
            flow.details[-1] = stop.value
            return False
        except Restarted as again:
            flow.details[-1] = again.with_traceback(None)  # which keeps the run alive
            return False
        if not isinstance(asked, Pending):
            remedy = (
                "await self.call, self.sleep, self.now, self.run, gather or first; other waits belong into self.run"
            )
            error = NotDurable(f"{flow.title} awaits {type(asked).__name__}", remedy=remedy)
            continue
        if asked.order() < 0:
            flow.waiting = asked
            return True
        value, error = _outcome(asked)


def _outcome(pending: Pending) -> tuple[Any, Exception | None]:
    try:
        return pending.result(), None
    except Exception as error:
        return None, error
