"""Tables and pure parts of a peer: stored state, roles, configurations, quorums, dedup, log (docs/specs/raft.md 5-10)."""
