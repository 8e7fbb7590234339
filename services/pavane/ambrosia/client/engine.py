"""One immortal without I/O: bytes of the coordinator in, bytes and things to do outside out.

It runs handlers and flows, keeps the state and writes checkpoints. docs/specs/ambrosia.md 18.2 to 18.8.
"""

import random
import sys
from array import array
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import xxhash

from pavane.ambrosia.client import beside
from pavane.ambrosia.client import flows as flowing
from pavane.ambrosia.client.changes import Changes, digests
from pavane.ambrosia.client.context import Context, sender
from pavane.ambrosia.client.definition import Method, Query, place
from pavane.ambrosia.client.effects import CALLED, FAILED, LATE, Failed, Long, Outside, Result
from pavane.ambrosia.client.errors import (
    DeterminismError,
    FlowMismatch,
    ImmortalError,
    NotPrimary,
    OutsideHandler,
    RemoteError,
)
from pavane.ambrosia.client.flows import ERROR, OPEN, VALUE, Flow, Origin
from pavane.ambrosia.client.guard import Guard
from pavane.ambrosia.client.immortal import Immortal, create, definition
from pavane.ambrosia.client.snapshot import ImmortalSnapshot
from pavane.ambrosia.client.upgrading import put_back, state_of, take_over
from pavane.ambrosia.client.values import pack, unpack
from pavane.ambrosia.client.views import FlowTools, view
from pavane.ambrosia.core import binding as core
from pavane.ambrosia.tracing import EngineTracing, ended
from pavane.ambrosia.wire.messages import Call, Return, RpcKind, RpcType

KEYS_KEPT = 10_000  # idempotency keys whose results are part of the state
FLOWS_OPEN_MAX = 10_000  # flows under way: all of them are part of each checkpoint
DIGESTS_KEPT = 250_000  # handled messages since the last checkpoint of which it holds four bytes each: 1 MB
_NONE = pack(None)
_NOBODY = Origin()
_SCALARS = (int, str, bytes, bool, float, type(None))


