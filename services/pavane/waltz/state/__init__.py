"""Rules of the log without I/O: locks, recovery, assignment of partitions (docs/specs/waltz.md 5, 8.3, 13.4)."""
