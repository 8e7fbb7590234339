"""AMBROSIA: exactly-once RPC for applications that survive failures."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pavane.ambrosia.client import (
        CoordinatorLost,
        DefinitionError,
        DeterminismError,
        Handle,
        Immortal,
        ImmortalError,
        NotPrimary,
        RemoteError,
        Retry,
        first,
        gather,
        method,
        query,
        serve,
    )

__all__ = [
    "CoordinatorLost",
    "DefinitionError",
    "DeterminismError",
    "Handle",
    "Immortal",
    "ImmortalError",
    "NotPrimary",
    "RemoteError",
    "Retry",
    "first",
    "gather",
    "method",
    "query",
    "serve",
]


def __getattr__(name: str) -> Any:
    """Import the binding when an application asks for it: a coordinator needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pavane.ambrosia import client  # noqa: PLC0415 - that is the point

    return getattr(client, name)