class Engine:
    """The application ``kind`` as instance ``name``.

    ``version`` is the one that it has in its first life, and after an upgrade: then ``upgrade`` takes the place of
    ``kind``, if it is given. Before, what it restores from says its version. Handlers that have changed since they
    handled what stands behind the checkpoint are refused, unless ``any_code``.
    """

    def __init__(
        self,
        kind: type[Immortal],
        name: str,
        *,
        guard: Guard | None = None,
        version: int = 0,
        upgrade: type[Immortal] | None = None,
        shuffle: random.Random | None = None,
        any_code: bool = False,
    ) -> None:
        self.kind = kind
        self.name = name
        self.definition = definition(kind)
        self.binding = core.Binding(name)
        self.app_version = version
        self.effects: deque[Outside | Result | Failed | Long] = deque()
        self.counts: Counter[str] = Counter()
        self.flows: dict[int, Flow] = {}
        self.observer: Callable[[str, int, int], None] | None = None
        """Called after each handled message with the handler's name, seq and its mark."""
        self.tracing: EngineTracing | None = None
        self.guard = guard if guard is not None else Guard()
        self._version = version
        self._upgrade_to = upgrade
        self._shuffle, self._any_code = shuffle, any_code
        self._changes = Changes()
        self.object = create(kind, self)
        self._context: Context | None = None
        self._calls: dict[int, tuple[int, int]] = {}
        self._calls_made = self._flows_made = 0
        self._clock = 0
        self._keys: dict[str, tuple[int, int, bytes]] = {}
        self._warned: set[str] = set()
        self.begun: deque[tuple[Method[Any, ..., Any], bytes]] = deque()
        self._trace = 0
        self._handled = core.FIRST_SEQ
        self.marks = array("I")
        self.loaded: ImmortalSnapshot | None = None
        """The checkpoint that this life began with."""
        self.written: list[bytes] = []
        """Checkpoints written in this life; only the last one is kept."""

    # The stream

    @property
    def life(self) -> core.Life:
        """Replaying, primary …"""
        return self.binding.life

    @property
    def seq(self) -> int:
        """Of the last record of which a message was handled."""
        return self._handled

    def feed(self, data: bytes | memoryview) -> None:
        """Take bytes of the coordinator; ``step`` handles them."""
        self.binding.feed(data)

    def take(self) -> bytes:
        """Return the bytes for the coordinator."""
        return self.binding.take()

    def step(self) -> bool:
        """Handle one message; says whether there was one. Raises what must end the process."""
        event = self.binding.next()
        if event is None:
            return False
        if isinstance(event, core.Received):  # nearly always
            rpc, self._handled, seed = event.rpc, event.seq, f"{event.seq}/{event.index}"
            self._marked(self._called(rpc, seed) if isinstance(rpc, Call) else self._answered(rpc, seed))
            return True
        match event:
            case core.FirstStart():
                self._handled = event.seq
                self._changes.check(None, self._handled)
                self._marked(self._hook("first_start", "handler", f"{event.seq}"))
            case core.Restore():
                if self.tracing is not None:
                    self.tracing.restored()
                self._restore(ImmortalSnapshot.read(event.blob))
            case core.CheckpointDue():
                if self.loaded is None and self._upgrade_to is not None:
                    self._adopt(self._upgrade_to)  # a first life begins with the new class
                self.checkpoint()
            case core.BecamePrimary():
                self._became_primary()
            case core.Upgrade():
                self.upgrade(self._version, self._upgrade_to)
        return True

    def checkpoint(self) -> None:
        """Write the state; the coordinator asked for it."""
        blob = self.snapshot().write()
        self.written = [blob]
        self.binding.checkpoint(blob)
        self.marks = array("I")

    def snapshot(self) -> ImmortalSnapshot:
        """Return all that survives."""
        return ImmortalSnapshot(
            seq=self._handled,
            digest=self.binding.digest,
            app=f"{self.kind.__module__}:{self.kind.__qualname__}",
            version=self.app_version,
            python=".".join(map(str, sys.version_info[:2])),
            calls=self._calls_made,
            flows_made=self._flows_made,
            clock=self._clock,
            trace=self._trace,
            state=self.state_bytes(),
            flows=[flow.dump() for flow in self.flows.values()],
            keys=[[key, *entry] for key, entry in self._keys.items()],
            marks=self.marks.tobytes(),
            code=list(digests(self.definition)),
        )

    def state_bytes(self) -> dict[str, bytes]:
        """Return the attributes of the state as bytes."""
        return state_of(self.object)

    def state(self) -> dict[str, Any]:
        """Return the attributes of the state, copied."""
        return {name: self.definition.fields[name].codec.unpack(data) for name, data in self.state_bytes().items()}

    def _restore(self, saved: ImmortalSnapshot) -> None:
        self.loaded = saved
        if self._upgrade_to is not None and saved.version >= self._version:
            self._adopt(self._upgrade_to)
        if saved.version >= self._version and not self._any_code:  # else this is the way to change code
            self._changes = Changes(self.definition, saved.code)
        self._handled, self.binding.digest = saved.seq, saved.digest
        self.app_version, self._calls_made, self._flows_made = saved.version, saved.calls, saved.flows_made
        self._clock, self._trace = saved.clock, saved.trace
        put_back(self.object, saved, self._shuffle)
        self._keys = {key: (check, state, value) for key, check, state, value in saved.keys}
        for data in saved.flows:
            flow = Flow.load(data)
            self.flows[flow.number] = flow
            for index, step in enumerate(flow.steps):
                if step.kind == "call" and step.state == OPEN:
                    self._calls[step.number] = (flow.number, index)
        for flow in list(self.flows.values()):
            self._resume(flow)

    def _resume(self, flow: Flow) -> None:
        method = self.definition.methods.get(flow.method)
        if method is None or not method.is_flow:
            raise FlowMismatch(
                f"flow {flow.number} runs method {flow.method}, which {self.kind.__qualname__} has not",
                remedy="keep the method until its flows have ended",
            )
        self._open(flow, method)
        self._advance(flow)
        if flow.waiting is None or flow.cursor != len(flow.steps):
            rest = flow.steps[flow.cursor].words() if flow.cursor < len(flow.steps) else "to wait"
            raise flow.mismatch(rest, "it waits for something else" if flow.waiting is not None else "it ends")
        flow.restoring = False

    def _became_primary(self) -> None:
        self._changes = Changes()
        if self.tracing is not None:
            self.tracing.primary()
        for flow in self.flows.values():
            flow.span = self._span(flow.origin, flow.title, resumed=True)
            for index, step in enumerate(flow.steps):
                if step.state == OPEN:
                    self.called_out(flow, step, resumed=True)
                    self.outside(flow, index)
            self._measured(flow)
        self._hook("became_primary", "hook", "primary")

    def upgrade(self, version: int, kind: type[Immortal] | None = None) -> None:
        """Change over to ``version`` and to ``kind``; flows go on where they are.

        State of the same name and type stays, ``Immortal.upgrade`` of the new class makes the rest. Raises
        ``ImmortalError``; nothing outside this process has changed then.
        """
        former, old = self.app_version, self.object
        self.app_version = version
        if kind is not None and kind is not self.kind:
            state = self.state_bytes()
            self._adopt(kind)
            take_over(self.object, state)
        title = f"{self.kind.__qualname__}.upgrade"
        try:
            self.guarded(title, "upgrade", f"upgrade {version}", self.object.upgrade, former, old)
        except Exception as error:
            text = f"{title} failed from version {former} to {version}: {type(error).__name__}: {error}"
            raise ImmortalError(f"{text}, at {place(self.kind.upgrade)}") from error
        for flow in list(self.flows.values()):
            flow.rewind()
            self._resume(flow)

    def _adopt(self, kind: type[Immortal]) -> None:
        """Go on with the code of another class and its initial state."""
        self.kind, self.definition = kind, definition(kind)
        self.object = create(kind, self)

    # Handlers

    def _called(self, event: Call, seed: str) -> str:
        if event.method < 0:
            return self._internal(event, seed)
        method = self.definition.methods.get(event.method)
        origin = Origin(event.sender, event.number) if event.rpc is RpcType.ASYNC else _NOBODY
        if method is None:
            name = f"method {event.method}"
            text = f"{self.name} has no {name}; its class {self.kind.__qualname__} has other methods"
            self._finish(origin, name, ERROR, pack({"type": "UnknownMethod", "message": text}))
            return name
        self._invoke(method, event.arguments, origin, seed)
        return method.title

    def _invoke(self, method: Method[Any, ..., Any], data: bytes, origin: Origin, seed: str) -> None:
        self.counts[CALLED] += self.life is core.Life.PRIMARY
        if method.is_flow:
            self._begin(method, data, origin, seed)
        else:
            self._changes.check(method, self._handled)
            error: BaseException | None = None
            span = self._span(origin, method.title)
            try:
                arguments = method.signature.unpack(data)
                value = self.guarded(method.title, "handler", seed, method.function, self.object, *arguments)
                state, answer = VALUE, method.signature.result.pack(value)
            except (RecursionError, MemoryError):
                raise
            except Exception as failure:
                state, answer, error = ERROR, flowing.error_bytes(failure), failure
            self._finish(origin, method.title, state, answer, error, span)
            self._drain(seed, span)

    def guarded(self, title: str, mode: str, seed: str, body: Callable[..., Any], *args: Any) -> Any:
        """Run code of the application."""
        outer = self._context
        self._context = Context(title, mode, seed)
        try:
            return self.guard.run(title, body, *args)
        finally:
            self._context = outer

    def _drain(self, seed: str, cause: Any = None) -> None:
        """Begin the flows that a handler started, or a flow; ``cause`` is its span."""
        while self.begun:
            method, data = self.begun.popleft()
            self._begin(method, data, _NOBODY, seed, cause)

    def _span(self, origin: Origin, title: str, cause: Any = None, *, resumed: bool = False) -> Any:
        """Begin the span of a handler or flow. A replay is one span as a whole."""
        if self.tracing is None:
            return None
        whom = (origin.tokens[0] if origin.tokens else "", origin.sender, origin.number)
        if self.life is core.Life.PRIMARY:
            return self.tracing.handle(title, *whom, cause, resumed=resumed)
        self.tracing.replayed(*whom)
        return None

    def called_out(self, flow: Flow, step: flowing.Step, *, resumed: bool = False) -> None:
        """Begin the span of a call, if its flow has one."""
        if self.tracing is not None and flow.span is not None and step.kind == "call":
            self.tracing.call(flow.span, step.target or self.name, step.method, step.number, resumed=resumed)

    def _hook(self, name: str, mode: str, seed: str) -> str:
        title = f"{self.kind.__qualname__}.{name}"
        try:
            self.guarded(title, mode, seed, getattr(self.object, name))
        except (RecursionError, MemoryError):
            raise
        except Exception as error:
            self.effects.append(Failed(title, str(error), error))
        self._drain(seed)
        return title

    def _finish(
        self,
        origin: Origin,
        title: str,
        state: int,
        value: bytes,
        error: BaseException | None = None,
        span: Any = None,
    ) -> None:
        """Give the result to whoever waits for it."""
        if span is not None:
            ended(span, str(flowing.remote(value)) if state == ERROR else "")
        if origin.number >= 0:
            void = state == VALUE and value == _NONE
            kind = RpcKind.EXCEPTION if state == ERROR else RpcKind.VOID if void else RpcKind.VALUE
            self.binding.answer(origin.sender, origin.number, kind, b"" if void else value)
        elif origin.tokens or origin.key:
            if origin.key:
                self._keys[origin.key] = (self._keys.pop(origin.key)[0], state, value)  # its age counts from now
                for key in list(self._keys)[: max(0, len(self._keys) - KEYS_KEPT)]:
                    if self._keys[key][1] != OPEN:
                        del self._keys[key]
            self.effects.extend(Result(token, state, value) for token in origin.tokens)
        if state == ERROR:
            self.counts[FAILED] += 1
            if origin.number < 0:
                self.effects.append(Failed(title, str(flowing.remote(value)), error))

    def _internal(self, event: Call, seed: str) -> str:
        try:
            content = unpack(event.arguments)
            if event.method == beside.INGRESS:
                token, key, number, data = content
                request = str(token), str(key), beside.as_number(number, 32), beside.as_bytes(data)
            else:
                number, index, rest = beside.as_number(content[0]), beside.as_number(content[1]), content[2:]
        except beside.MALFORMED:
            return self._malformed(event)
        if event.method == beside.INGRESS:
            return self._ingress(*request, seed)
        flow = self.flows.get(number)
        if flow is None or index >= len(flow.steps) or flow.steps[index].state != OPEN:
            self.counts[LATE] += 1
            return f"method {event.method}"
        try:
            self._clock, counts = beside.came(flow, index, event.method, rest, self._clock)
        except beside.MALFORMED:
            return self._malformed(event)
        if counts:
            self.outside(flow, index)
            self._go_on(flow, seed)
        else:
            self.counts[LATE] += 1
        return flow.title

    def _malformed(self, event: Call) -> str:
        self.counts["malformed"] += 1
        self.effects.append(Failed(f"method {event.method}", "a message that this library did not write was dropped"))
        return f"method {event.method}"

    def _ingress(self, token: str, key: str, number: int, data: bytes, seed: str) -> str:
        check = xxhash.xxh64_intdigest(number.to_bytes(4, "little") + data)
        method = self.definition.methods.get(number)
        known = self._keys.get(key) if key else None
        if known is not None:
            if known[0] != check:
                text = f"the key {key} was used with another request; choose a new one"
                self.effects.append(Result(token, ERROR, pack({"type": "KeyReused", "message": text})))
            elif known[1] == OPEN:
                flow = next(flow for flow in self.flows.values() if flow.origin.key == key)
                flow.origin = flow.origin.joined(token)
                if self.tracing is not None and flow.span is not None:
                    self.tracing.joined(flow.span, token)
            else:
                self.effects.append(Result(token, known[1], known[2]))
        elif method is None:
            answer = pack({"type": "UnknownMethod", "message": f"{self.kind.__qualname__} has no method {number}"})
            self.effects.append(Result(token, ERROR, answer))
        else:
            if key:
                self._keys[key] = (check, OPEN, b"")
            self._invoke(method, data, Origin(tokens=(token,) if token else (), key=key), seed)
        return method.title if method is not None else f"method {number}"

    # Flows

    def _begin(self, method: Method[Any, ..., Any], data: bytes, origin: Origin, seed: str, cause: Any = None) -> None:
        self._changes.check(method, self._handled)
        if len(self.flows) >= FLOWS_OPEN_MAX:
            text = f"{FLOWS_OPEN_MAX} flows are open; call again when some of them have ended"
            self._finish(origin, method.title, ERROR, pack({"type": "TooManyFlows", "message": text}))
            return
        if (flow := self._opened(method, data, origin, cause)) is not None:
            self._advance(flow)
            self._drain(seed, flow.span)

    def _opened(self, method: Method[Any, ..., Any], data: bytes, origin: Origin, cause: Any = None) -> Flow | None:
        """Return a new flow; ``None`` if its arguments do not fit, which whoever waits for it was told."""
        self._flows_made += 1
        flow = Flow(self._flows_made, method.number, data, origin, version=self.app_version)
        flow.span = self._span(origin, method.title, cause)
        try:
            self._open(flow, method)
        except (ValueError, TypeError) as error:
            self._finish(origin, method.title, ERROR, flowing.error_bytes(error), error, flow.span)
            return None
        self.flows[flow.number] = flow
        return flow

    def _open(self, flow: Flow, method: Method[Any, ..., Any]) -> None:
        flow.title = method.title
        flow.seed, flow.generator = f"{self.binding.committer}/{flow.number}", None
        arguments = method.signature.unpack(flow.arguments)
        flow.tools = FlowTools(self, flow)
        flow.coroutine = method.function(view(self.kind, flow.tools, flow), *arguments)

    def _go_on(self, flow: Flow, seed: str) -> None:
        if flow.waiting is not None and flow.waiting.order() >= 0:
            self._changes.check(self.definition.methods[flow.method], self._handled)
            self._advance(flow)
            self._drain(seed, flow.span)

    def _advance(self, flow: Flow) -> None:
        """Run a flow until it waits or ends, also where it begins anew."""
        for _ in range(flowing.RESTARTS_AT_ONCE_MAX):
            again = self._run(flow)
            if again is None:
                return
            method = self.definition.methods[again.method]
            self._changes.check(method, self._handled)
            self._close(flow)
            if flow.span is not None:
                ended(flow.span)
            if (following := self._opened(method, again.arguments, flow.origin)) is None:
                return
            flow = following
        error = flow.restless()
        self._close(flow)
        self._finish(flow.origin, flow.title, ERROR, flowing.error_bytes(error), error, flow.span)

    def _close(self, flow: Flow) -> None:
        del self.flows[flow.number]
        for step in flow.steps:
            if step.kind == "call" and self._calls.pop(step.number, None) is not None and self.tracing is not None:
                self.tracing.answered(step.number, failed=False)
        flow.give_up()

    def _run(self, flow: Flow) -> flowing.Restarted | None:
        """Run a flow until it waits or ends; returns how it begins anew, if it does."""
        error: BaseException | None = None
        try:
            waits = self.guarded(flow.title, "flow", f"flow {flow.number}", flowing.drive, flow)
            if waits:
                self._measured(flow)
                return None
            value = flow.details.pop(-1)
            if isinstance(value, flowing.Restarted):
                return None if flow.restoring else value
            state, value = VALUE, self.definition.methods[flow.method].signature.result.pack(value)
        except (RecursionError, MemoryError):
            raise
        except Exception as failure:
            if flow.restoring:
                raise
            state, value, error = ERROR, flowing.error_bytes(failure), failure
        flow.waiting = None
        if flow.restoring:
            return None
        self._close(flow)
        self._finish(flow.origin, flow.title, state, value, error, flow.span)
        return None

    def _measured(self, flow: Flow) -> None:
        """Warn of a flow with a long history, once for each method in the life of this process."""
        if flow.long and self.life is core.Life.PRIMARY and flow.title not in self._warned:
            self._warned.add(flow.title)
            self.effects.append(Long(flow.title, f"{flow.length()} of at most {flowing.LIMITS}: {flowing.BEGIN_ANEW}"))

    def _answered(self, event: Return, seed: str) -> str:
        number, index = self._calls.pop(event.number, (0, 0))
        if self.tracing is not None:
            self.tracing.answered(event.number, event.kind is RpcKind.EXCEPTION)
        flow = self.flows.get(number)
        if flow is None:
            if event.number > self._calls_made:
                raise DeterminismError(
                    f"{event.sender} answers call {event.number}, but only {self._calls_made} were made",
                    remedy="run the class with which this log was written",
                )
            self.counts[LATE] += 1
            return "answer"
        value = _NONE if event.kind is RpcKind.VOID else event.value
        flow.settle(flow.steps[index], ERROR if event.kind is RpcKind.EXCEPTION else VALUE, value)
        self._go_on(flow, seed)
        return flow.title

    def outside(self, flow: Flow, index: int) -> None:
        """Have a step carried out beside the log, if this process leads."""
        step = flow.steps[index]
        if self.life is core.Life.PRIMARY and step.state == OPEN and step.kind in beside.KINDS:
            self.effects.append(beside.wanted(flow, index))

    def new_call(self, flow: Flow) -> int:
        """Return the number of a call that the last step of ``flow`` makes."""
        self._calls_made += 1
        self._calls[self._calls_made] = (flow.number, flow.cursor - 1)
        return self._calls_made

    # What handlers use (immortal.Tools)

    def assigned(self, name: str, value: Any) -> None:
        """Note a change of the state for the marks of the replay."""
        sender(self._context, f"an assignment to self.{name}", sends=False)
        if isinstance(value, _SCALARS):
            self._trace = xxhash.xxh64_intdigest(f"{self._trace} {name} {value!r}".encode("utf-8", "surrogatepass"))

    def fork(self, method: Method[Any, ..., Any], to: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Send a Fork."""
        sender(self._context, "self.fork()")
        self.binding.fork(to, method.number, method.signature.pack(args, kwargs))

    def start(self, method: Method[Any, ..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a flow after this handler."""
        sender(self._context, "self.start()")
        if not method.is_flow:
            raise OutsideHandler(f"self.start({method.title})", remedy="it is a plain method: call it, or fork it")
        self.begun.append((method, method.signature.pack(args, kwargs)))

    def impulse(self, method: Method[Any, ..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Send an Impulse to oneself, from a hook that no logged message caused."""
        if self._context is not None and self._context.mode != "hook":
            raise OutsideHandler(f"self.impulse() in {self._context.title}", remedy="use `self.fork` or `self.start`")
        self.send_impulse(method.number, method.signature.pack(args, kwargs))

    def chance(self) -> random.Random:
        """Return the generator of the running handler."""
        context = sender(self._context, "self.random", sends=False)
        if context.chance is None:
            context.chance = random.Random(f"{self.binding.committer}/{context.seed}")  # noqa: S311 - repeatable
        return context.chance

    # From outside

    def send_impulse(self, number: int, data: bytes) -> None:
        """Log a new message to oneself; raises ``NotPrimary``."""
        if self.life is not core.Life.PRIMARY:
            raise NotPrimary(f"{self.name} is {self.life.value}: wait until it leads")
        self.binding.impulse("", number, data)

    def request(self, token: str, key: str, method: Method[Any, ..., Any], data: bytes) -> None:
        """Log a request from outside; its ``Result`` carries ``token``. Raises ``NotPrimary``."""
        self.send_impulse(beside.INGRESS, pack([token, key, method.number, data]))

    def done(self, outside: Outside, *content: Any) -> None:
        """Log what came of something outside: the time in milliseconds, nothing, or what a run gave."""
        self.send_impulse(*beside.told(outside, *content))

    def ask(self, query: Query[Any, ..., Any], arguments: list[Any]) -> Any:
        """Answer a query by the state as it is; raises what the query raises."""
        return self.guarded(query.title, "query", "query", query.function, self.object, *arguments)

    def _marked(self, title: str) -> None:
        """Note four bytes of what this message did, so that a replay finds the first one that differs."""
        mark = xxhash.xxh32_intdigest(f"{self.binding.digest} {self._trace}".encode())
        if len(self.marks) < DIGESTS_KEPT:
            self.marks.append(mark)
        if self.observer is not None:
            self.observer(title, self._handled, mark)


__all__ = ["Engine", "Failed", "Long", "Outside", "RemoteError", "Result"]
