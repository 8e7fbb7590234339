"""What can go wrong between an application and the log, and the reject codes of V5 (docs/specs/waltz.md 6.4)."""

from collections.abc import Mapping
from enum import IntEnum


class RejectCode(IntEnum):
    """Why a server refused a request of a V5 client."""

    PARTITION_NOT_HERE = 1
    NOT_MOUNTED = 2
    STALE_CONNECTION = 3
    WRONG_GENERATION = 4
    READ_ONLY = 5
    NOT_COMMITTED = 6
    BAD_CHECKSUM = 7
    TOO_LARGE = 8
    CLIENT_AHEAD = 9
    TRIMMED = 10
    PRODUCER_FENCED = 11
    OUT_OF_WINDOW = 12
    NOT_PERMITTED = 13
    BAD_REQUEST = 14
    UNAVAILABLE = 15
    NO_CONSUMER = 16
    CONSUMER_NEEDS = 17


class WaltzError(Exception):
    """Base of the errors that the log reports to its own program."""


class ArchiveError(WaltzError):
    """The archive could not be reached, refused something, or holds something else than was written."""


class StorageRefused(WaltzError):
    """A storage node answered a tool that it will not do what was asked."""


class Conflict(WaltzError):
    """An append was refused before it was committed: somebody wrote under one of its locks after ``seen``.

    ``txid`` is the highest transaction that may have done so. Read up to it, decide again, append again.
    """

    def __init__(self, partition: int, txid: int) -> None:
        super().__init__(
            f"partition {partition}: transaction {txid} may have written under a lock of this append, which had not "
            f"seen it. Nothing was written. Read up to {txid}, then append again with seen={txid}"
        )
        self.partition = partition
        self.txid = txid


class OutcomeUnknown(WaltzError):
    """The connection ended after an append was sent and before its answer came; it may or may not be in the log.

    ``reqid`` is the identity that the record carries if it was committed: look for it in the feed from ``seen`` on.
    """

    def __init__(self, partition: int, reqid: tuple[int, int, int, int]) -> None:
        name = "-".join(str(part) for part in reqid)
        super().__init__(
            f"partition {partition}: the connection ended before append {name} was answered. It may or may not be in "
            "the log; read the feed and look for its reqid before you append it again"
        )
        self.partition = partition
        self.reqid = reqid


class Rejected(WaltzError):
    """The server refused a request for good; nothing was written.

    ``code`` says why, ``detail`` is the number that belongs to it.
    """

    def __init__(self, code: RejectCode, detail: int, message: str) -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.detail = detail


class Trimmed(Rejected):
    """What was asked for is older than anything the log still has: it begins with transaction ``first``."""

    @property
    def first(self) -> int:
        """The first transaction there is."""
        return self.detail


class NoConsumer(Rejected):
    """The partition has no consumer of this name, or another one: it was removed, or given another position.

    It starts nowhere by itself, for nobody knows what it has applied: ``start`` says where.
    """


def rejected(code: RejectCode, detail: int, message: str) -> Rejected:
    """Return the error for a refusal."""
    return _ERRORS.get(code, Rejected)(code, detail, message)


class Unavailable(WaltzError):
    """No server answered for the partition within the time that the client waits; nothing was written."""


class NotFound(WaltzError):
    """The log has no such transaction."""


class Closed(WaltzError):
    """The client was closed before the call ended."""


_ERRORS: Mapping[RejectCode, type[Rejected]] = {RejectCode.TRIMMED: Trimmed, RejectCode.NO_CONSUMER: NoConsumer}
