"""An archive on an S3 server: what is below the start is read there; it is away for a while; it brings a log back."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pavane.waltz.aio.archive import Archive
from pavane.waltz.client import Waltz
from pavane.waltz.client.restoring import restore
from pavane.waltz.core import feed, storing
from pavane.waltz.server import archiving
from tests.requires import requires
from tests.services.eventually import eventually
from tests.services.ports import free_ports
from tests.services.waltz.running import ANSWER_S, running_log
from tests.services.waltz.test_archive import DATA, KEPT, archived, fill, read, start

KEYS = "archive", "known to the server and the log"


class S3:
    """A server with bucket ``logs``, whose objects are files."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "buckets" / "logs").mkdir(parents=True)

    def __call__(self, secret: str = KEYS[1]) -> Archive:
        keys = {"aws_access_key_id": KEYS[0], "aws_secret_access_key": secret, "aws_region": "us-east-1"}
        return Archive("s3://logs/years/ledger", {**keys, "aws_endpoint": f"http://127.0.0.1:{self.port}"})

    async def begin(self) -> None:
        self._launch()
        await eventually(self._answers, ANSWER_S)

    def _launch(self) -> None:
        (self._folder / "attributes").mkdir(exist_ok=True)
        where = [f"--port=127.0.0.1:{self.port}", "posix", f"--sidecar={self._folder / 'attributes'}"]
        command = [requires("versitygw"), f"--access={KEYS[0]}", f"--secret={KEYS[1]}", "--quiet", *where]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([*command, str(self._folder / "buckets")], stdout=log, stderr=log)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        return f":{self.port:04X} 00000000:0000 0A" in Path("/proc/net/tcp").read_text()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3]:
    server = S3(tmp_path / "s3")
    yield server
    server.end()


async def test_the_history_is_on_s3_also_after_that_was_away_and_brings_a_lost_log_back(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "LOOK_S", 0.05)
    monkeypatch.setattr(archiving, "STEP_S", 0.02)
    monkeypatch.setattr(feed, "TAILS_BYTES_MAX", 10_000)  # else what was dropped is still in memory
    await s3.begin()
    data: list[bytes] = []

    async def append(client: Waltz, until: Callable[[], object]) -> None:
        async with asyncio.timeout(ANSWER_S):
            while not until():
                data.append(b"%d" % len(data) + bytes(2000))
                await client.append(0, data[-1])

    async with running_log(tmp_path / "former", policy=KEPT, archive=s3) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await append(client, lambda: start(log) > 10)
            assert await read(client) == data
            assert (await client.get(0, 3)).data == data[3]
            fed = client.feed(0)
            assert [(await anext(fed)).data for _ in data] == data
            await fed.aclose()
            await eventually(lambda: archived(log).end == len(data), ANSWER_S)
            s3.end()
            there = len(data)
            await append(client, lambda: len(data) > there + 20 and archived(log).fault)
            assert archived(log).end == there
            assert start(log) <= there
            await s3.begin()
            await append(client, lambda: start(log) > there)
            assert await read(client) == data
            await eventually(lambda: archived(log).end == len(data) and not archived(log).fault, ANSWER_S)
    async with running_log(tmp_path / "new") as log, Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
        assert [one.end async for one in restore(client, s3(), {0: there})] == [there + 1]
        assert await read(client) == data[: there + 1]


async def test_keys_that_the_store_refuses_are_said_and_others_count_without_a_restart(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "STEP_S", 0.02)
    await s3.begin()
    keys = ["former"]
    async with running_log(tmp_path, policy=KEPT, archive=lambda: s3(keys[0])) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await fill(client, DATA[:3])
            await eventually(lambda: archived(log).fault, ANSWER_S)
            assert "403" in archived(log).fault or "SignatureDoesNotMatch" in archived(log).fault
            keys[0] = KEYS[1]
            await eventually(lambda: archived(log).end == 3, ANSWER_S)
            assert not archived(log).fault
