"""Client library of Waltz (docs/waltz.md)."""

from pavane.runtime.certificates import trusting
from pavane.waltz.client.appending import Full
from pavane.waltz.client.directory import PartitionInfo
from pavane.waltz.client.transaction import Lock, Transaction, Trim
from pavane.waltz.client.view import View
from pavane.waltz.client.waltz import Waltz
from pavane.waltz.errors import Closed, Conflict, NotFound, OutcomeUnknown, Rejected, Trimmed, Unavailable, WaltzError

__all__ = [
    "Closed",
    "Conflict",
    "Full",
    "Lock",
    "NotFound",
    "OutcomeUnknown",
    "PartitionInfo",
    "Rejected",
    "Transaction",
    "Trim",
    "Trimmed",
    "Unavailable",
    "View",
    "Waltz",
    "WaltzError",
    "trusting",
]
