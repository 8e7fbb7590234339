"""Bytes ↔ frozen values, with total decoders (docs/specs/swim.md 3)."""
