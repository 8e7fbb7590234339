"""Request ids (docs/specs/raft.md 2.4, 8.6): 4 bytes of seconds, 3 of machine, 2 of process, 3 of counter."""

import hashlib

from pavane.raft.wire.frames import REQID_BYTES
from pavane.wire import LocalProtocolError

MACHINE_BYTES = 3
COUNTER_MODULUS = 1 << 24  # ids of one process in one second
_ROLLOUT_PERSON = b"pavane-rollout-1"


class ReqidGenerator:
    """Makes the ids of one process; the caller gives the clock and the random start of the counter."""

    def __init__(self, machine: bytes, process: int, counter: int) -> None:
        if len(machine) != MACHINE_BYTES:
            raise LocalProtocolError(f"a machine has {MACHINE_BYTES} bytes, not {len(machine)}")
        self._middle = machine + (process & 0xFFFF).to_bytes(2, "big")
        self._counter = counter % COUNTER_MODULUS
        self._second = -1
        self._used = 0

    def next(self, second: int) -> bytes:
        """Return a new id for the Unix time ``second``.

        Raises ``LocalProtocolError`` after 2²⁴ ids in one second: the caller has to wait for the next.
        """
        if second != self._second:
            self._second, self._used = second, 0
        if self._used == COUNTER_MODULUS:
            raise LocalProtocolError("2^24 request ids were made in this second; wait for the next")
        self._used += 1
        self._counter = (self._counter + 1) % COUNTER_MODULUS
        return second.to_bytes(4, "big") + self._middle + self._counter.to_bytes(3, "big")


def machine_id(host_name: str, boot_id: str) -> bytes:
    """Return the three bytes that tell machines apart; containers may share a host name, so the boot id counts too."""
    return hashlib.blake2b((host_name + boot_id).encode(), digest_size=64).digest()[:MACHINE_BYTES]


def reqid_second(reqid: bytes | memoryview) -> int:
    """Return the Unix second in a request id, by which its freshness is judged (docs/specs/raft.md 10.3)."""
    return int.from_bytes(reqid[:4], "big")


def rollout_reqid(uid: str, generation: int, step: int, at_s: int) -> bytes:
    """Return the id of a rollout's step, the same at every repetition (docs/specs/raft.md 8.6).

    ``uid`` is the resource's, ``generation`` and ``step`` are written in decimal, ``at_s`` is Unix seconds.
    """
    text = f"{uid}\0{generation}\0{step}".encode()
    digest = hashlib.blake2b(text, digest_size=REQID_BYTES - 4, person=_ROLLOUT_PERSON)
    return at_s.to_bytes(4, "big") + digest.digest()
