"""What the tests of the core start from."""

import pytest

from tests.services.swim.lone import Lone, alive


@pytest.fixture
def lone() -> Lone:
    """A member with the peers 2 to 6."""
    lone = Lone()
    lone.join()
    lone.admit(2, 3, 4, 5, 6)
    lone.wait(10, alive)
    lone.take()
    return lone
