"""``pavane raft members|transfer|config`` with three peers (docs/specs/raft.md 17)."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pavane.raft.client import RaftClient
from pavane.raft.client.urls import split_url
from pavane.raft.config import Config
from pavane.raft.server import RaftServer
from pavane.runtime.names import HOSTS_FILE_VARIABLE
from pavane_api.kinds import RAFT_CLUSTERS
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.main import app
from pavane_operator.kinds.raft import names
from pavane_operator.kube.resources import SECRETS
from tests.api.plane import IDENT, created, plane, served
from tests.services.ports import free_ports
from tests.services.raft.peers import free_urls


@pytest.fixture
def servers() -> dict[str, RaftServer]:
    """Filled by ``urls``."""
    return {}


@pytest.fixture
async def urls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: dict[str, RaftServer]
) -> AsyncIterator[dict[str, str]]:
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
            servers[name] = server
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


async def test_in_an_outage_the_members_say_who_answers(urls: dict[str, str], servers: dict[str, RaftServer]) -> None:
    """Two of three take connections and say nothing, as stopped processes do."""
    with ExitStack() as silent:
        for name in ("2", "3"):
            await servers[name].stop()
            silent.enter_context(socket.create_server(split_url(urls[name])))
        async with asyncio.timeout(20):  # a search for the leader alone takes 30 s
            left = json.loads(await pavane("members", *by_peers(urls), "-o", "json"))
            shown = await pavane("members", *by_peers(urls))
    roles = {each["id"]: each["role"] for each in left["items"]}
    assert roles.pop("1") is not None
    assert roles == {"2": None, "3": None}
    assert shown.count("no answer") == 2


async def test_a_name_without_an_address_is_named_at_once(urls: dict[str, str]) -> None:
    async with asyncio.timeout(20):
        with pytest.raises(UserError, match=r"--peers: nosuch\.invalid has no address") as failed:
            await pavane("info", "--peers", "tcp://nosuch.invalid:8047", "--secret-env", "PAVANE_TEST_SECRET")
    assert failed.value.code is ExitCode.TIME_OUT
    assert "leader" in await pavane(
        "info", "--peers", f"tcp://nosuch.invalid:8047,{urls['1']}", "--secret-env", "PAVANE_TEST_SECRET"
    )


async def test_a_cluster_of_which_no_pod_is_ready_is_asked_at_its_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two members is left: the status names no endpoint, nobody leads."""
    pods = [names.pod("q", 1, ordinal) for ordinal in (0, 1)]
    [port] = free_ports(1)
    monkeypatch.setattr(names, "RAFT_PORT", port)
    peers = tuple((pod, names.peer_url("q", "default", 1, ordinal)) for ordinal, pod in enumerate(pods))
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 {split_url(peers[0][1])[0]}\n")
    monkeypatch.setenv(HOSTS_FILE_VARIABLE, str(hosts))
    config = Config(id=pods[0], ident=IDENT.encode(), url=peers[0][1], peers=peers, machine="KeyValue")
    server = RaftServer(config, data=tmp_path / "data", bind=f"tcp://127.0.0.1:{port}")
    async with plane(tmp_path) as api:
        await created(api, stateMachine="KeyValue", tls={"mode": "Disabled"})
        await api.kube.create(SECRETS, {"metadata": {"name": "q-keys"}, "stringData": {"secret": IDENT}}, "default")
        reach = ("q", "--api", str(api.http.base_url), "--token", api.token)
        with pytest.raises(UserError, match="serves no clients yet"):
            await pavane("members", *reach)
        generation = {"number": 1, "role": "Active", "id": "1", "pods": 2, "podsReady": 0}
        status: dict[str, Any] = {"activeGeneration": 1, "generations": [generation]}
        await api.kube.apply_status(RAFT_CLUSTERS, {"metadata": {"name": "q"}, "status": status}, "default")
        await server.start()
        try:
            found = json.loads(await pavane("members", *reach, "-o", "json"))
            assert found["leader"] == ""
            answers = {each["id"]: each.get("role") is not None for each in found["items"]}
            assert answers == {pods[0]: True, pods[1]: False}
            with pytest.raises(UserError, match="there is no key k"):  # not: nobody serves
                await pavane("kv", "get", *reach, "k", "--stale")
        finally:
            await server.stop()
        reason = {
            "type": "Ready",
            "status": "False",
            "reason": "Suspended",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        status = {**status, "conditions": [reason]}
        await api.kube.apply_status(RAFT_CLUSTERS, {"metadata": {"name": "q"}, "status": status}, "default")
        for words in (("members", *reach), ("kv", "get", *reach, "k"), ("kv", "get", *reach, "k", "--stale")):
            with pytest.raises(UserError, match="q is suspended: start it with `pavane resume-resource") as refused:
                await pavane(*words)
            assert refused.value.code is ExitCode.REFUSED
