"""Settings of the whole test suite."""

import asyncio

# Python 3.11 makes an event loop for whoever asks for "the current one" in a synchronous test, and nobody closes it.
asyncio.set_event_loop(None)
