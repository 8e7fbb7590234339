"""AMBROSIA: exactly-once RPC for applications that survive failures."""
