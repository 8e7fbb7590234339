"""The durable side of a Raft peer (docs/specs/raft.md 13): records on a ``pavane.wal`` log, recovery, reads."""

from pavane.raft.storage.identity import Identity
from pavane.raft.storage.records import ForeignStore, RecordType, StoreError
from pavane.raft.storage.store import RaftStorage, StoreLocked

__all__ = ["ForeignStore", "Identity", "RaftStorage", "RecordType", "StoreError", "StoreLocked"]
