"""All of it is computing, so how long it takes says nothing but how busy the machine is."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
TIMEOUT_S = 300


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test here that names no time of its own a long one."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
