"""The member as a machine without I/O: datagrams and time in, datagrams and events out (docs/specs/swim.md 2.4)."""
