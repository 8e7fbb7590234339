"""Certificates of a resource: what is issued when, the cryptography, and the Secrets (docs/specs/operator.md 4.1)."""
