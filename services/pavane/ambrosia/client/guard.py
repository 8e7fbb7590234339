"""Determinism: in a handler clocks, randomness, files, sockets and threads raise (docs/specs/ambrosia.md 18.7)."""

import asyncio
import contextlib
import functools
import gc
import os
import random
import secrets
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from pavane.ambrosia.client.errors import DeterminismError, ForbiddenCall

CLOCK = "in a flow write `await self.now()`, or take the time as an argument"
CHANCE = "write `self.random`"
IDENTIFIER = "write `self.uuid()`"
OUTSIDE = "in a flow write `await self.run(function, …)`"
WAIT = "in a flow write `await self.sleep(seconds)`"
ALL = "in a flow write `await gather(…)`"
SOME = "in a flow write `await first(…)` or `await gather(…)`"
LIMIT = "in a flow write `await first(…, self.sleep(seconds))`"
_PATCHES: tuple[tuple[Any, str, str], ...] = (
    *((time, name, CLOCK) for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "localtime")),
    (time, "sleep", WAIT),
    *((random, name, CHANCE) for name in ("random", "randint", "randrange", "choice", "choices", "shuffle", "sample")),
    *((random, name, CHANCE) for name in ("uniform", "getrandbits", "gauss")),
    (uuid, "uuid1", IDENTIFIER),
    (uuid, "uuid4", IDENTIFIER),
    *((secrets, name, CHANCE) for name in ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "choice")),
    (os, "urandom", CHANCE),
    (os, "getenv", "read the environment before `serve` and pass the value as an argument"),
    *((asyncio, name, f"{ALL} over self.call, self.run …") for name in ("create_task", "ensure_future", "TaskGroup")),
    (asyncio, "gather", ALL),
    (asyncio, "wait", SOME),
    (asyncio, "as_completed", SOME),
    *((asyncio, name, LIMIT) for name in ("wait_for", "timeout", "timeout_at")),
    (asyncio, "to_thread", OUTSIDE),
    (asyncio, "sleep", WAIT),
)
_EVENTS = {
    "open": OUTSIDE,
    "os.": OUTSIDE,
    "socket.": OUTSIDE,
    "subprocess.Popen": OUTSIDE,
    "_thread.start_new_thread": OUTSIDE,
    "sqlite3.connect": OUTSIDE,
    "shutil.": OUTSIDE,
    "tempfile.": OUTSIDE,
}
_NATIVE = {
    ("datetime", "now"): CLOCK,
    ("datetime", "utcnow"): CLOCK,
    ("datetime", "today"): CLOCK,
    ("date", "today"): CLOCK,
    ("module", "time"): CLOCK,
    ("module", "time_ns"): CLOCK,
    ("module", "monotonic"): CLOCK,
    ("module", "perf_counter"): CLOCK,
    ("module", "urandom"): CHANCE,
}
"""Functions in C that a module patch cannot replace: seen by the profiler in tests. (class or module, name)."""
_BENIGN = (
    "logging",
    "structlog",
    "opentelemetry",
    "warnings",
    "traceback",
    "linecache",
    "tokenize",
    "importlib",
    "_frozen",
)
"""Libraries whose clocks and files do not reach the state: a handler may log and import."""
_HERE = __name__


