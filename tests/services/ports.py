"""TCP ports for servers whose addresses must be known before they listen."""

import os
import random
import socket

FIRST, LAST = 12_000, 31_000  # below the range from which the kernel gives ports to connections
_WORKERS_MAX = 16
_SHARE = (LAST - FIRST) // _WORKERS_MAX
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw") or 0) % _WORKERS_MAX
# Each worker has a share of its own; another session on this machine probably begins elsewhere in it.
_offset = random.SystemRandom().randrange(_SHARE)


def free_ports(count: int) -> list[int]:
    """Return ``count`` ports of 127.0.0.1 that are free now and that nothing else in this test session is given."""
    found: list[int] = []
    for _ in range(_SHARE):
        port = _next()
        if _is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"{count} free ports between {FIRST} and {LAST} were not found")


def _next() -> int:
    global _offset  # noqa: PLW0603 -- one sequence for all tests of a worker
    _offset = (_offset + 1) % _SHARE
    return FIRST + _worker * _SHARE + _offset


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection of an earlier run in TIME_WAIT is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
