"""Tables and pure parts of a peer: storage commands, roles, configurations, quorums, dedup, log."""
