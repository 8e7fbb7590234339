"""Stateful coordination services: protocols, staged life, and the floors they stand on.

An application begins with ``pavane.connect`` (docs/connect.md) or ``pavane.connect_log`` (docs/waltz.md).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pavane.application import (
        CannotConnect,
        EventType,
        LockLost,
        NotALock,
        connect,
        connect_log,
        connect_log_sync,
        connect_sync,
    )

__all__ = [
    "CannotConnect",
    "EventType",
    "LockLost",
    "NotALock",
    "connect",
    "connect_log",
    "connect_log_sync",
    "connect_sync",
]


def __getattr__(name: str) -> Any:
    """Import what an application uses when it is asked for: pods and the command line begin without it."""
    if name in __all__:
        return getattr(import_module("pavane.application"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
