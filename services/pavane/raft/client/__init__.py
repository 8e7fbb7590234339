"""Client library of ØMQ Raft (docs/specs/raft.md 11)."""

from pavane.raft.client.calls import Entry
from pavane.raft.client.client import ClientConfig, RaftClient

__all__ = ["ClientConfig", "Entry", "RaftClient"]
