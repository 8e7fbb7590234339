"""Settings of the whole test suite."""

import asyncio
import signal

import pytest

# Python 3.11 makes an event loop for whoever asks for "the current one" in a synchronous test, and nobody closes it.
asyncio.set_event_loop(None)

# A shell starts what runs in its background with SIGINT ignored, and processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer what golden files need."""
    parser.addoption("--rewrite", action="store_true", help="write golden files anew instead of comparing with them")
