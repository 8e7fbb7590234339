"""Durable segment logs: checksummed records, group commit, recovery (docs/specs/raft.md 13)."""
