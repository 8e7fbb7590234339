"""The peer as a machine without I/O: bytes and time in, storage commands, messages and events out.

``Core`` is the machine (docs/specs/raft.md 5.2); ``outputs`` names what crosses its border.
"""
