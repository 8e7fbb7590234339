"""Client library of ØMQ Raft (docs/specs/raft.md 11, 12.7)."""

from pavane.raft.client.blocking import BlockingRaftClient
from pavane.raft.client.calls import Entry
from pavane.raft.client.client import ClientConfig, RaftClient
from pavane.raft.client.held_lease import HeldLease
from pavane.raft.client.key_calls import Changes
from pavane.raft.client.keys import Item, Items, Keys, Reset, TxnResult, guard
from pavane.raft.client.snapshot_call import Snapshot
from pavane.raft.client.subscription import Fresh
from pavane.raft.client.tree import NodeInfo, TreeKeys
from pavane.raft.machines.commands import prefix_range

__all__ = [
    "BlockingRaftClient",
    "Changes",
    "ClientConfig",
    "Entry",
    "Fresh",
    "HeldLease",
    "Item",
    "Items",
    "Keys",
    "NodeInfo",
    "RaftClient",
    "Reset",
    "Snapshot",
    "TreeKeys",
    "TxnResult",
    "guard",
    "prefix_range",
]
