"""Client library of Waltz (docs/waltz.md)."""

from pavane.runtime.certificates import trusting
from pavane.waltz.client.appending import Full
from pavane.waltz.client.consumer import Consumer, ConsumerInfo
from pavane.waltz.client.directory import PartitionInfo
from pavane.waltz.client.transaction import Lock, Transaction, Trim
from pavane.waltz.client.view import View
from pavane.waltz.client.waltz import Waltz
from pavane.waltz.errors import (
    Closed,
    Conflict,
    NoConsumer,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Trimmed,
    Unavailable,
    WaltzError,
)

__all__ = [
    "Closed",
    "Conflict",
    "Consumer",
    "ConsumerInfo",
    "Full",
    "Lock",
    "NoConsumer",
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
