"""SWIM: weakly consistent group membership over datagrams (docs/specs/swim.md)."""
