"""``serve``: an immortal in a process of its own or in a user's server (docs/specs/ambrosia.md 18.6)."""

import asyncio
import atexit
import contextlib
import inspect
import itertools
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from time import monotonic  # the guard replaces the module's
from typing import Any, Generic, Literal, NoReturn, ParamSpec, TypeVar, overload

import structlog
from opentelemetry import trace

from pavane import telemetry
from pavane.ambrosia.client import beside
from pavane.ambrosia.client import http as web
from pavane.ambrosia.client.about import FlowFilter, about, flows, history
from pavane.ambrosia.client.connection import ENVIRONMENT, Address, Child, Streams, connect
from pavane.ambrosia.client.definition import Definition, Method, Query
from pavane.ambrosia.client.effects import REQUESTS_OPEN_MAX
from pavane.ambrosia.client.engine import Engine, Failed, Long, Outside, Result
from pavane.ambrosia.client.errors import CoordinatorLost, ImmortalError, NotPrimary
from pavane.ambrosia.client.flows import ERROR, remote
from pavane.ambrosia.client.guard import Guard
from pavane.ambrosia.client.immortal import Immortal
from pavane.ambrosia.core.binding import Life
from pavane.ambrosia.intake import Intake
from pavane.ambrosia.tracing import EngineTracing, ended
from pavane.ambrosia.wire.limits import BATCH_BYTES, NEW_NAME_BYTES_MAX
from pavane.runtime import names
from pavane.runtime.forks import Process

P = ParamSpec("P")
R = TypeVar("R")
I = TypeVar("I", bound=Immortal)  # noqa: E741 - an immortal

EXIT_LOST = 70  # 18.2: whoever supervises the process starts it again
FIRST_RECORD_S = 3600.0  # until the first byte: before it a checkpoint is checked, which may be 64 GiB on a slow disk
READ_BYTES = 1 << 18
CHILD_START_S = 10.0  # the coordinator of a process that was killed ends within moments, and frees its lock
CHILD_AGAIN_S = 0.25
STEPS_PER_TURN = 200  # handlers between two turns of the loop: requests and timers of the server go on in a replay
TURN_S = 0.005  # slow handlers: what the first ones sent does not wait for the rest

_log = structlog.get_logger("pavane.ambrosia")


