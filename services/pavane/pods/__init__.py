"""Composition roots: one module per pod role, nothing but wiring."""
