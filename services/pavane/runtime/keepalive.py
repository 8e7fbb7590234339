"""Makes the kernel notice that a connection brings nothing any more (docs/specs/operator.md 5.14).

It asks an idle peer for a sign of life, and ends a connection whose bytes nobody acknowledges.
"""

import asyncio
import socket

from pavane.parts.silence import PROBE_AFTER_S, PROBE_EVERY_S, SILENT_S

Option = tuple[int, int, int]


def socket_options() -> list[Option]:
    """Return what makes the kernel notice silence, for ``setsockopt``; as many as this system has."""
    wanted = {
        "TCP_KEEPIDLE": PROBE_AFTER_S,
        "TCP_KEEPALIVE": PROBE_AFTER_S,  # the name of the same on macOS
        "TCP_KEEPINTVL": PROBE_EVERY_S,
        "TCP_KEEPCNT": (SILENT_S - PROBE_AFTER_S) // PROBE_EVERY_S,
        "TCP_USER_TIMEOUT": SILENT_S * 1000,
    }
    tcp = [
        (socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in wanted.items() if hasattr(socket, name)
    ]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *tcp]


def notice_silence(connection: asyncio.BaseTransport | asyncio.StreamWriter | socket.socket) -> None:
    """Make the kernel notice the silence of a TCP connection that this process dialled; others are left as they are."""
    sock: socket.socket | None = (
        connection if isinstance(connection, socket.socket) else connection.get_extra_info("socket")
    )
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    for option in socket_options():
        sock.setsockopt(*option)
