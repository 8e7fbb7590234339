"""Tables and pure parts of a peer: what must be stored, roles, configurations, quorums, dedup, log (docs/specs/raft.md 5-10)."""
