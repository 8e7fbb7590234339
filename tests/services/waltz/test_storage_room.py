"""A storage node says when its volume has no room for appends (docs/specs/waltz.md 12.3)."""

from pathlib import Path
from uuid import UUID

import pytest

from pavane.waltz.server import StorageNode

KEY = UUID(int=7)


@pytest.mark.parametrize(("reserve", "full"), [(0, False), (1 << 62, True)])
async def test_a_node_whose_reserve_is_used_up_is_full(tmp_path: Path, reserve: int, full: bool) -> None:
    node = StorageNode(tmp_path, KEY, 1, disk_reserve_bytes=reserve)
    assert not node.full
    await node.start("127.0.0.1", 0)
    try:
        assert node.full is full
    finally:
        await node.stop()
