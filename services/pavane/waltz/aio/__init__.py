"""Sockets, tasks and clocks around the cores."""
