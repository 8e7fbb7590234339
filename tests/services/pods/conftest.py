from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.pods.raft_pods import Pods


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    made = Pods(tmp_path)
    yield made
    made.end()
