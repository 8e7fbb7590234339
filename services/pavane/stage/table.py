"""What every command means at every point of a stream, as data (docs/specs/compute.md 2.2, 2.4, 6).

The point of a *stream* decides whether a message may come at all; what it then does to the *pod*, which may be further
than the stream, is the business of ``core``.
"""

from collections.abc import Mapping
from enum import Enum

from pavane.compute.core.streams import Phase
from pavane.compute.wire.commands import (
    COMPUTATION,
    AllowWrites,
    Command,
    CreateInstance,
    CreateTimely,
    InitializationComplete,
    UpdateConfiguration,
)


class Decision(Enum):
    """What a command leads to."""

    TAKE_EPOCH = "take epoch"
    CHECK_INSTANCE = "check instance"
    CONFIGURE = "configure"
    COMPLETE = "complete initialization"
    REMEMBER_WRITES = "remember permission to write"
    ALLOW_WRITES = "allow writes"
    OUT_OF_ORDER = "FAILED_PRECONDITION"
    UNIMPLEMENTED = "UNIMPLEMENTED"


CommandType = type[Command]

_UNKNOWN_HERE = (Decision.OUT_OF_ORDER, Decision.OUT_OF_ORDER, Decision.UNIMPLEMENTED, Decision.UNIMPLEMENTED)

TABLE: Mapping[CommandType, tuple[Decision, Decision, Decision, Decision]] = {
    # command: at OPENED, GREETED, EXPECTING, COMPLETE
    CreateTimely: (Decision.TAKE_EPOCH, Decision.OUT_OF_ORDER, Decision.OUT_OF_ORDER, Decision.OUT_OF_ORDER),
    CreateInstance: (Decision.OUT_OF_ORDER, Decision.CHECK_INSTANCE, Decision.OUT_OF_ORDER, Decision.OUT_OF_ORDER),
    UpdateConfiguration: (Decision.OUT_OF_ORDER, Decision.OUT_OF_ORDER, Decision.CONFIGURE, Decision.CONFIGURE),
    InitializationComplete: (Decision.OUT_OF_ORDER, Decision.OUT_OF_ORDER, Decision.COMPLETE, Decision.OUT_OF_ORDER),
    AllowWrites: (Decision.OUT_OF_ORDER, Decision.OUT_OF_ORDER, Decision.REMEMBER_WRITES, Decision.ALLOW_WRITES),
    **dict.fromkeys(COMPUTATION, _UNKNOWN_HERE),
}


def decide(phase: Phase, command: CommandType) -> Decision:
    """Return what ``command`` leads to at ``phase``; total over both."""
    return TABLE[command][phase]
