"""Settings of the whole test suite."""

import asyncio
import os
import signal

import hypothesis
import pytest

# Python 3.11 makes an event loop for whoever asks for "the current one" in a synchronous test, and nobody closes it.
asyncio.set_event_loop(None)

# A shell starts what runs in its background with SIGINT ignored, and processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How fast a machine makes examples says nothing about what is tested with them. Where a change is judged (CI is set),
# they are the same each time, so that it is refused for what it changes; everywhere else each run looks at new ones.
hypothesis.settings.register_profile(
    "any machine",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer what golden files need."""
    parser.addoption("--rewrite", action="store_true", help="write golden files anew instead of comparing with them")
