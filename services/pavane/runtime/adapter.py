"""Driving a core without I/O on the event loop."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, Protocol, TypeVar

from pavane.runtime.timers import CoreTimer

Output = TypeVar("Output")
Output_co = TypeVar("Output_co", covariant=True)


class SansIoCore(Protocol[Output_co]):
    """A core as its adapter sees it; ``now`` is the time of the loop, in seconds."""

    def outputs(self) -> Iterable[Output_co]:
        """Hand over what is to be done, in order; each output once."""
        ...

    def handle_timer(self, now: float, /) -> None:
        """Do what is due; nothing may be, for a timer may fire early."""
        ...

    def next_timer(self) -> float | None:
        """Return when ``handle_timer`` is due, None for never."""
        ...


class CoreAdapter(Generic[Output]):
    """Gives inputs to one core, executes its outputs in their order, and keeps one timer and the child tasks.

    ``execute`` is called with each output. It may give the core another input through ``call``: the outputs of that
    follow those in hand. ``failed`` is called at most once, with the first exception of the core, of ``execute`` or of
    a child task, or with what ``fail`` was told. After that, and after ``close``, nothing is given or executed.
    """

    def __init__(
        self, core: SansIoCore[Output], execute: Callable[[Output], None], failed: Callable[[Exception], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._core = core
        self._execute = execute
        self._failed = failed
        self._timer = CoreTimer(self._loop, self._fired)
        self._children: set[asyncio.Task[Any]] = set()
        self._executing = False
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether it has failed or was closed."""
        return self._ended

    def call(self, what: Callable[[float], None]) -> None:
        """Call into the core with the present time, then execute what it asks for. Only on the loop's thread."""
        if self._ended:
            return
        try:
            what(self._loop.time())
            if not self._executing:
                self._carry_out()
        except Exception as error:
            self.fail(error)

    def call_from_thread(self, what: Callable[[float], None]) -> None:
        """``call`` soon, from any thread: what a writer of logs uses to say what has become durable."""
        self._loop.call_soon_threadsafe(self.call, what)

    def begin(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Run ``work`` beside the core until it ends, or until this adapter does; its exception is a failure."""
        task = self._loop.create_task(work, name=name)
        self._children.add(task)
        task.add_done_callback(self._child_ended)
        if self._ended:
            task.cancel()

    def fail(self, error: Exception) -> None:
        """End with ``error``, unless this has ended already."""
        if not self._ended:
            self._stop()
            self._failed(error)

    async def close(self) -> None:
        """Stop the timer and the child tasks, and wait for these."""
        self._stop()
        children = self._children - {asyncio.current_task()}
        if children:
            await asyncio.wait(children)

    def _carry_out(self) -> None:
        self._executing = True
        try:
            while outputs := list(self._core.outputs()):
                for output in outputs:
                    self._execute(output)
                    if self._ended:
                        return
        finally:
            self._executing = False
        self._timer.arm(self._core.next_timer())

    def _fired(self) -> None:
        self.call(self._core.handle_timer)

    def _stop(self) -> None:
        self._ended = True
        self._timer.cancel()
        for task in self._children:
            task.cancel()

    def _child_ended(self, task: asyncio.Task[Any]) -> None:
        self._children.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.fail(error)
