"""A storage node says when its volume has no room for appends (docs/specs/waltz.md 12.3)."""

from pathlib import Path
from uuid import UUID

import pytest

from pavane.waltz.server import StorageNode
from pavane.waltz.storage import Directory
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.fields import ReqId

KEY = UUID(int=7)


async def test_a_node_that_refuses_an_append_for_want_of_room_is_full_until_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends stop before the reserve is touched, so what is free never falls below it by them."""
    free = 1000 + 4096
    monkeypatch.setattr(Directory, "free_bytes", lambda _: free)
    node = StorageNode(tmp_path, KEY, 1, disk_reserve_bytes=1000)
    await node.start("127.0.0.1", 0)
    try:
        assert node.server is not None
        append = s.Append(s.Head(1, 0, 0), (s.Record.of(0, ReqId(1, 1, 0, 1), 0, bytes(5000)),), False)
        node.server.node.arrive(append.head)
        assert not node.full
        [answer] = node.server.node.execute([append])
        assert isinstance(answer, s.Failure)
        assert node.full
        free += 4096
        assert not node.full
        assert node.server.node.execute([append]) == [s.Success(append.head)]
        free = 1000
        assert node.full
    finally:
        await node.stop()


@pytest.mark.parametrize(("reserve", "full"), [(0, False), (1 << 62, True)])
async def test_a_node_whose_reserve_is_used_up_is_full(tmp_path: Path, reserve: int, full: bool) -> None:
    node = StorageNode(tmp_path, KEY, 1, disk_reserve_bytes=reserve)
    assert not node.full
    await node.start("127.0.0.1", 0)
    try:
        assert node.full is full
    finally:
        await node.stop()
