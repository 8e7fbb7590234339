"""What an application of the binding may see raised (docs/specs/ambrosia.md 18.5)."""


class ImmortalError(Exception):
    """Base of everything that the binding raises."""


class DefinitionError(ImmortalError):
    """A class of an application cannot be an immortal: the text names file, line and what to write instead."""


class NotPrimary(ImmortalError):
    """This process does not lead its instance yet, so nothing new may enter; only queries are answered."""


class CoordinatorLost(ImmortalError):
    """The coordinator of this process has gone: the process must end and be started again."""


class RemoteError(ImmortalError):
    """A handler ended with an exception: ``type`` is the name of its class, ``message`` its text."""

    def __init__(self, type: str, message: str) -> None:  # noqa: A002 - the field's name on the wire
        super().__init__(f"{type}: {message}" if message else type)
        self.type = type
        self.message = message


class DeterminismError(ImmortalError):
    """A handler does what a replay could not repeat.

    ``expected`` and ``found`` say what differs, ``where`` is file:line, ``remedy`` is what to write instead.
    """

    def __init__(self, found: str, *, expected: str = "", where: str = "", remedy: str = "") -> None:
        parts = [found]
        if expected:
            parts.append(f"expected: {expected}")
        if where:
            parts.append(f"at {where}")
        if remedy:
            parts.append(remedy)
        super().__init__("; ".join(parts))
        self.found = found
        self.expected = expected
        self.where = where
        self.remedy = remedy


class ForbiddenCall(DeterminismError):
    """A handler asked for a clock, a random number, a file, a socket or a thread."""


class OutsideHandler(DeterminismError):
    """Something was sent by code that no logged message caused."""


class UndeclaredState(DeterminismError):
    """A handler set an attribute that is not part of the state, so that it would vanish at a restore."""


class StateInFlow(DeterminismError):
    """A flow, or a query, tried to change the state of its object."""


class NotDurable(DeterminismError):
    """A flow awaits something that cannot be awaited again after a crash."""


class FlowMismatch(DeterminismError):
    """A flow that was restored asks for other things than before: its code has changed."""


class ChangedCode(DeterminismError):
    """A handler is not the one that handled a record behind the last checkpoint, and the version is the same."""


class Diverged(DeterminismError):
    """A replay gave another output or another state than the life that was recorded."""
