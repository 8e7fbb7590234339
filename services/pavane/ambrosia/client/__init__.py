"""What an application of AMBROSIA imports."""

from pavane.ambrosia.client.definition import Method, Query, method, query
from pavane.ambrosia.client.errors import (
    ChangedCode,
    CoordinatorLost,
    DefinitionError,
    DeterminismError,
    Diverged,
    FlowMismatch,
    ForbiddenCall,
    ImmortalError,
    NotDurable,
    NotPrimary,
    OutsideHandler,
    RemoteError,
    StateInFlow,
    UndeclaredState,
)
from pavane.ambrosia.client.immortal import Immortal, first, gather
from pavane.ambrosia.client.retries import Retry
from pavane.ambrosia.client.serving import Handle, serve

__all__ = [
    "ChangedCode",
    "CoordinatorLost",
    "DefinitionError",
    "DeterminismError",
    "Diverged",
    "FlowMismatch",
    "ForbiddenCall",
    "Handle",
    "Immortal",
    "ImmortalError",
    "Method",
    "NotDurable",
    "NotPrimary",
    "OutsideHandler",
    "Query",
    "RemoteError",
    "Retry",
    "StateInFlow",
    "UndeclaredState",
    "first",
    "gather",
    "method",
    "query",
    "serve",
]
