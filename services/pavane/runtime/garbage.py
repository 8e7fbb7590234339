"""Python's garbage collector in a process that holds much for long (docs/specs/raft.md 19.2)."""

import gc
from typing import Any

_FULL = 2  # the oldest generation: its collection looks at every object that the process holds


def freeze_survivors() -> None:
    """From now on look only once at what is kept for long: whatever survives a full collection is left out of the next.

    A million keys stop a peer for a seventh of a second in each full collection, which is half of an election time-out.
    What is frozen is freed as ever when nobody refers to it any more; only cycles that become garbage later are not, so
    this is for processes whose large state has none. May be called again.
    """
    gc.freeze()
    if _freeze not in gc.callbacks:
        gc.callbacks.append(_freeze)


def _freeze(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == _FULL:
        gc.freeze()
