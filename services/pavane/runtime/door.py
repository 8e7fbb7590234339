"""A listening TLS socket on which strangers cannot use up all file descriptors: they are counted before the handshake.

A protocol hears of a connection when its handshake is over. Whoever connects and says nothing is unknown until then,
and asyncio waits a minute for each.
"""

import contextlib
import resource
import socket
from typing import Any

WAITING_MAX = 128  # connections in their handshake; more at once is no crowd of programs that mean well


def affordable(wanted: int, share: int) -> int:
    """Return ``wanted``, or the ``share``-th part of the files that this process may open, if that is less."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else max(1, min(wanted, files // share))


class Door(socket.socket):
    """A listening socket for asyncio, made of ``listener``, which it takes over.

    At most WAITING_MAX connections are accepted and not yet ``admit``-ted, or a quarter of what the process may open;
    beyond, the one that waits longest is ended.
    """

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(fileno=listener.detach())
        self._waiting: dict[int, _Accepted] = {}  # by descriptor, oldest first
        self._ended: set[_Accepted] = set()
        self._max = affordable(WAITING_MAX, 4)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; raises ``BlockingIOError`` while there is no place, which one gives up then."""
        if len(self._waiting) + len(self._ended) >= self._max:
            if self._waiting:
                oldest = self._waiting.pop(next(iter(self._waiting)))
                self._ended.add(oldest)
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # asyncio, whose it is, then closes it
            raise BlockingIOError("no place until one in its handshake is closed")
        descriptor, address = self._accept()  # type: ignore[attr-defined]
        accepted = _Accepted(self, descriptor)
        self._waiting[descriptor] = accepted
        return accepted, address

    def admit(self, descriptor: int) -> None:
        """Take note that a protocol has this connection now, and counts it."""
        self._waiting.pop(descriptor, None)

    def forget(self, accepted: "_Accepted") -> None:
        """Take note that a connection is closed."""
        self._ended.discard(accepted)
        if self._waiting.get(accepted.fileno()) is accepted:
            del self._waiting[accepted.fileno()]


class _Accepted(socket.socket):
    """A connection that tells its door when it is closed."""

    def __init__(self, door: Door, descriptor: int) -> None:
        super().__init__(door.family, door.type, door.proto, fileno=descriptor)
        self._door = door

    def close(self) -> None:
        """Close it."""
        self._door.forget(self)
        super().close()
