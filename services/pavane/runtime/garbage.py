"""Python's garbage collector in a process that holds much for long (docs/specs/raft.md 19.2)."""

import atexit
import gc
import time
from typing import Any

THAW_S = 3600.0  # after which one full collection looks at everything: 0.15 s with a million keys
_FULL = 2  # the oldest generation: its collection looks at every object that the process holds


def freeze() -> None:
    """Leave what is there now out of all collections but the last.

    At the end of the process it counts again: objects of DuckDB that then were never freed would be listed on stderr,
    thirty lines behind the last words of the log.
    """
    gc.freeze()
    atexit.unregister(_thaw)
    atexit.register(_thaw)


def _thaw() -> None:
    if _freeze in gc.callbacks:
        gc.callbacks.remove(_freeze)
    gc.unfreeze()


def freeze_survivors() -> None:
    """From now on look only once at what is kept for long: whatever survives a full collection is left out of the next.

    A million keys stop a peer for a seventh of a second in each full collection, which is half of an election time-out.
    What is frozen is freed as ever when nobody refers to it any more. Cycles that become garbage later wait for the
    first full collection behind THAW_S, so this is for processes whose state has few. May be called again.
    """
    freeze()
    if _freeze not in gc.callbacks:
        gc.callbacks.append(_freeze)


class _Freeze:
    """What Python calls around each collection."""

    def __init__(self) -> None:
        self._thaw_due = time.monotonic() + THAW_S

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] != _FULL:
            return
        if phase == "stop":
            gc.freeze()
        elif time.monotonic() >= self._thaw_due:
            self._thaw_due = time.monotonic() + THAW_S
            gc.unfreeze()


_freeze = _Freeze()
