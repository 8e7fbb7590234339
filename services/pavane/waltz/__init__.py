"""Waltz: a write-ahead log with optimistic locks."""
