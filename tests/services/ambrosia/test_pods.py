"""Two pods of one generation on one volume: one leads and is ready, the other one follows (operator.md 1.7)."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pavane.ambrosia.server import Options, Server
from pavane.pods.coordinator_instance import NOT_YET, Instance
from pavane.pods.coordinator_settings import RECEIVE_PORT, SEND_PORT, CoordinatorConfig
from tests.services.ambrosia.bank import BANK, WAIT_S
from tests.services.eventually import eventually

NET = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 200 + 20}"
"""Each pod has an address of its own, and each run of this test."""


@contextlib.asynccontextmanager
async def pod(folder: Path, number: int) -> AsyncIterator[Instance]:
    """A coordinator, and its application as a process; the generation may write."""
    host = f"{NET}.{number}"
    found = Instance(CoordinatorConfig(instance="alice", log="alice-1"), folder, host, "default", 1)
    running = asyncio.create_task(found.run())
    await found.allow_writes()
    command = [sys.executable, "-m", "pavane_cli.main", "ambrosia", "run", "bank:Account", "--name", "alice"]
    address = f"{host}:{RECEIVE_PORT},{SEND_PORT}"
    application = await asyncio.create_subprocess_exec(
        *command,
        "--log",
        str(folder / host),
        cwd=BANK,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PAVANE_AMBROSIA": address, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    try:
        yield found
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        with contextlib.suppress(ProcessLookupError):
            application.kill()
        await application.wait()


@pytest.mark.timeout(240)
async def test_the_pod_that_waits_leads_when_the_other_one_ends(tmp_path: Path) -> None:
    (tmp_path / "alice-1").mkdir()
    async with contextlib.AsyncExitStack() as first, two_pods(tmp_path, first) as (one, other):
        assert other.unready() == "another pod leads; this one follows its log"
        assert (one.report().leads, other.report().leads) == (True, False)
        server = other.server
        assert server is not None
        await eventually(lambda: server._runner is not None and server._runner.core.handled is not None, WAIT_S)
        assert one.server is not None
        written = one.server.status()["nextSeq"]
        await first.aclose()
        await eventually(lambda: other.report().leads, WAIT_S)
        assert other.unready() is None
        assert other.server is not None
        assert other.server.status()["nextSeq"] >= written


async def test_a_pod_that_begins_to_take_over_stays_ready_and_one_that_only_starts_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pavane.pods.coordinator_instance.TAKEOVER_S", 3600.0)
    (tmp_path / "alice-1" / "alice_0").mkdir(parents=True)
    config = CoordinatorConfig(instance="alice", log="alice-1")
    follower, starter = (Instance(config, tmp_path, f"{NET}.9", "default", generation) for generation in (2, 3))
    follower.following.set()
    follower.server = Server(Options("alice", 1, 2, 3, f"{tmp_path}/alice-1/"))
    follower.server.stage = "ReadOnly"
    await follower.allow_writes()
    await starter.allow_writes()
    assert (follower.unready(), starter.unready()) == (None, NOT_YET)
    monkeypatch.setattr("pavane.pods.coordinator_instance.TAKEOVER_S", 0.0)
    assert follower.unready() == "another pod leads; this one follows its log"


@contextlib.asynccontextmanager
async def two_pods(folder: Path, first: contextlib.AsyncExitStack) -> AsyncIterator[tuple[Instance, Instance]]:
    """Two pods, of which the one on ``first`` leads and the other one follows."""
    one = await first.enter_async_context(pod(folder, 1))
    await eventually(lambda: one.unready() is None, WAIT_S)
    async with pod(folder, 2) as other:
        await eventually(lambda: "follows its log" in (other.unready() or ""), WAIT_S)
        yield one, other


async def test_a_full_volume_is_told_by_who_writes_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "alice-1" / "alice_0").mkdir(parents=True)
    instance = Instance(CoordinatorConfig(instance="alice", log="alice-1"), tmp_path, f"{NET}.9", "default", 1)
    await instance.allow_writes()
    assert (await instance.fence(), instance.report().blockers) == (1, ())
    for name, value in (("ROOM_BYTES", 1 << 62), ("ROOM_SHARE", 1)):  # no volume is that empty
        monkeypatch.setattr(f"pavane.pods.coordinator_instance.{name}", value)
    await instance.fence()
    [told] = instance.report().blockers
    assert (told.reason, "the volume is full: " in told.text) == ("VolumeFull", True)
    instance.writing.clear()
    assert instance.report().blockers == (), "who follows needs no room"