class Keyed(Generic[I]):
    """Calls under an idempotency key: repeated with it, a call gives the result that it had."""

    def __init__(self, handle: "Handle[I]", key: str) -> None:
        self._handle = handle
        self._key = key

    @overload
    async def call(self, method: Method[I, P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def call(self, method: Method[I, P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def call(self, method: Method[I, ..., Any], *args: Any, **kwargs: Any) -> Any:
        """Log the call and return the handler's result; raises ``RemoteError``, ``NotPrimary``, ``CoordinatorLost``."""
        return await self._handle.request(method, method.signature.pack(args, kwargs), self._key)


class Handle(Generic[I]):
    """The immortal as the rest of the process sees it; any thread and any loop may use it.

    A forked process has none of it: there everything raises ``NotPrimary``.
    """

    def __init__(self, runner: "EngineRunner", loop: asyncio.AbstractEventLoop) -> None:
        self._runner = runner
        self._loop = loop
        self._process = Process()

    @property
    def name(self) -> str:
        """The name of the instance."""
        return self._runner.engine.name

    @property
    def http(self) -> tuple[str, int] | None:
        """Where its HTTP server listens, if it has one."""
        return self._runner.http

    @property
    def primary(self) -> bool:
        """Whether calls are taken; queries always are."""
        return self._process.is_this and self._runner.engine.life is Life.PRIMARY

    def key(self, key: str) -> Keyed[I]:
        """Return calls that happen once however often they are made: with another process, too, after a crash."""
        return Keyed(self, key)

    @overload
    async def call(self, method: Method[I, P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def call(self, method: Method[I, P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def call(self, method: Method[I, ..., Any], *args: Any, **kwargs: Any) -> Any:
        """Log the call and return the handler's result.

        Raises ``RemoteError`` for its exception, ``NotPrimary``, and ``CoordinatorLost``: then nobody knows whether it
        happened, unless it is repeated under a ``key``.
        """
        return await self.request(method, method.signature.pack(args, kwargs), "")

    def impulse(self, method: Method[I, P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Log the call and forget it; raises ``NotPrimary``."""
        data = method.signature.pack(args, kwargs)
        self._check_process()
        if not self.primary:
            raise NotPrimary(f"{self.name} does not lead")
        self._loop.call_soon_threadsafe(self._runner.impulse, method.number, data)

    async def query(self, query: Query[I, P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Answer a query by the state as it is now."""
        arguments = query.signature.unpack(query.signature.pack(args, kwargs))
        found: R = await self._here(self._runner.ask(query, arguments))
        return found

    async def checkpoint(self) -> None:
        """Ask the coordinator for a checkpoint; it takes one soon."""
        await self._here(self._runner.ask_checkpoint())

    @property
    def definition(self) -> Definition:
        """The handlers of its class, which an upgrade may change."""
        return self._runner.engine.definition

    async def about(self) -> dict[str, Any]:
        """Return what it tells of itself: its handlers, where it is in its log, the flows under way."""
        return await self._here(self._runner.about())

    async def flows(self, sought: FlowFilter, start: int) -> dict[str, Any]:
        """Return the oldest open flows that are sought, from number ``start`` on, and how many there are."""
        return await self._here(self._runner.told(flows, sought, start))

    async def history(self, number: int, start: int) -> dict[str, Any] | None:
        """Return an open flow with its arguments and its steps from ``start`` on; ``None`` if there is none."""
        return await self._here(self._runner.told(history, number, start))

    def stop(self) -> None:
        """End ``stopped``."""
        self._check_process()
        self._loop.call_soon_threadsafe(self._runner.stopping.set)

    async def stopped(self) -> None:
        """Wait until somebody calls ``stop``."""
        await self._here(self._runner.wait_stopped())

    async def request(self, method: Method[I, ..., Any], data: bytes, key: str) -> Any:
        """Log a request whose arguments are bytes already; as ``call``."""
        value = await self._here(self._runner.request(method, data, key))
        return method.signature.result.unpack(value)

    def _check_process(self) -> None:
        if not self._process.is_this:
            raise NotPrimary(f"{self.name} lives in the process that this one was forked from: call it by HTTP")

    async def _here(self, work: Coroutine[Any, Any, R]) -> R:
        if not self._process.is_this:
            work.close()
            self._check_process()
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


class EngineRunner:
    """An engine with its streams, its timers and its work outside; everything here runs in one loop."""

    def __init__(self, engine: Engine, streams: Streams, lost: Callable[[str], None]) -> None:
        self.engine = engine
        self.http: tuple[str, int] | None = None
        self.stopping = asyncio.Event()
        self.primary = asyncio.Event()
        self.restored = asyncio.Event()
        self._streams = streams
        self._lost = lost
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._open = asyncio.Semaphore(REQUESTS_OPEN_MAX)
        self._life = secrets.token_hex(8)
        self._tokens = itertools.count()
        self._timers: dict[tuple[int, int], asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = False
        self._turning = False
        self._tracing = EngineTracing(engine.name)
        if self._tracing.on:
            engine.tracing = self._tracing

    async def run(self) -> None:
        """Handle what the coordinator sends until it goes."""
        try:
            await Intake(self._streams.incoming, memoryview(bytearray(READ_BYTES)), self._took).run(self._rest)
            why = "the coordinator closed the connection"
        except OSError as error:
            why = f"the connection to the coordinator failed: {error.strerror}"
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a replay may do better, going on would not
            why = f"{type(error).__name__}: {error}"
            _log.error("the immortal cannot go on", instance=self.engine.name, seq=self.engine.seq, exc_info=error)
        self._end(why)

    async def watch(self) -> None:
        """End when the coordinator closes the stream on which it only listens, or never says anything on the other."""
        closed = asyncio.ensure_future(self._streams.half_closed())
        try:
            await asyncio.wait({closed}, timeout=FIRST_RECORD_S)
            if not closed.done() and self.engine.binding.committer is None:
                self._end(f"the coordinator took both connections and said nothing for {FIRST_RECORD_S:.0f} s")
            await closed
            self._end("the coordinator closed the connection")
        finally:
            closed.cancel()

    def _took(self, data: memoryview) -> bool:
        self.engine.feed(data)
        return not self._steps()

    async def _rest(self) -> None:
        while self._steps():  # noqa: ASYNC110 -- others run, nothing is waited for
            await asyncio.sleep(0)

    def _steps(self) -> bool:
        """Handle messages for a while, then send what they sent, all at once; says whether there may be more."""
        until = monotonic() + TURN_S
        more = True
        with self.engine.guard.ready():
            for _ in range(STEPS_PER_TURN):
                more = self.engine.step()
                if not more or self.engine.binding.waiting_bytes > BATCH_BYTES or monotonic() > until:
                    break
        if self.engine.life is Life.REPLAYING and self.engine.loaded is not None:
            self.engine.binding.progress()
        self.turn()
        return more

    def _end(self, why: str) -> None:
        self._ended = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(CoordinatorLost(f"{self.engine.name}: {why}; nobody knows whether this happened"))
        self._waiting.clear()
        self._lost(why)

    def _turn_soon(self) -> None:
        """Have ``turn`` send what all of this turn of the loop make together."""
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self.turn)

    def turn(self) -> None:
        """Send what the engine has to send, do what it wants done."""
        self._turning = False
        if out := self.engine.take():
            self._streams.outgoing[1].write(out)
        if self.engine.life is not Life.FRESH:
            self.restored.set()
        if self.engine.life is Life.PRIMARY:
            self.primary.set()
        while self.engine.effects:
            match self.engine.effects.popleft():
                case Result(token, state, value):
                    future = self._waiting.pop(token, None)
                    if future is not None and not future.done():
                        if state == ERROR:
                            future.set_exception(remote(value))
                        else:
                            future.set_result(value)
                case Failed(where, text, error):
                    _log.warning(
                        "a handler failed", instance=self.engine.name, handler=where, error=text, exc_info=error
                    )
                case Long(where, text):
                    _log.warning("a flow has a long history", instance=self.engine.name, flow=where, text=text)
                case Outside() as outside:
                    self._do(outside)

    def _do(self, outside: Outside) -> None:
        now = time.time_ns() // 1_000_000
        if outside.kind == "clock":
            self._done(outside, now)
        elif outside.kind == "timer":
            delay_s = max(0, outside.due - now) / 1000
            self._timers[outside.flow, outside.step] = asyncio.get_running_loop().call_later(
                delay_s, self._fired, outside
            )
        else:
            with self._within_flow(outside):
                task = asyncio.create_task(self._work(outside))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _within_flow(self, outside: Outside) -> contextlib.AbstractContextManager[Any]:
        """Make spans of what is done for a flow children of the flow's, if it has one."""
        flow = self.engine.flows.get(outside.flow)  # it may have ended without waiting
        if flow is None or flow.span is None:
            return contextlib.nullcontext()
        return trace.use_span(flow.span)

    def _fired(self, outside: Outside) -> None:
        del self._timers[outside.flow, outside.step]
        if outside.flow in self.engine.flows:  # else nobody needs the message
            self._done(outside)

    async def _work(self, outside: Outside) -> None:
        function, args, kwargs, _ = outside.detail
        try:
            if inspect.iscoroutinefunction(function):
                value = await function(*args, **kwargs)
            else:
                value = await asyncio.to_thread(function, *args, **kwargs)
        except Exception as error:
            content: Sequence[Any] = beside.failure(outside, error, time.time_ns() // 1_000_000)
            if beside.again(content):
                _log.warning(
                    "an attempt failed, another one follows",
                    instance=self.engine.name,
                    function=beside.name_of(function),
                    attempt=outside.attempt + 1,
                    error=repr(error),
                )
        else:
            content = beside.result(outside, value)
        self._done(outside, *content)

    def _done(self, outside: Outside, *content: Any) -> None:
        if not self._ended:
            self.engine.done(outside, *content)
            self._turn_soon()

    async def request(self, method: Method[Any, ..., Any], data: bytes, key: str) -> bytes:
        """Log a request and return the bytes of its result; as ``Handle.call``."""
        async with self._open:
            if self._ended:
                raise CoordinatorLost(f"{self.engine.name}: the coordinator has gone")
            token = f"{self._life}-{next(self._tokens)}"
            self.engine.request(token, key, method, data)
            span = self._tracing.request(method.title, token) if self._tracing.on else None
            future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._waiting[token] = future
            error = ""
            self._turn_soon()
            try:
                return await future
            except Exception as failure:
                error = str(failure)
                raise
            finally:
                self._waiting.pop(token, None)
                if span is not None:
                    ended(span, error)

    def impulse(self, number: int, data: bytes) -> None:
        """Log a call that nobody waits for."""
        if not self._ended:
            self.engine.send_impulse(number, data)
            self._turn_soon()

    async def ask(self, query: Query[Any, ..., Any], arguments: list[Any]) -> Any:
        """Answer a query."""
        return self.engine.ask(query, arguments)

    async def about(self) -> dict[str, Any]:
        """Return what the engine tells of itself."""
        return about(self.engine)

    async def told(self, function: Callable[..., R], *given: Any) -> R:
        """Return what a function tells of the engine."""
        return function(self.engine, *given)

    async def ask_checkpoint(self) -> None:
        """Ask for a checkpoint; raises ``NotPrimary``."""
        if self.engine.life is not Life.PRIMARY:
            raise NotPrimary(f"{self.engine.name} does not lead")
        self.engine.binding.ask_checkpoint()
        self.turn()

    async def wait_stopped(self) -> None:
        """Wait for ``stop``."""
        await self.stopping.wait()

    async def close(self) -> None:
        """End all that runs beside the log; what it would have logged is done again in the next life."""
        self._ended = True
        for handle in self._timers.values():
            handle.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for future in self._waiting.values():
            future.cancel()
        self._tracing.close()


def _exit(why: str) -> NoReturn:
    sys.stderr.write(f"pavane.ambrosia: {why}; this process ends, so that it is started again\n")
    sys.stderr.flush()
    os._exit(EXIT_LOST)


@contextlib.asynccontextmanager
async def serve(
    kind: type[I],
    *,
    name: str,
    rp: int | None = None,
    sp: int | None = None,
    log: str | Path = ".pavane/ambrosia",
    http: str | None = None,
    version: int = 0,
    upgrade: type[Immortal] | None = None,
    until: Literal["primary", "readonly"] = "primary",
    standby: bool = False,
    any_code: bool = False,
) -> AsyncIterator[Handle[I]]:
    """Run ``kind`` as the instance ``name``; entered when it is restored, replayed and leads.

    The coordinator is the one at ``rp`` and ``sp``, or of the environment's ``PAVANE_AMBROSIA`` (``host:rp,sp``); else
    one is started with its files in ``log``. An instance that was logged with a lower ``version`` is replayed as what
    it was, by ``kind``, and changes over before it leads: to ``upgrade``, or the class branches on
    ``self.app_version``. A handler that has changed since it handled what stands behind the last checkpoint is refused,
    unless the version is greater or ``any_code`` (for development) is set. With ``standby`` the coordinator
    that is started follows another process of this name while there is one, and leads when that ends. ``http``
    (``host:port``) serves calls and queries to other programs. When the coordinator is lost, the process ends with exit
    code 70: a new one continues where it was. Raises ``DefinitionError``, ``CoordinatorLost`` when the coordinator does
    not start, and ``ImmortalError`` for a name or an address that cannot be. Spans are exported where the environment
    says so and the program has no tracer provider of its own.
    """
    if not 0 < len(name.encode()) <= NEW_NAME_BYTES_MAX or "/" in name:
        raise ImmortalError(f"{name!r} is no name of an immortal: it has 1 to {NEW_NAME_BYTES_MAX} bytes and no /")
    names.install()  # whoever takes the spans is a Service, and a local cluster has no DNS
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        telemetry.configure("immortal", {"service.instance.id": name})
        atexit.register(telemetry.shutdown)
    engine = Engine(kind, name, guard=Guard(), version=version, upgrade=upgrade, any_code=any_code)
    loop = asyncio.get_running_loop()
    address: Address | None = None
    if rp is not None and sp is not None:
        address = Address(rp, sp)
    elif named := os.environ.get(ENVIRONMENT):
        address = Address.parse(named)
    options = (f"--upgradeVersion={version}", *(("--activeActive",) if standby else ()))
    async with contextlib.AsyncExitStack() as stack:
        streams = await _connected(stack, address, name, Path(log), options)
        lost: asyncio.Future[str] = loop.create_future()
        runner = EngineRunner(engine, streams, lambda why: None if lost.done() else lost.set_result(why))
        reading = asyncio.create_task(runner.run())
        watching = asyncio.create_task(runner.watch())
        ending = asyncio.create_task(_after(lost))
        stack.push_async_callback(_cancelled, reading, watching, ending)
        stack.push_async_callback(runner.close)
        await (runner.primary if until == "primary" else runner.restored).wait()
        handle: Handle[I] = Handle(runner, loop)
        if http is not None:
            runner.http = await stack.enter_async_context(web.served(handle, http))
        yield handle


async def _connected(
    stack: contextlib.AsyncExitStack, address: Address | None, name: str, log: Path, options: tuple[str, ...]
) -> Streams:
    """Connect to the coordinator at ``address``; without one start it, again while its predecessor still ends."""
    end = time.monotonic() + CHILD_START_S
    while True:
        async with contextlib.AsyncExitStack() as attempt:
            child = await Child.start(name, log, options) if address is None else None
            if child is not None:
                attempt.push_async_callback(child.stop)
            try:
                streams = await connect(address, child, lambda text: _log.warning(text, instance=name))
            except CoordinatorLost:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(CHILD_AGAIN_S)
                continue
            attempt.push_async_callback(streams.closed)
            attempt.callback(streams.close)
            stack.push_async_callback(attempt.pop_all().aclose)
            return streams


async def _after(lost: "asyncio.Future[str]") -> None:
    why = await lost
    await asyncio.sleep(0)  # whoever waited for an answer learns first that it is lost
    _exit(why)


async def _cancelled(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