class Guard:
    """Watches the thread that runs a handler. ``strict`` adds a profiler that sees C functions too: for tests."""

    _active: int | None = None
    _ready = False
    _trip: DeterminismError | None = None
    _title: str = ""
    _hooked = False

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        if not Guard._hooked:
            Guard._hooked = True
            sys.addaudithook(_audit)

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Prepare for any number of handlers: what replaces the forbidden functions costs more than most of these."""
        if Guard._ready:
            yield
            return
        # A collection in between would run other people's finalizers, and they would be blamed on the handler.
        collecting = gc.isenabled()
        gc.disable()
        modules = _watched()
        for module in modules:
            module.begin()
        Guard._ready = True
        try:
            yield
        finally:
            Guard._ready = False
            for module in modules:
                module.end()
            if collecting:
                gc.enable()

    def run(self, title: str, body: Callable[..., Any], *args: Any) -> Any:
        """Run a handler named ``title``; what it does that is forbidden is raised, even if the handler caught it."""
        if Guard._active is not None:
            return body(*args)
        if not Guard._ready:
            with self.ready():
                return self.run(title, body, *args)
        Guard._title, Guard._trip, Guard._active = title, None, threading.get_ident()
        try:
            result = _profiled(body, args) if self._strict else body(*args)
        finally:
            Guard._active = None
        if Guard._trip is not None:
            trip, Guard._trip = Guard._trip, None
            raise trip
        return result


def _profiled(body: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    profile = sys.getprofile()
    sys.setprofile(_profile)
    try:
        return body(*args)
    finally:
        sys.setprofile(profile)


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Do something of the library's own in the middle of a handler."""
    active, Guard._active = Guard._active, None
    try:
        yield
    finally:
        Guard._active = active


def _forbid(what: str, remedy: str, frame: types.FrameType | None) -> None:
    """Raise for the nearest frame that is not benign."""
    while frame is not None and frame.f_globals.get("__name__") == _HERE:
        frame = frame.f_back
    if frame is None or str(frame.f_globals.get("__name__", "")).startswith(_BENIGN):
        return
    blamed: types.FrameType | None = frame
    while blamed is not None:
        name = str(blamed.f_globals.get("__name__", ""))
        if name.startswith(_BENIGN) or name.startswith("pavane.ambrosia.client"):
            break
        if not _library(blamed.f_code.co_filename):
            frame = blamed
            break
        blamed = blamed.f_back
    if blamed is not None and str(blamed.f_globals.get("__name__", "")).startswith(_BENIGN):
        return
    error = ForbiddenCall(
        f"{Guard._title} used {what}, which a replay cannot repeat",
        where=f"{frame.f_code.co_filename}:{frame.f_lineno}",
        remedy=remedy,
    )
    Guard._trip = Guard._trip or error
    raise error


def _library(path: str) -> bool:
    return path.startswith(("<frozen", os.path.dirname(os.__file__))) or "site-packages" in path  # noqa: PTH120


def _wrapper(module: Any, name: str, remedy: str) -> Any:
    what = f"{module.__name__}.{name}()"

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if Guard._active == threading.get_ident():
            _forbid(what, remedy, sys._getframe(1))
        return guarded.__wrapped__(*args, **kwargs)  # type: ignore[attr-defined]

    return guarded


class _Watched:
    """One module whose forbidden functions are replaced, all at once."""

    def __init__(self, module: Any) -> None:
        self._space = module.__dict__
        self._wrappers = {name: _wrapper(*patch) for patch in _PATCHES if patch[0] is module for name in patch[1:2]}
        self._originals: dict[str, Any] = {}

    def begin(self) -> None:
        space = self._space
        originals = {name: space[name] for name in self._wrappers}
        if originals != self._originals:  # at first, and where a test has put something else in their place
            self._originals = originals
            for name, original in originals.items():
                self._wrappers[name].__wrapped__ = original
        space.update(self._wrappers)

    def end(self) -> None:
        self._space.update(self._originals)


@functools.cache
def _watched() -> list[_Watched]:
    return [_Watched(module) for module in dict.fromkeys(patch[0] for patch in _PATCHES)]


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if Guard._active is None or Guard._active != threading.get_ident():
        return
    for prefix, remedy in _EVENTS.items():
        if event.startswith(prefix):
            detail = f" {args[0]!r}" if event == "open" and args else ""
            _forbid(f"{event}{detail}", remedy, sys._getframe(1))


def _profile(frame: types.FrameType, event: str, arg: Any) -> None:
    if event != "c_call" or Guard._active != threading.get_ident():
        return
    owner = getattr(arg, "__self__", None)
    kind = "module" if isinstance(owner, types.ModuleType) else getattr(owner, "__name__", "")
    remedy = _NATIVE.get((kind, getattr(arg, "__name__", "")))
    if remedy is not None:
        _forbid(f"{getattr(owner, '__name__', kind)}.{arg.__name__}()", remedy, frame)
