"""Calls and queries of immortals over HTTP."""
