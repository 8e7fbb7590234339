"""Fixtures of the log's tests."""

from collections.abc import Iterator

import pytest

from tests.services.zookeeper import ZooKeeper


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """A server for all tests of a module, which each have a part of it."""
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.stop()
