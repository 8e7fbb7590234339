"""Bytes ↔ values of the AMBROSIA protocol, with total decoders (docs/specs/ambrosia.md 2-4, 11, 12).

Whatever a decoder refuses is ``pavane.wire.RemoteProtocolError`` with a ``pavane.ambrosia.errors.Reason``.
"""
