"""A state machine of one's own: counters that every peer holds alike.

    pip install ./examples/raft-machine
    pavane raft peer --id 1 --data ./peer1 --peers 1=tcp://127.0.0.1:8047 --secret example --machine Counters

Each update is the name of a counter, which it raises by one; request ``count`` asks for its value.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from pavane.raft.state.configuration import Configuration


class Counters:
    """Names and how often each of them stands in the log; ``pavane.raft.machine.StateMachine`` says what is asked."""

    name = "Counters"
    level_max = 1
    level = 1

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def apply(self, index: int, reqid: bytes, data: memoryview) -> None:
        """Count one name. Nothing but the entry and the counts so far may decide what becomes of them."""
        name = bytes(data).hex()
        self._counts[name] = self._counts.get(name, 0) + 1

    def configuration(self, index: int, configuration: Configuration) -> None:
        """Members do not matter to counters."""

    def freeze(self) -> Iterator[bytes]:
        """Return the counts of this moment: they are serialised here and not when somebody reads them."""
        return iter((json.dumps(self._counts, sort_keys=True).encode(),))

    def restore(self, data: Iterable[bytes | memoryview], index: int) -> None:
        """Begin from what ``freeze`` returned, at this peer or another one."""
        self._counts = json.loads(b"".join(data))

    def digest(self) -> bytes:
        """Hash the counts, so that ``pavane raft verify`` can compare peers."""
        return blake2b(b"".join(self.freeze()), digest_size=16).digest()

    def dispatch(self, kind: bytes, arguments: Sequence[bytes | memoryview], *, leads: bool) -> Sequence[bytes] | None:
        """Answer ``client.dispatch(b"count", name, idempotent=True)`` with the count as this peer has applied it."""
        if kind != b"count" or len(arguments) != 1 or not leads:
            return None
        return [b"%d" % self._counts.get(bytes(arguments[0]).hex(), 0)]
