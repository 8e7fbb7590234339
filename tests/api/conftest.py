"""What several tests of the control plane begin with."""

from collections.abc import AsyncIterator

import pytest

from tests.api.plane import LEDGER
from tests.services.waltz.scripted import Cluster, running


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """The scripted servers of a WaltzCluster ``ledger``."""
    async with running(host=LEDGER) as cluster:
        yield cluster
