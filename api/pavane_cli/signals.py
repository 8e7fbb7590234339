"""Ctrl-C and SIGTERM, for commands that work until they are told to stop."""

import asyncio
import signal


def stop_signal() -> asyncio.Event:
    """Return what Ctrl-C and SIGTERM set from now on."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    return stopped
