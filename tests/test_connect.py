"""An application connects in one line: docs/connect.md as it stands, and what it says of failures."""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

import pavane
from pavane.application import Connection, EventType, LockLost, NotALock, finding
from pavane.application.finding import VARIABLE
from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.curve import CurveKeys, CurveServer
from pavane.raft.server import RaftServer
from tests.api.plane import Plane, plane, served
from tests.services.raft.peers import free_url

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "connect.md").read_text(encoding="utf-8")
IDENT = b"of the test"
WAIT_S = 60

pytestmark = pytest.mark.timeout(3 * WAIT_S)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def encrypted(tmp_path: Path, stack: AsyncExitStack) -> Connection:
    """A member of its own with CURVE, and the way to it."""
    public, secret = zmq.curve_keypair()
    _, server_secret = zmq.curve_keypair()
    clients = tmp_path / "clients"
    clients.mkdir()
    (clients / "client.pub").write_bytes(public + b"\n")
    curve, url = CurveServer(server_secret, clients), free_url()
    config = Config(id="1", ident=IDENT, url=url, peers=(("1", url),), machine="Tree")
    server = RaftServer(config, data=tmp_path / "1", bind=url, curve=curve)
    await server.start()
    stack.push_async_callback(server.stop)
    way = Connection("q", (url,), IDENT, CurveKeys(curve.public, public, secret))
    async with RaftClient([url], IDENT, curve=way.curve) as client:
        await client.kv.put(b"plain", b"value")  # it leads by now
    return way


