"""The example of docs/waltz.md, on pods as processes."""

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pavane.compute.wire.common import Epoch
from tests.services.pods.raft_pods import Pods
from tests.services.pods.waltz_pods import WaltzPods

PAGE = Path(__file__).parents[3] / "docs" / "waltz.md"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[WaltzPods]:
    (tmp_path / "raft").mkdir()
    raft = Pods(tmp_path / "raft")
    found = WaltzPods(raft, tmp_path)
    yield found
    found.end()
    raft.end()


@pytest.mark.timeout(240)  # six processes start, and the machine may be busy
async def test_the_example_prints_what_the_page_says(cluster: WaltzPods, tmp_path: Path) -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    program, sync = [text for language, text in blocks if language == "python"]
    (printed,) = [text for language, text in blocks if language == "text"]
    await cluster.begin()
    server = cluster.server(1)
    await cluster.lead_up([server], Epoch(1, 1), {"bootstrap": "tree"})
    # As in a pod: what is mounted is the Secret alone, and names are resolved.
    mounted = tmp_path / "root" / "var" / "run" / "secrets" / "pavane.dev" / "ledger"
    mounted.mkdir(parents=True)
    (mounted / "servers").write_text(f"{server.address}:55180\n")
    for text, promised in ((program, printed), (sync, "b'20'\n")):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", text),
            env={**os.environ, "PAVANE_ROOT": str(tmp_path / "root")},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert output.decode() == promised
