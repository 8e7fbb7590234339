"""The replicated state machines ``KeyValue`` and ``Tree`` (docs/specs/raft.md 12), pure.

``KeyValue`` and ``Tree`` apply commands (``commands``) and are snapshotted; ``Cursor`` follows their history;
``LeaseKeeper`` is the leader's knowledge of time, which is no part of the state.
"""

from pavane.raft.machines.commands import (
    Command,
    Failed,
    LeaseExpire,
    LeaseGrant,
    LeaseRevoke,
    SetLevel,
    Txn,
    encode_command,
)
from pavane.raft.machines.decoding import decode_command
from pavane.raft.machines.history import Cursor, Event, Watch, message_parts
from pavane.raft.machines.keeper import LeaseKeeper
from pavane.raft.machines.keyvalue import KeyValue, Tree, decode_lease_ids, decode_query
from pavane.raft.machines.snapshot import BadSnapshot
from pavane.raft.machines.state import Lease, Result, decode_result

__all__ = [
    "BadSnapshot",
    "Command",
    "Cursor",
    "Event",
    "Failed",
    "KeyValue",
    "Lease",
    "LeaseExpire",
    "LeaseGrant",
    "LeaseKeeper",
    "LeaseRevoke",
    "Result",
    "SetLevel",
    "Tree",
    "Txn",
    "Watch",
    "decode_command",
    "decode_lease_ids",
    "decode_query",
    "decode_result",
    "encode_command",
    "message_parts",
]
