"""When a connection on which nothing comes is given up, of peers and clients: all its ends (docs/specs/raft.md 14.3).

A firewall that is started anew, a NAT that forgets and a proxy whose other side is gone leave connections that stand
and carry nothing, while new ones work at once. Whoever asked something on one and hears nothing asks the cheapest
question, ``^``, which every program answers in every state, and dials anew if that is not answered either. What was
sent is given the time that a slow line takes for it, for dialled anew it would begin from its first byte. The system
does the same below: what it sends must be acknowledged, and idle connections are probed. No heartbeats of ØMQ: whatever
is in use has questions and answers anyway, so these cost nothing.
"""

from typing import Generic, TypeVar

Key = TypeVar("Key")

LOOK_S = 0.1  # between two looks at all connections that owe an answer
SILENT_S = 1.0  # without any message from whoever owes one: dial anew; half of it: ask for a sign of life
SILENT_MAX_S = 16.0  # it doubles with each loss: who is that slow must get to answer in the end
SLOW_BYTES_S = 256 << 10  # nobody answers what is not there yet: a line this slow must have taken what was sent before

CONNECT_MS = 2000  # an address without a host, or behind a cut, is tried so long at a time; else it is for minutes
HANDSHAKE_MS = 10_000  # of ØMQ: thousands may connect at once
UNACKNOWLEDGED_MS = 2000  # what a DEALER sent is acknowledged within this, or its connection goes with all of that
UNREAD_MS = 3000  # the same for a ROUTER, whose clients may be slow to read
IDLE_S = 5  # nothing comes for so long: the system asks whether the other end is there
IDLE_PROBE_S = 1  # which must say so within this
IDLE_ROUTER_S = 10  # the same for a ROUTER, of thousands of connections
IDLE_ROUTER_PROBE_S = 3

SILENT_LOOKS = round(SILENT_S / LOOK_S)
SILENT_LOOKS_MAX = round(SILENT_MAX_S / LOOK_S)
LOOK_BYTES = round(SLOW_BYTES_S * LOOK_S)
BACKLOG_BYTES_MAX = round(SLOW_BYTES_S * SILENT_MAX_S)  # a connection that is lost is not waited for any longer


class Silence(Generic[Key]):
    """The connections of one program, and which of them owe an answer.

    Call ``look`` every LOOK_S. It counts looks rather than seconds, so that a program which was stopped itself does not
    take the answers that wait for it for silence.
    """

    def __init__(self) -> None:
        self._up: set[Key] = set()
        self._owing: dict[Key, int] = {}  # looks since the first question after the last message
        self._backlog: dict[Key, int] = {}  # bytes that may still be on their way
        self._sent: dict[Key, int] = {}  # bytes since the last message, as far as they count for the backlog
        self._patience: dict[Key, int] = {}  # looks, of those that were given up
        self._trial: dict[Key, int] = {}  # looks for which these keep it, whatever is heard: small answers come soon

    def __bool__(self) -> bool:
        """Whether anybody owes an answer: else there is nothing to look at."""
        return bool(self._owing)

    def connected(self, key: Key, up: bool) -> None:
        """A connection came up or went; only those that stand can be silent."""
        self._owing.pop(key, None)
        self._backlog.pop(key, None)
        self._sent.pop(key, None)
        if up:
            self._up.add(key)
        else:
            self._up.discard(key)

    def asked(self, key: Key, size: int = 0) -> None:
        """Something was sent, of ``size`` bytes."""
        if key in self._up:
            self._owing.setdefault(key, 0)
            sent = self._sent.get(key, 0)
            more = min(size, BACKLOG_BYTES_MAX - sent)  # not of what is repeated again and again
            self._sent[key] = sent + more
            self._backlog[key] = min(self._backlog.get(key, 0) + more, BACKLOG_BYTES_MAX)

    def heard(self, key: Key) -> None:
        """Something came."""
        self._sent.pop(key, None)
        if self._owing.pop(key, None) is not None and self._patience and key not in self._trial:
            self._patience.pop(key, None)

    def forget(self, key: Key) -> None:
        """The connection is closed for good."""
        self.connected(key, up=False)
        self._patience.pop(key, None)
        self._trial.pop(key, None)

    def look(self) -> tuple[list[Key], list[Key]]:
        """Return the keys that must be asked for a sign of life, and those whose connections are given up and count as
        down."""
        doubtful: list[Key] = []
        lost: list[Key] = []
        self._backlog = {key: size - LOOK_BYTES for key, size in self._backlog.items() if size > LOOK_BYTES}
        self._trial = {key: left - 1 for key, left in self._trial.items() if left > 1}
        for key, before in self._owing.items():
            if key in self._backlog:
                continue
            looks = self._owing[key] = before + 1
            patience = self._patience.get(key, SILENT_LOOKS)
            if looks == patience // 2:
                doubtful.append(key)
            elif looks > patience:
                lost.append(key)
                self._patience[key] = self._trial[key] = min(2 * patience, SILENT_LOOKS_MAX)
        for key in lost:
            self.connected(key, up=False)
        return doubtful, lost
