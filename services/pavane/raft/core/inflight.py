"""The entries that are under way to one peer, of either program (docs/specs/raft.md 7.3, 7.4)."""

import math
from dataclasses import dataclass

from pavane.raft.core.requests import Ask, Requests

BATCH_BYTES = 64 * 1024  # JS_BATCH of 14.4: what one handling of the original takes without stalling
INFLIGHT_MESSAGES = 32  # with entries, above what the peer has durable
INFLIGHT_BYTES = 8 * 1024 * 1024
SPARE_MESSAGES = 8  # empty ones beyond that: heartbeats and barriers go on while the peer's disk is slow
PEER_BATCH_BYTES = 512 * 1024  # of one message; a greater entry goes alone


@dataclass(frozen=True, slots=True)
class Sent:
    """One message under way: it ends with entry ``last`` and was sent under ``sequence``."""

    ask: Ask
    last: int
    commit: int
    sequence: int
    size: int


class Inflight:
    """The messages of which the peer has not told that it holds all of it.

    To a peer of ours that takes ``pv.append``, which is ``pipelined``, many are outstanding. To one of the original
    program, and to one not known as ours, there is one.
    """

    def __init__(self, requests: Requests, *, pipelined: bool) -> None:
        self.pipelined = pipelined
        self.batch_bytes = PEER_BATCH_BYTES if pipelined else BATCH_BYTES
        self.repeat_at = 0.0  # when the peer has been silent for too long, while something is outstanding
        self.told_commit = 0  # as far as a pipelined peer is concerned
        self.tell_at = math.inf  # when that is told the commit index, if no entries carry it before
        self._requests = requests
        self._sent: list[Sent] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._sent)

    @property
    def first(self) -> Sent:
        """The oldest one."""
        return self._sent[0]

    @property
    def takes_entries(self) -> bool:
        """Whether there is room for a message with entries."""
        return len(self._sent) < INFLIGHT_MESSAGES and self._bytes < INFLIGHT_BYTES

    @property
    def takes_news(self) -> bool:
        """Whether there is room for an empty message."""
        return len(self._sent) < INFLIGHT_MESSAGES + SPARE_MESSAGES

    def add(self, sent: Sent) -> None:
        """Note a message that was sent."""
        self._sent.append(sent)
        self._bytes += sent.size

    def find(self, ask: Ask) -> Sent | None:
        """Return the message of a question."""
        return next((sent for sent in self._sent if sent.ask is ask), None)

    def answered(self, answer: Sent, match: int) -> None:
        """Forget what a peer has by now: entries up to ``match``, and empty messages up to the one it answered."""
        rest: list[Sent] = []
        for sent in self._sent:
            if sent.last > match if sent.size else sent.sequence > answer.sequence:
                rest.append(sent)
            else:
                self._requests.cancel(sent.ask)
                self._bytes -= sent.size
        self._sent = rest

    def clear(self) -> None:
        """Forget everything: answers to it no longer count."""
        for sent in self._sent:
            self._requests.cancel(sent.ask)
        self._sent.clear()
        self._bytes = 0
