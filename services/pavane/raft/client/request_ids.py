"""The ids that one open client makes: of requests that change something, and of those that do not (2.4, 11.3).

They are made in the process that opened the client and by the cluster's clock. See docs/specs/raft.md.
"""

import os
import secrets
import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path

from pavane.raft.wire.reqid import ReqidGenerator, machine_id, seed
from pavane.runtime.forks import Process

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CALL_ID_MODULUS = 1 << 62  # client ids that are no request ids: numbers of 8 bytes, so never those of polls
CALL_ID_BYTES = 8
CLOCK_OFFSET_S_MIN = 1  # less is the way of the message, or the rounding of a second
DRAWN_BYTES = 16  # of chance that enters the three bytes of the machine

Clock = Callable[[], float]
"""Returns Unix seconds."""


class RequestIds:
    """Made when a client is opened; ``clock`` is this machine's."""

    def __init__(self, clock: Clock) -> None:
        self.process = Process()
        self._clock = clock
        self._offset_s = 0
        self._reqids = ReqidGenerator(_draw)
        self._call_number = secrets.randbelow(CALL_ID_MODULUS)

    def reqid(self) -> bytes:
        """Return a fresh request id."""
        return self._reqids.next(int(self._clock()) + self._offset_s)

    def call_id(self) -> bytes:
        """Return a fresh id for a request that changes nothing."""
        self._call_number = (self._call_number + 1) % CALL_ID_MODULUS
        return self._call_number.to_bytes(CALL_ID_BYTES, "little")

    def follow(self, server_ms: int) -> None:
        """Make ids by the clock of the cluster from now on: one that is off must not make them expired (11.3)."""
        offset_s = round(server_ms / 1000 - self._clock())
        self._offset_s = offset_s if abs(offset_s) > CLOCK_OFFSET_S_MIN else 0

    def begin_anew(self) -> None:
        """Make other ids from now on: another program makes the same ones."""
        self._reqids.begin_anew()


def _draw() -> bytes:
    # The system's chance is anew in a forked process and, where the system is told, in a copied machine.
    machine = machine_id(socket.gethostname(), _boot_id(), secrets.token_bytes(DRAWN_BYTES))
    return seed(machine, os.getpid(), int.from_bytes(secrets.token_bytes(3), "big"))


@cache
def _boot_id() -> str:
    try:
        return BOOT_ID.read_text()
    except OSError:
        return ""  # not Linux, or hidden: the host name has to do
