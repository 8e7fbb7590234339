"""Checks of our own correctness that stay on in production: going on would cost data."""

from pavane.wire import LocalProtocolError


def require(holds: bool, broken: str) -> None:
    """Raise ``LocalProtocolError`` naming what is broken, unless it holds."""
    if not holds:
        raise LocalProtocolError(broken)
