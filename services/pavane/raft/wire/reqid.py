"""Request ids (docs/specs/raft.md 2.4, 8.6): 4 bytes of seconds, 3 of machine, 2 of process, 3 of counter."""

import hashlib
from collections.abc import Callable

from pavane.raft.wire.frames import REQID_BYTES
from pavane.wire import LocalProtocolError

SECOND_BYTES = 4
MACHINE_BYTES = 3
COUNTER_BYTES = 3
COUNTER_MODULUS = 1 << 8 * COUNTER_BYTES  # ids of one process in one second
_ROLLOUT_PERSON = b"pavane-rollout-1"


class ReqidGenerator:
    """Makes the ids of one process. The caller gives the clock, and ``draw``, which is asked anew for every second.

    ``draw`` returns what ``seed`` makes: the first id of the second behind its four bytes of time. So whoever goes on
    with a copy of this memory, as the child of a fork or a machine that was copied while it ran, soon makes other ids,
    and a clock that comes back to a second does not repeat what was made in it.
    """

    def __init__(self, draw: Callable[[], bytes]) -> None:
        self._draw = draw
        self._second = -1
        self._middle = b""
        self._counter = 0
        self._used = 0

    def next(self, second: int) -> bytes:
        """Return a new id for the Unix time ``second``.

        Raises ``LocalProtocolError`` after 2²⁴ ids in one second: the caller has to wait for the next.
        """
        if second != self._second:
            first = self._draw()
            self._second, self._used = second, 0
            self._middle, self._counter = first[:-COUNTER_BYTES], int.from_bytes(first[-COUNTER_BYTES:], "big")
        if self._used == COUNTER_MODULUS:
            raise LocalProtocolError("2^24 request ids were made in this second; wait for the next")
        counter = (self._counter + self._used) % COUNTER_MODULUS
        self._used += 1
        return second.to_bytes(SECOND_BYTES, "big") + self._middle + counter.to_bytes(COUNTER_BYTES, "big")

    def begin_anew(self) -> None:
        """Draw again for the next id: somebody else makes the same ones."""
        self._second = -1


def seed(machine: bytes, process: int, counter: int) -> bytes:
    """Return what tells the ids of a second apart from those of all others, and the counter at which they begin."""
    if len(machine) != MACHINE_BYTES:
        raise LocalProtocolError(f"a machine has {MACHINE_BYTES} bytes, not {len(machine)}")
    return machine + (process & 0xFFFF).to_bytes(2, "big") + (counter % COUNTER_MODULUS).to_bytes(COUNTER_BYTES, "big")


def machine_id(host_name: str, boot_id: str, drawn: bytes) -> bytes:
    """Return the three bytes that tell machines apart, and with ``drawn``, random bytes, programs as well.

    Containers may share a host name, and process ids, so the boot id counts too; copies of a machine share all three.
    """
    return hashlib.blake2b((host_name + boot_id).encode() + drawn, digest_size=64).digest()[:MACHINE_BYTES]


def reqid_second(reqid: bytes | memoryview) -> int:
    """Return the Unix second in a request id, by which its freshness is judged (docs/specs/raft.md 10.3)."""
    return int.from_bytes(reqid[:SECOND_BYTES], "big")


def rollout_reqid(uid: str, generation: int, step: int, at_s: int) -> bytes:
    """Return the id of a rollout's step, the same at every repetition (docs/specs/raft.md 8.6).

    ``uid`` is the resource's, ``generation`` and ``step`` are written in decimal, ``at_s`` is Unix seconds.
    """
    text = f"{uid}\0{generation}\0{step}".encode()
    digest = hashlib.blake2b(text, digest_size=REQID_BYTES - SECOND_BYTES, person=_ROLLOUT_PERSON)
    return at_s.to_bytes(SECOND_BYTES, "big") + digest.digest()
