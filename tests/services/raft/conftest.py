"""What the tests of this folder share."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Stop what a test has started."""
    async with AsyncExitStack() as stack:
        yield stack
