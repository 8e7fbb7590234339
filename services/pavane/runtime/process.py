"""The life of a process: signals, supervised tasks, the reason for its end.

Usage::

    async def body(process: Process) -> None:
        async with Something() as something:
            process.spawn(something.run(), name="something")
            await process.ended()

    raise SystemExit(run(body, service="pavane-pod"))
"""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pavane import telemetry
from pavane.runtime import names
from pavane.runtime.logs import configure_logs

TERMINATION_LOG_VARIABLE = "PAVANE_TERMINATION_LOG"
TERMINATION_LOG = Path("/dev/termination-log")
TERMINATION_BYTES_MAX = 4096  # what Kubernetes keeps of it
LOG_LEVEL_VARIABLE = "PAVANE_LOG_LEVEL"
POD_NAME_VARIABLE = "POD_NAME"
EXIT_FAILED = 1
EXIT_USAGE = 2

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class End:
    """How a process ends: its exit code and, unless it was simply told to stop, the reason."""

    code: int
    reason: str = ""


class Process:
    """The tasks of one process and its end, which is decided once."""

    def __init__(self) -> None:
        self._end: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def ending(self) -> bool:
        """Whether the end has been decided."""
        return self._end.done()

    async def ended(self) -> End:
        """Wait for the decision to end."""
        return await asyncio.shield(self._end)

    def exit(self, code: int, reason: str = "") -> None:
        """Decide the end; the first decision stands. Returns at once, the body of the process then stops in order."""
        if not self._end.done():
            self._end.set_result(End(code, reason))

    def take_signals(self) -> None:
        """Let SIGTERM and SIGINT decide the end with code 0, also where a library has taken them for itself."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.exit, 0)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run a task that is meant to live as long as the process: when it ends by itself, the process ends with it."""
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    async def cancel_tasks(self) -> None:
        """Cancel all tasks and wait for them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _logger.error("task %s failed", task.get_name(), exc_info=error)
        self.exit(EXIT_FAILED, f"{task.get_name()} ended" + (f": {error!r}" if error is not None else ""))


def run(body: Callable[[Process], Awaitable[None]], *, service: str) -> int:
    """Run ``body`` as this process and return its exit code.

    Sets up names, logs and telemetry under the name ``service`` (in a pod, its name is the instance); SIGTERM and
    SIGINT decide the end with code 0. The body waits for ``process.ended()`` and stops what it started. A reason goes
    to the termination log.
    """
    names.install()
    configure_logs(os.environ.get(LOG_LEVEL_VARIABLE, "INFO"))
    pod = os.environ.get(POD_NAME_VARIABLE)
    telemetry.configure(service, {"service.instance.id": pod} if pod else None)
    try:
        end = asyncio.run(_live(body))
    finally:
        telemetry.shutdown()
    if end.reason:
        _logger.log(logging.ERROR if end.code else logging.INFO, "process ends with code %d: %s", end.code, end.reason)
        write_termination_log(end.reason)
    return end.code


def write_termination_log(reason: str) -> None:
    """Leave ``reason`` where Kubernetes looks for the last words of a container; a missing file is no error."""
    named = os.environ.get(TERMINATION_LOG_VARIABLE)
    path = Path(named) if named else TERMINATION_LOG
    if not named and not path.exists():
        return
    try:
        path.write_bytes(reason.encode()[:TERMINATION_BYTES_MAX])
    except OSError as error:
        _logger.warning("the reason for the end could not be written to %s: %s", path, error)


async def _live(body: Callable[[Process], Awaitable[None]]) -> End:
    process = Process()
    process.take_signals()
    try:
        await body(process)
    except Exception as error:
        _logger.exception("the process failed")
        process.exit(EXIT_FAILED, f"{type(error).__name__}: {error}")
    finally:
        await process.cancel_tasks()
    process.exit(EXIT_FAILED, "the body of the process ended unasked")
    return await process.ended()
