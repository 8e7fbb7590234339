"""``pavane raft members|transfer|config`` with three peers (docs/specs/raft.md 17)."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.server import RaftServer
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.main import app
from tests.api.plane import IDENT, plane, served
from tests.services.raft.test_client_cluster import free_urls


@pytest.fixture
async def urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, str]]:
    """Members 1 to 3 by their urls."""
    urls = dict(zip("123", free_urls(3), strict=True))
    monkeypatch.setenv("PAVANE_TEST_SECRET", IDENT)
    async with AsyncExitStack() as stack:
        for name, url in urls.items():
            ident = IDENT.encode()
            config = Config(
                id=name, ident=ident, url=url, peers=tuple(urls.items()), election_min=300, election_max=600
            )
            server = RaftServer(config, data=tmp_path / name, bind=url)
            stack.push_async_callback(server.stop)
            await server.start()
        async with RaftClient(list(urls.values()), IDENT.encode()) as client:
            await client.update(b"first")
        yield urls


async def pavane(*arguments: str) -> str:
    result = await asyncio.to_thread(CliRunner().invoke, app, ["raft", *arguments])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.exception
    return result.stdout.strip()


def by_peers(urls: dict[str, str]) -> tuple[str, ...]:
    return ("--peers", ",".join(urls.values()), "--secret-env", "PAVANE_TEST_SECRET")


async def test_members_are_shown_moved_and_changed(urls: dict[str, str]) -> None:
    found = json.loads(await pavane("members", *by_peers(urls), "-o", "json"))
    roles = {each["id"]: each["role"] for each in found["items"]}
    assert sorted(roles.values()) == ["Follower", "Follower", "Leader"]
    assert roles[found["leader"]] == "Leader"
    assert {each["kind"] for each in found["items"] if each["id"] != found["leader"]} == {"ours"}

    other = next(name for name in urls if name != found["leader"])
    assert await pavane("transfer", *by_peers(urls), other) == other
    shown = await pavane("members", *by_peers(urls))
    assert shown.startswith(f"leader {other}\n")

    third = next(name for name in urls if name != other)
    await pavane("config", "remove", *by_peers(urls), third)
    left = json.loads(await pavane("members", *by_peers(urls), "-o", "json"))["items"]
    assert third not in {each["id"] for each in left}
    await pavane("config", "add", *by_peers(urls), f"{third}={urls[third]}")
    back = json.loads(await pavane("members", *by_peers(urls), "-o", "json"))["items"]
    assert sorted(each["id"] for each in back) == ["1", "2", "3"]
    log = await pavane("read", *by_peers(urls), "-o", "wide")
    assert f"members {' '.join(name for name in urls if name != third)}, before 1 2 3" in log
    with pytest.raises(UserError, match="no such member"):
        await pavane("config", "remove", *by_peers(urls), "9")
    with pytest.raises(UserError, match="ID=URL"):
        await pavane("config", "set", *by_peers(urls), "9")


async def test_members_of_a_resource_are_shown_and_not_changed(tmp_path: Path) -> None:
    async with plane(tmp_path) as api, served(api, tmp_path, "KeyValue"):
        reach = ("q", "--api", str(api.http.base_url), "--token", api.token)
        shown = await pavane("members", *reach)
        assert "leader 1" in shown
        assert "Leader" in shown
        with pytest.raises(UserError, match="pavane scale raft/q") as refused:
            await pavane("config", "remove", *reach, "1")
        assert refused.value.code is ExitCode.REFUSED
        with pytest.raises(UserError):  # there is nobody to hand over to
            await pavane("transfer", *reach)


async def test_a_watch_shows_the_members_again_when_another_leads(urls: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pavane_cli.main", "raft", "watch", *by_peers(urls)]
    watching = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert watching.stdout is not None
    try:
        first = (await watching.stdout.readline()).decode().split()
        other = next(name for name in urls if name != first[1])
        await pavane("transfer", *by_peers(urls), other)
        while (await watching.stdout.readline()).decode().split() != ["leader", other]:
            pass
    finally:
        watching.terminate()
        await watching.communicate()
