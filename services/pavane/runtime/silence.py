"""When a connection that brings nothing any more counts as dead: one set of numbers for all that the platform dials.

A firewall that restarts, a connection table that is flushed and a NAT that forgets tell neither end. Whoever dialled
finds out by these: the kernel asks an idle peer for a sign of life, and bytes that nobody acknowledges end the
connection. Then it is dialled anew, which works. See docs/specs/operator.md 5.14.
"""

import asyncio
import socket
from typing import cast

PROBE_AFTER_S = 2
"""Idle so long, a peer is asked by its kernel. It also keeps the entry of a NAT on the way alive."""
PROBE_EVERY_S = 1
"""Between two such questions."""
SILENT_S = 5
"""What a peer has not acknowledged for so long, bytes or a question, ends the connection: longer than a lost packet and
its repetitions take, and half of what a user waits for."""
BEAT_S = 3.0
"""Longest silence of a server's event stream: a comment comes in between, through proxies too."""
STREAM_SILENT_S = 8.0
"""A reader of an event stream that heard nothing for so long dials anew: two beats, and time for a busy server."""
REUSE_S = 2.0
"""An HTTP connection that was idle for longer carries no further request: nobody knows whether it is still there."""

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


def notice(connection: asyncio.BaseTransport | asyncio.StreamWriter | socket.socket) -> None:
    """Make the kernel notice the silence of a TCP connection that this process dialled; others are left as they are."""
    sock = connection
    if not isinstance(connection, socket.socket):
        sock = cast("socket.socket", connection.get_extra_info("socket"))
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    for option in socket_options():
        sock.setsockopt(*option)
