"""Waking a core without I/O at the time that it asks for."""

import asyncio
from collections.abc import Callable


class CoreTimer:
    """Calls ``fire`` on the loop when the core's next timer is due; call ``arm`` with that time after every turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> None:
        self._loop = loop
        self._fire = fire
        self._handle: asyncio.Handle | None = None
        self._due = 0.0  # of the handle

    def arm(self, due: float | None) -> None:
        """Fire at ``due`` (time of the loop, in seconds) at the latest; None = nothing is due."""
        if due is None:
            return
        if self._handle is not None:
            if self._due <= due:
                # It fires early, finds nothing due and is armed anew: cheaper than moving it in every turn.
                return
            self._handle.cancel()
        self._due = due
        self._handle = self._loop.call_at(due, self._fired)

    def cancel(self) -> None:
        """Do not fire any more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fired(self) -> None:
        self._handle = None
        self._fire()
