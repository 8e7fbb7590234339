"""One Spark session and one log for all tests of the format `waltz`, which `make test-spark` runs, without xdist."""

import importlib.util
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.running import PARTITIONS, log_process

# Without the extra `spark` there is nothing to test.
collect_ignore_glob = [] if importlib.util.find_spec("pyspark") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(300))
            # Spark's own Python leaves sockets to the garbage collector, and uses what its Python deprecates.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with log_process(tmp_path_factory.mktemp("log")) as address:
        yield address


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pavane.spark.session import builder  # noqa: PLC0415 - only where the extra is installed

    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    session = builder("tests").config("spark.sql.warehouse.dir", warehouse).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(180)


@pytest.fixture(scope="session")
def _numbers() -> Iterator[int]:
    return iter(range(PARTITIONS))


@pytest.fixture
def partitions(_numbers: Iterator[int]) -> Callable[[int], list[int]]:
    """Gives partitions that no other test has."""
    return lambda count: list(itertools.islice(_numbers, count))


@pytest.fixture
def partition(partitions: Callable[[int], list[int]]) -> int:
    return partitions(1)[0]
