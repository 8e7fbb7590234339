"""``pavane raft subscribe`` (docs/specs/raft.md 17)."""

import asyncio
import base64
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.core import snapshots
from pavane.raft.machine import Broadcast
from pavane.raft.server import RaftServer
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.main import app
from tests.api.plane import IDENT, plane, served
from tests.services.raft.peers import free_urls


class Kept(Broadcast):
    def compact(self, entries: Iterable[tuple[int, memoryview]], previous: bytes | None) -> bytes:
        return b"what was"


@asynccontextmanager
async def serving(folder: Path, *, published: bool = True, **settings: int) -> AsyncIterator[RaftServer]:
    url, publish = free_urls(2)
    publish = publish if published else ""
    config = Config(id="1", ident=IDENT.encode(), url=url, peers=(("1", url),), broadcast_url=publish, **settings)  # type: ignore[arg-type]
    server = RaftServer(config, data=folder, bind=url, publish=publish, machine=Kept())
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAVANE_TEST_SECRET", IDENT)


def by_peers(server: RaftServer) -> tuple[str, ...]:
    return ("--peers", server.bound, "--secret-env", "PAVANE_TEST_SECRET")


async def subscribe(*arguments: str) -> tuple[list[str], str]:
    """Return the lines and what was said beside them."""
    result = await asyncio.to_thread(CliRunner().invoke, app, ["raft", "subscribe", *arguments])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.exception
    return result.stdout.splitlines(), result.stderr


@asynccontextmanager
async def subscribing(*arguments: str) -> AsyncIterator[asyncio.StreamReader]:
    """Run the command in a process of its own, which Ctrl-C ends without a word."""
    command = [sys.executable, "-m", "pavane_cli.main", "raft", "subscribe", *arguments]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.send_signal(signal.SIGINT)
        _, said = await process.communicate()
    assert (process.returncode, said) == (ExitCode.INTERRUPTED, b"")


async def test_entries_are_printed_as_they_are_applied_until_ctrl_c(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, RaftClient([server.bound], IDENT.encode()) as client:
        await client.update(b"one")
        async with subscribing(*by_peers(server)) as out:
            assert await out.readline() == b"one\n"
            await client.update(b"two")
            assert await out.readline() == b"two\n"


async def test_a_part_of_the_log_for_programs(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, RaftClient([server.bound], IDENT.encode()) as client:
        indices = [await client.update(b"%d" % number) for number in range(5)]
        lines, _ = await subscribe(*by_peers(server), "--after", str(indices[1]), "--count", "2", "-o", "json")
        entries = [json.loads(line) for line in lines]
        assert [(each["index"], each["type"]) for each in entries] == [(indices[2], "State"), (indices[3], "State")]
        assert base64.b64decode(entries[0]["data"]) == b"2"


async def test_a_snapshot_is_told_in_place_of_entries_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PAUSE_S", 0.0)
    async with serving(tmp_path, snapshot_entries=20, log_retention=0) as server:
        async with RaftClient([server.bound], IDENT.encode()) as client:
            while server.status().first == 1:
                await client.update(b"data")
        [line], _ = await subscribe(*by_peers(server), "--count", "1", "-o", "json")
        found = json.loads(line)
        assert (found["type"], base64.b64decode(found["data"])) == ("Snapshot", b"what was")
        lines, said = await subscribe(*by_peers(server), "--count", "1")
        assert lines == []
        assert f"entries up to {found['index']} are gone" in said


async def test_peers_that_publish_nothing_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    async with serving(tmp_path, published=False) as server:
        with pytest.raises(UserError, match="--pub") as refused:
            await subscribe(*by_peers(server))
        assert refused.value.code is ExitCode.REFUSED


async def test_by_name_the_control_plane_is_asked_again_for_new_entries(tmp_path: Path) -> None:
    async with (
        plane(tmp_path) as api,
        served(api, tmp_path, "Broadcast") as server,
        RaftClient([server.bound], IDENT.encode()) as client,
    ):
        await client.update(b"one")
        async with subscribing("q", "--api", str(api.http.base_url), "--token", api.token) as out:
            assert await out.readline() == b"one\n"
            await client.update(b"two")
            assert await out.readline() == b"two\n"
