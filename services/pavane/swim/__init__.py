"""SWIM: weakly consistent group membership over datagrams (docs/specs/swim.md).

``SwimMember`` (``pavane.swim.member``) is the way in for a program; ``pavane.swim.core`` is the machine without I/O.
"""