async def run(program: str, api: Plane, folder: Path) -> list[str]:
    file = folder / "program.py"
    file.write_text(program)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(file),
        env={**os.environ, "KUBECONFIG": str(api.local.kubeconfig)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(process.communicate(), WAIT_S)
    assert process.returncode == 0, said.decode()
    return said.decode().splitlines()


async def test_the_page_works_as_it_stands(tmp_path: Path, stack: AsyncExitStack) -> None:
    api = await stack.enter_async_context(plane(tmp_path))
    await stack.enter_async_context(served(api, tmp_path, "Tree", "quickstart"))
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        promised = re.findall(r"print\(.*\)  # (.*)", program)
        assert await run(program, api, tmp_path) == promised
    # What `pavane connection` prints reaches the same cluster, and so does what a shell makes of it.
    pavane_ = shlex.quote(str(Path(sys.executable).with_name("pavane")))
    typed = (
        f'{pavane_} connection quickstart -o file && eval "$({pavane_} connection quickstart)" && printenv {VARIABLE}'
    )
    given = {**os.environ, "KUBECONFIG": str(api.local.kubeconfig)}
    process = await asyncio.create_subprocess_shell(typed, env=given, stdout=asyncio.subprocess.PIPE)
    printed, _ = await asyncio.wait_for(process.communicate(), WAIT_S)
    of_file, of_shell = printed.decode().splitlines()
    assert of_shell == of_file
    (curl,) = re.findall(r"^    (curl .*?)\n\n?$", PAGE + "\n", re.DOTALL | re.MULTILINE)
    given |= {"PAVANE_API_URL": str(api.http.base_url).rstrip("/"), "PAVANE_API_TOKEN": api.token, "NO_PROXY": "*"}
    process = await asyncio.create_subprocess_shell(curl + " --fail --silent", env=given)
    assert await asyncio.wait_for(process.wait(), WAIT_S) == 0
    found = Connection.parse(of_file, "what was printed")
    async with await pavane.connect(connection=found) as raft:
        assert await raft.get("app/colour") == b"red"  # what the line with curl wrote


async def test_a_connection_is_found_in_the_environment_and_in_a_mounted_secret(
    encrypted: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, encrypted.text())
    async with await pavane.connect("q") as raft:
        assert await raft.get("plain") == b"value"
    with pytest.raises(pavane.CannotConnect, match="Name: PAVANE_CONNECTION is a connection to q, not to other"):
        await pavane.connect("other")
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(finding, "MOUNTED", tmp_path / "mounted")
    (tmp_path / "mounted" / "q").mkdir(parents=True)
    (tmp_path / "mounted" / "q" / "connection.json").write_text(encrypted.text())
    async with await pavane.connect("q") as raft:
        assert await raft.get("plain") == b"value"


async def test_locks_fence_and_wrong_uses_are_named(encrypted: Connection) -> None:
    async with await pavane.connect(connection=encrypted) as raft:
        async with raft.lock("job", value="me") as lock:
            assert await raft.put("done", "1", fenced_by=lock) > lock.token
            assert not lock.lost.is_set()
        with pytest.raises(LockLost, match="job is not held"):
            await raft.put("done", "2", fenced_by=lock)
        assert await raft.get("done") == b"1"
        async with raft.lock("job") as later:
            assert later.token > lock.token
        with pytest.raises(NotALock, match="plain is a key with a value, not a lock"):
            async with raft.lock("plain"):
                pass
        for wrong, says in (
            (lambda: raft.put("n", 42), "a value is str or bytes, not int"),  # type: ignore[arg-type]
            (lambda: raft.get(None), "a key is str or bytes, not NoneType"),  # type: ignore[arg-type]
            (lambda: raft.put("n", "1", fenced_by="job"), "a lock that is held, not str"),  # type: ignore[arg-type]
            (lambda: raft.counter("n").add("1"), "a counter adds an int, not str"),  # type: ignore[arg-type]
            (lambda: pavane.connect(b"q"), "the name of a cluster is a str, not bytes"),  # type: ignore[arg-type]
        ):
            with pytest.raises(TypeError, match=says):
                await wrong()
        counter = raft.counter("n")
        await asyncio.gather(*(counter.add() for _ in range(10)))
        assert await counter.value() == 10


async def test_a_watch_tells_what_happened_to_whom(encrypted: Connection) -> None:
    async with await pavane.connect(connection=encrypted) as raft:
        first = await raft.put("a/x", "1")
        await raft.put("b", "not seen")
        await raft.delete("a/x")
        events = []
        async with aclosing(raft.watch("a/", prefix=True, from_revision=first)) as watch:
            async for event in watch:
                events.append((event.type, event.key, event.value))
                if len(events) == 2:
                    break
        assert events == [(EventType.PUT, "a/x", b"1"), (EventType.DELETE, "a/x", None)]


async def test_who_cannot_connect_is_told_why_after_two_seconds(
    encrypted: Connection, tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, absent = free_url(), free_url()
    config = Config(id="1", ident=IDENT, url=alone, peers=(("1", alone), ("2", absent)), machine="Tree")
    server = RaftServer(config, data=tmp_path / "without-quorum", bind=alone)
    await server.start()
    stack.push_async_callback(server.stop)
    changes: dict[str, dict[str, Any]] = {
        "Keys: ": {"curve": None},
        "Secret: ": {"secret": b"another"},
        "Address: ": {"urls": (absent,)},
        "Quorum: ": {"urls": (alone,), "curve": None},
    }
    for says, change in changes.items():
        with pytest.raises(pavane.CannotConnect, match=f"^{says}.* for 2 s"):
            await pavane.connect(connection=replace(encrypted, **change))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(pavane.CannotConnect, match="Name: nothing here knows a cluster quickstart"):
        await pavane.connect("quickstart")


@pytest.mark.parametrize("text", ["clusters: [", "- a list", "current-context: here\ncontexts: 7\n"])
async def test_what_is_no_kubeconfig_is_named(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(config))
    for connect in (pavane.connect, pavane.connect_log):
        with pytest.raises(pavane.CannotConnect, match=f"{config} is no kubeconfig"):
            await connect("quickstart")


def test_without_asyncio_a_failure_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(pavane.CannotConnect):
        pavane.connect_sync("quickstart")
