"""What can go wrong between a Raft client and its cluster, and the words that the wire has for it.

``Code`` are the answers of our own messages (docs/specs/raft.md 4.4), ``DropReason`` the words under which malformed
and foreign input is counted (3.4), the exceptions are those of the client (11.1).
"""

from collections.abc import Sequence
from enum import IntEnum, StrEnum


class Code(IntEnum):
    """Result codes of the ``pv.`` client messages (docs/specs/raft.md 4.4)."""

    OK = 0
    NOT_LEADER = 1
    PENDING = 2
    EXPIRED = 3
    BUSY = 4
    TOO_LARGE = 5
    BAD_COMMAND = 6
    UNSUPPORTED = 7
    RESULT_LOST = 8
    COMPACTED = 9
    NO_SPACE = 10
    NO_LEASE = 11
    CONDITION = 12
    NO_NODE = 13
    NODE_EXISTS = 14
    BAD_VERSION = 15
    NOT_EMPTY = 16
    EPHEMERAL_PARENT = 17
    READ_ONLY = 18
    CLOSING = 19
    FORK = 20
    ID_TAKEN = 21


class DropReason(StrEnum):
    """Why a message was not taken; label of ``pavane_raft_dropped_total`` (docs/specs/raft.md 3.4)."""

    FRAMES = "frames"
    ID = "id"
    TYPE = "type"
    IDENT = "ident"
    UINT = "uint"
    UTF8 = "utf8"
    JSON = "json"
    ENTRY = "entry"
    CONFIG = "config"
    SENDER = "sender"
    SIZE = "size"
    STAGE = "stage"
    OVERLOAD = "overload"
    ROUTE = "route"
    STALE = "stale"
    STICKY = "sticky"


class RaftError(Exception):
    """Base of every error that a ``RaftClient`` reports to its caller (docs/specs/raft.md 11.1)."""


class Expired(RaftError):
    """The cluster refuses the request id as too old or too far in the future.

    With ``sent_before`` an earlier attempt may have reached a peer, also that of an earlier call with the same id, so
    the outcome is unknown; without it the request had no effect. Look whether it took effect, then repeat it with a
    fresh id.
    """

    def __init__(self, reqid: bytes, sent_before: bool) -> None:
        outcome = "an earlier attempt may have taken effect" if sent_before else "it had no effect"
        super().__init__(f"request id {reqid.hex()} has expired; {outcome}. Check this machine's clock, use a fresh id")
        self.reqid = reqid
        self.sent_before = sent_before


class ReqidTaken(RaftError):
    """The cluster knows the request id as that of another command, so it refuses this one.

    Two programs make equal ids if they go on with a copy of one memory. With ``sent_before`` an earlier attempt of this
    command may have reached a peer, and the outcome is unknown; without it the command had no effect.
    """

    def __init__(self, reqid: bytes, sent_before: bool) -> None:
        outcome = "an earlier attempt of this one may have taken effect" if sent_before else "this one had no effect"
        super().__init__(f"request id {reqid.hex()} is that of another command; {outcome}. Use a fresh id")
        self.reqid = reqid
        self.sent_before = sent_before


class UnderWay(RaftError):
    """A call with this request id has not ended yet: it is the one to wait for."""

    def __init__(self, reqid: bytes) -> None:
        super().__init__(f"request id {reqid.hex()} is under way; repeat it when the earlier request has ended")
        self.reqid = reqid


class Refused(RaftError):
    """The cluster answered that it will not do this; ``code`` is the number it gave, ``text`` its explanation."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"refused ({code}): {text}")
        self.code = code
        self.text = text


class TooLarge(RaftError):
    """``size`` bytes are more than the ``limit`` bytes that one request may carry; split the data."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes are more than the limit of {limit}; split the data")
        self.size = size
        self.limit = limit


class Overloaded(RaftError):
    """The peer is busy; ask again after ``retry_after_ms`` milliseconds."""

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__(f"the peer is busy; repeat after {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


class Behind(RaftError):
    """No peer that answers has applied ``revision`` yet."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"no peer that answers has applied revision {revision} yet; repeat, or take an older state")
        self.revision = revision


class ResultLost(RaftError):
    """The command took effect at ``index``, but so long ago that its result is forgotten: read what it wrote."""

    def __init__(self, index: int) -> None:
        super().__init__(f"the command was applied at index {index} and its result is forgotten; read what it wrote")
        self.index = index


class Unreachable(RaftError):
    """Nobody took and finished the request within the time allowed.

    The outcome is unknown: the caller may repeat with the same request id (``reqid``, ``None`` for reads). ``peers``
    are the urls that were tried, for ``tried_for_s`` seconds, and ``why`` is what the client knows of the cause.
    """

    def __init__(
        self,
        peers: Sequence[str],
        tried_for_s: float,
        reqid: bytes | None = None,
        why: str = "Check the addresses, the cluster secret and that a majority of the peers runs",
    ) -> None:
        again = f"; outcome unknown, repeat with request id {reqid.hex()}" if reqid is not None else ""
        super().__init__(f"no answer within {tried_for_s:.1f} s; tried {', '.join(peers)}{again}. {why}")
        self.why = why
        self.peers = tuple(peers)
        self.tried_for_s = tried_for_s
        self.reqid = reqid


class Closed(RaftError):
    """The client is not open, was opened before, or was closed while the call was under way: outcome unknown then."""


class Unsupported(RaftError):
    """The server does not know this request: it runs another program or an older version."""


class Compacted(RaftError):
    """The entries asked for are no longer in the log; the first that still is has the index ``first``."""

    def __init__(self, first: int) -> None:
        super().__init__(f"older entries were compacted; read from index {first} on, behind the snapshot")
        self.first = first


class WentBack(Compacted):
    """A watcher or subscriber has seen entry ``seen``, the cluster is at ``revision``: it goes on from older data."""

    def __init__(self, seen: int, revision: int) -> None:
        super().__init__(revision + 1)
        self.args = (
            f"entry {seen} was seen and the cluster is at {revision}: it goes on from an older copy of its data; "
            "forget what you know and read again",
        )
        self.seen = seen
        self.revision = revision
