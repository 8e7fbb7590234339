"""ØMQ Raft: consensus, byte-compatible with its original (docs/specs/raft.md)."""
