"""Whose fault it was: the error tree that every protocol package derives from.

``LocalProtocolError`` means that we misused a machine; ``RemoteProtocolError`` means that the bytes or the order of a
peer were wrong. An adapter lets the first one end the process and turns the second into a counted drop or an answer.
"""

from typing import ClassVar


class ProtocolError(Exception):
    """Base of everything that a protocol machine raises.

    ``code`` is the protocol's own number or word for this error where it has one; a subclass sets it.
    """

    code: ClassVar[int | str | None] = None


class LocalProtocolError(ProtocolError):
    """We used a protocol machine in a way that its state does not allow: a bug on this side."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes, or sent them at a time, that the protocol does not allow.

    ``reason`` is a short stable word for counters (for Raft: docs/specs/raft.md 3.4).
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class LimitExceeded(RemoteProtocolError):
    """The peer went beyond a named limit.

    ``limit`` is the name of the constant, so that the message tells the reader which one.
    """

    def __init__(self, limit: str, value: int, maximum: int) -> None:
        super().__init__("size", f"{value} is more than {limit} ({maximum})")
        self.limit = limit
        self.value = value
        self.maximum = maximum
