"""A state machine of an installed package (docs/specs/raft.md 12.1, 12.10): that of ``examples/raft-machine``."""

import os
import re
import signal
import sys
import tomllib
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from pavane.raft.backup import back_up
from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.core import snapshots
from pavane.raft.machine import ENTRY_POINTS, Broadcast, StateMachine, UnknownMachine, machine_of
from pavane.raft.offline.restoring import RESTORE_STEP, restore
from pavane.raft.server import RaftServer
from tests.services.eventually import eventually
from tests.services.processes import ended
from tests.services.raft.peers import free_urls
from tests.services.raft.test_client_cluster import IDENT
from tests.services.raft.test_peer_process import Peers

EXAMPLE = Path(__file__).parents[3] / "examples" / "raft-machine"


def offer(folder: Path, package: str, points: dict[str, str]) -> None:
    """Leave in ``folder`` what an installation of a package leaves there: its metadata with the entry points."""
    metadata = folder / f"{package}-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    lines = (f"{name} = {value}\n" for name, value in points.items())
    (metadata / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{''.join(lines)}")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example as ``pip install`` would leave it, for this process and those that it starts."""
    folder = tmp_path / "site"
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    offer(folder, project["name"].replace("-", "_"), project["entry-points"][ENTRY_POINTS])
    (folder / "counters.py").write_bytes((EXAMPLE / "counters.py").read_bytes())
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(folder), *filter(None, [os.environ.get("PYTHONPATH")]))))
    monkeypatch.delitem(sys.modules, "counters", raising=False)
    return folder


async def count(client: RaftClient, name: bytes) -> int:
    [answer] = await client.dispatch(b"count", name, idempotent=True)
    return int(bytes(answer))


def program_of_the_page(url: str) -> str:
    page = (EXAMPLE.parents[1] / "docs" / "raft.md").read_text("utf-8")
    _, program = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return str(program).replace("tcp://127.0.0.1:8047", url).replace('b"example"', repr(IDENT))


async def command(peers: Peers, *arguments: str) -> tuple[int | None, str, str]:
    return await ended(await peers.start("tool", *arguments))


async def test_a_package_brings_its_machine(tmp_path: Path, installed: Path) -> None:
    [url] = free_urls(1)
    peers = Peers(tmp_path)
    folder = str(tmp_path / "1")
    try:
        process = await peers.up("1", f"1={url}", "--machine", "Counters")
        async with RaftClient([url], IDENT) as client:
            for number in range(5):
                await client.update(b"even" if number % 2 == 0 else b"odd")
            assert (await count(client, b"even"), await count(client, b"odd")) == (3, 2)
            assert (await client.status(url))["machine"] == "Counters"
            found: dict[str, Any] = {"RaftClient": RaftClient}
            exec(f"async def main():\n{indent(program_of_the_page(url), ' ')}\n return value", found)  # noqa: S102
            assert await found["main"]() == b"1"
            process.send_signal(signal.SIGTERM)
            assert (await ended(process))[0] == 0
            told = [await command(peers, "raft", *words) for words in (("verify", folder), ("compact", folder))]
            told.append(await command(peers, "raft", "verify", folder))
            assert [code for code, _, _ in told] == [0, 0, 0]
            digests = {next(line for line in told[at][1].splitlines() if "digest" in line) for at in (0, 2)}
            assert len(digests) == 1  # of the state by the log, and by the snapshot in its place
            await peers.up("1", f"1={url}", "--machine", "Counters")
            assert await count(client, b"even") == 3
    finally:
        await peers.stop_all()


async def test_its_state_is_saved_by_itself_and_others_begin_from_that(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PAUSE_S", 0.0)
    urls = free_urls(2)
    machines = [machine_of("Counters") for _ in urls]
    config = Config("1", IDENT, url=urls[0], peers=(("1", urls[0]),), snapshot_entries=20, log_retention=0)
    follower = replace(config, id="2", url=urls[1], peers=(), seeds=(urls[0],))
    async with AsyncExitStack() as stack:

        async def started(config: Config, machine: StateMachine) -> RaftServer:
            server = RaftServer(config, data=tmp_path / config.id, bind=config.url, machine=machine)
            await server.start()
            stack.push_async_callback(server.stop)
            return server

        member = await started(config, machines[0])
        client = await stack.enter_async_context(RaftClient(urls[:1], IDENT))
        written = 0
        while member.status().first == 1:
            written += 1
            await client.update(b"name")
        learner = await started(follower, machines[1])
        await eventually(lambda: learner.status().applied == member.status().applied)
        assert learner.status().first > 1
        assert machines[0].digest() == machines[1].digest() != machine_of("Counters").digest()
        assert await count(client, b"name") == written


async def test_a_copy_needs_no_package(tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [url] = free_urls(1)
    config = Config("1", IDENT, url=url, peers=(("1", url),), machine="Counters")
    server = RaftServer(config, data=tmp_path / "1", bind=url)
    await server.start()
    try:
        async with RaftClient([url], IDENT) as client:
            last = await client.update(b"name")
        with monkeypatch.context() as without:
            without.setattr(sys, "path", [entry for entry in sys.path if entry != str(installed)])
            with pytest.raises(UnknownMachine):
                machine_of("Counters")
            made = await back_up(tmp_path / "copy", [url], IDENT)
    finally:
        await server.stop()
    assert (made.index, made.machine) == (last, "Counters")
    members = (("1", url),)
    restore(tmp_path / "copy", tmp_path / "new", "1", members)  # the package is here again, and saves its state
    server = RaftServer(replace(config, peers=members), data=tmp_path / "new", bind=url)
    await server.start()
    try:
        async with RaftClient([url], IDENT) as client:
            assert await count(client, b"name") == 1
            assert await client.update(b"name") > last + RESTORE_STEP
            assert await count(client, b"name") == 2
    finally:
        await server.stop()
    code, text, errors = await command(Peers(tmp_path), "raft", "verify", str(tmp_path / "copy"))
    assert (code, "digest" in text, errors) == (0, True, "")


def test_ours_cannot_be_replaced(installed: Path) -> None:
    offer(installed, "imitator", {"Broadcast": "counters:Counters"})
    assert type(machine_of("Broadcast")) is Broadcast


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ({}, "'Own' is none of Broadcast, KeyValue, Tree, and no package"),
        ({"Own": "nowhere_at_all:Own"}, "nowhere_at_all:Own, cannot be made: ModuleNotFoundError"),
        ({"Own": "counters:Counters"}, "counters:Counters makes no state machine with the name 'Own'"),
        ({"Own": "builtins:dict"}, "builtins:dict makes no state machine"),
    ],
)
def test_what_is_wrong_with_an_offer_is_told(installed: Path, points: dict[str, str], said: str) -> None:
    offer(installed, "own", points)
    with pytest.raises(UnknownMachine, match=said):
        machine_of("Own")


def test_two_packages_with_the_same_machine_are_refused(installed: Path) -> None:
    offer(installed, "imitator", {"Counters": "imitator:Counters"})
    with pytest.raises(UnknownMachine, match="offered more than once, by counters:Counters, imitator:Counters"):
        machine_of("Counters")


async def test_an_unknown_machine_is_a_mistake_of_use(tmp_path: Path) -> None:
    [url] = free_urls(1)
    peers = Peers(tmp_path)
    code, _, errors = await ended(await peers.run("1", f"1={url}", "--machine", "Tape"))
    assert code == 2
    assert "'Tape' is none of Broadcast, KeyValue, Tree" in errors
    assert not (tmp_path / "1").exists()
