"""``pavane raft kv`` and ``tree``: by name through a control plane, and by --peers (docs/specs/raft.md 17)."""

import asyncio
import json
import os
import signal
import sys
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from pavane.raft.client import RaftClient
from pavane.raft.errors import RaftError
from pavane.raft.machines import limits
from pavane.raft.machines.commands import LeaseRevoke
from pavane.raft.machines.history import Scope, Watch
from pavane.raft.wire.entry import EntryType
from pavane_cli import plane as command_plane
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.main import app
from pavane_cli.plane import RestClient
from pavane_cli.rest_keys import RestSession
from tests.api.plane import IDENT, peer, plane, served


@dataclass(frozen=True)
class Cli:
    """The command line against one cluster, and a client of its own to look."""

    reach: tuple[str, ...]
    client: RaftClient
    folder: Path

    async def fails(self, code: ExitCode, *arguments: str) -> str:
        """Return the words of a command that fails."""
        result = await self._invoke(arguments, None)
        assert isinstance(result.exception, UserError), result.output
        assert result.exception.code is code, result.exception
        return str(result.exception)

    async def raw(self, *arguments: str, given: bytes | None = None) -> bytes:
        result = await self._invoke(arguments, given)
        assert result.exit_code == 0, result.exception
        return bytes(result.stdout_bytes)

    async def __call__(self, *arguments: str, given: bytes | None = None) -> str:
        return (await self.raw(*arguments, given=given)).decode().rstrip("\n")

    def command(self, *arguments: str) -> list[str]:
        """The whole command line: the cluster where NAME belongs."""
        group = 2 if arguments[0] in {"kv", "tree"} else 1
        return ["raft", *arguments[:group], *self.reach, *arguments[group:]]

    async def _invoke(self, arguments: tuple[str, ...], given: bytes | None) -> Any:
        return await asyncio.to_thread(CliRunner().invoke, app, self.command(*arguments), input=given)


@pytest.fixture(params=[("name", "Tree"), ("peers", "Tree")])
async def cli(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cli]:
    """Against a cluster with a state machine, one way or the other."""
    way, machine = request.param
    async with AsyncExitStack() as stack:
        if way == "name":
            api = await stack.enter_async_context(plane(tmp_path))
            server = await stack.enter_async_context(served(api, tmp_path, machine))
            reach: tuple[str, ...] = ("q", "--api", str(api.http.base_url), "--token", api.token)
        else:
            server = await stack.enter_async_context(peer(tmp_path / "peer", machine))
            monkeypatch.setenv("PAVANE_TEST_SECRET", IDENT)
            reach = ("--peers", server.bound, "--secret-env", "PAVANE_TEST_SECRET")
        client = await stack.enter_async_context(RaftClient([server.bound], IDENT.encode()))
        yield Cli(reach, client, tmp_path)


async def test_keys_are_written_read_listed_and_deleted(cli: Cli) -> None:
    revision = int(await cli("kv", "put", "app/colour", "red"))
    assert await cli("kv", "get", "app/colour") == "red"
    shown = json.loads(await cli("kv", "get", "app/colour", "-o", "json"))
    assert (shown["modRevision"], shown["version"]) == (revision, 1)
    assert await cli.raw("kv", "put", "raw", given=b"\x00\xff\n")
    assert await cli.raw("kv", "get", "raw") == b"\x00\xff\n"
    assert (await cli("kv", "list", "app/", "-o", "name")).splitlines() == ["app/colour"]
    assert await cli("kv", "get", "app/colour", "--stale") == "red"
    assert (await cli("kv", "list", "app/", "--stale", "-o", "name")).splitlines() == ["app/colour"]
    assert await cli("kv", "get", "app/colour", "--stale", "--min-revision", "1") == "red"
    behind = await cli.fails(ExitCode.TIME_OUT, "kv", "get", "app/colour", "--stale", "--min-revision", "99")
    assert "no peer that answers has applied revision 99 yet" in behind
    assert (await cli("kv", "list")).split() == ["KEY", "VALUE", "app/colour", "red", "raw", r"\x00\xff\n"]
    assert str(revision) in await cli("kv", "list", "app/", "-o", "wide")
    assert await cli("kv", "del", "raw") == "1"
    assert await cli("kv", "del", "a", "--prefix") == "1"
    assert await cli("kv", "del", "raw") == "0"
    assert await cli.fails(ExitCode.NOT_FOUND, "kv", "get", "app/colour") == "there is no key app/colour"


async def test_a_list_goes_on_beyond_one_reply(cli: Cli) -> None:
    for number in range(3):
        await cli.client.kv.put(b"large/%d" % number, bytes(600_000))
    await cli.client.kv.put(b"large/3", b"")
    assert (await cli("kv", "list", "-o", "name")).splitlines() == [f"large/{number}" for number in range(4)]


async def test_a_put_may_have_conditions(cli: Cli) -> None:
    first = await cli("kv", "put", "k", "1", "--if-absent")
    assert f"is at revision {first}" in await cli.fails(ExitCode.REFUSED, "kv", "put", "k", "2", "--if-absent")
    assert int(await cli("kv", "put", "k", "2", "--if-revision", first)) > int(first)
    assert "is at" in await cli.fails(ExitCode.REFUSED, "kv", "put", "k", "3", "--if-revision", first)
    assert "not there" in await cli.fails(ExitCode.REFUSED, "kv", "put", "other", "3", "--if-revision", first)
    assert "expired" in await cli.fails(ExitCode.REFUSED, "kv", "put", "k", "4", "--reqid", "00" * 12)
    for wrong in ("z" * 24, "00"):
        assert "hexadecimal" in await cli.fails(ExitCode.USAGE, "kv", "put", "k", "4", "--reqid", wrong)


async def test_a_repeated_request_takes_effect_once(cli: Cli) -> None:
    reqid = cli.client.new_reqid().hex()
    first = await cli("kv", "txn", "--then", "create /w_", "--then", "put k 1", "--reqid", reqid)
    assert await cli("kv", "txn", "--then", "create /w_", "--then", "put k 1", "--reqid", reqid) == first


async def test_a_transaction_takes_one_branch(cli: Cli) -> None:
    conditions = ("--if", "create(k) = 0", "--if", "value(k) < z", "--if", "dataversion(/n) = -1")
    then = ("--then", "put k 'a b'", "--then", "create /n", "--then", "list k")
    branches = (*then, "--else", "get k", "--else", "node /n")
    first = (await cli("kv", "txn", *conditions, *branches)).splitlines()
    assert first[0].startswith("then at revision ")
    assert first[1:] == ["put  1", "create  /n", "range  k=a b"]
    second = (await cli("kv", "txn", *conditions, *branches)).splitlines()
    assert second[0].startswith("else at revision ")
    assert second[1:] == ["range  k=a b", "get    version 0"]
    said = await cli.fails(ExitCode.REFUSED, "kv", "txn", "--if", "version(k) > 5", "--then", "del k")
    assert said == "a condition does not hold"
    told = json.loads(await cli("kv", "txn", "--if", "!alive(77)", "--then", "delprefix k", "-o", "json"))
    assert (told["succeeded"], told["results"]) == (True, [{"deleted": 1}])
    for wrong, words in (
        (("--if", "size(k) = 1"), "TARGET"),
        (("--if", "mod(k) = x"), "not a number"),
        (("--if", f"mod(k) = {1 << 64}"), "not a number"),
        (("--then", "jump k"), "known: put"),
        (("--then", "put k"), "2 to 3 words"),
        (("--then", "put k 'v"), "quotation"),
        (("--then", "put k v lease"), "lease"),
    ):
        assert words in await cli.fails(ExitCode.USAGE, "kv", "txn", *wrong)


async def test_a_watch_prints_changes_in_order(cli: Cli) -> None:
    first = await cli.client.kv.put(b"a/1", b"one")
    await cli.client.kv.put(b"b", b"elsewhere")
    await cli.client.kv.delete(b"a/1")
    lines = (await cli("kv", "watch", "a/", "--from", "1", "--count", "2")).splitlines()
    assert [line.split()[1:] for line in lines] == [["Put", "a/1", "one"], ["Delete", "a/1"]]
    assert lines[0].split()[0] == str(first)
    for form in ("json", "yaml"):
        [line] = (await cli("kv", "watch", "a/", "--from", "1", "--count", "1", "-o", form)).splitlines()
        assert json.loads(line)["revision"] == first


async def test_a_program_that_watches_is_told_when_changes_were_forgotten(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HISTORY_EVENTS_MAX", 1)
    await cli.client.kv.put(b"gone", b"")
    await cli.client.kv.delete(b"gone")
    revision = await cli.client.kv.put(b"k", b"v")
    watcher = await running(cli, "kv", "watch", "--from", "1", "--count", "1", "-o", "json")
    assert watcher.stdout is not None
    reset = json.loads(await watcher.stdout.readline())
    assert (reset["revision"], reset["reset"]) == (revision, True)
    assert [(item["key"], item["modRevision"]) for item in reset["items"]] == [(b64encode(b"k").decode(), revision)]
    await cli.client.kv.put(b"k", b"w")
    assert json.loads(await watcher.stdout.readline())["events"][0]["kind"] == "Put"
    assert await watcher.wait() == ExitCode.DONE


async def test_the_tree_is_written_read_and_watched(cli: Cli) -> None:
    assert await cli("tree", "create", "/w") == "/w"
    assert await cli("tree", "create", "/w/s_", "data", "--sequential") == "/w/s_0000000000"
    assert await cli("tree", "ls") == "w"
    assert await cli("tree", "ls", "--stale") == "w"
    assert await cli("tree", "get", "/w/s_0000000000", "--stale") == "data"
    assert await cli("tree", "ls", "/w") == "s_0000000000"
    assert await cli("tree", "get", "/w/s_0000000000") == "data"
    assert await cli("tree", "set", "/w", "new", "--version", "0") == "1"
    assert "read it again" in await cli.fails(ExitCode.REFUSED, "tree", "set", "/w", "newer", "--version", "0")
    assert json.loads(await cli("tree", "get", "/w", "-o", "json"))["children"] == 1
    assert "children" in await cli.fails(ExitCode.REFUSED, "tree", "rm", "/w")
    assert await cli("tree", "rm", "/w/s_0000000000") == ""
    assert "already" in await cli.fails(ExitCode.REFUSED, "tree", "create", "/w")
    assert "create it first" in await cli.fails(ExitCode.NOT_FOUND, "tree", "create", "/no/parent")
    assert await cli.fails(ExitCode.NOT_FOUND, "tree", "get", "/x") == "there is no node /x"
    assert "/x" in await cli.fails(ExitCode.NOT_FOUND, "tree", "ls", "/x")
    lines = (await cli("tree", "watch", "/w", "--from", "1", "--count", "2", "--scope", "Node")).splitlines()
    assert [line.split()[1:] for line in lines] == [["Created", "/w"], ["Data", "/w", "new"]]


async def test_an_export_is_imported_elsewhere(cli: Cli) -> None:
    kv, tree = cli.client.kv, cli.client.tree
    await kv.put(b"\xff", b"\x00")
    await tree.create(b"/w", b"d")
    for _ in range(3):
        await tree.create(b"/w/s_", sequential=True)
    async with kv.lease(30) as lease:
        await kv.put(b"held", b"", lease=lease.id)
        await tree.create(b"/e", lease=lease.id)
        exported = await cli.raw("kv", "export")
    await kv.delete(b"\xff")
    for name in (await tree.children(b"/w"))[0][:2]:
        await tree.remove(b"/w/" + name)
    await kv.put(b"other", b"stays")
    await cli.raw("kv", "import", given=exported)
    assert [item.key for item in (await kv.list(b"", b"\x00")).items] == [b"other", b"\xff"]
    assert (await kv.get(b"\xff")) is not None
    assert (await tree.children(b"/w"))[0] == [b"s_0000000000", b"s_0000000001", b"s_0000000002"]
    assert await tree.children(b"/") == ([b"w"], 3)
    # Not a number that was given before.
    assert await tree.create(b"/w/s_", sequential=True) > b"/w/s_0000000002"
    assert "line 2" in await cli.fails(ExitCode.USAGE, "kv", "import", str(written(cli.folder, exported)))
    file = cli.folder / "exported"
    file.write_text("what an earlier export wrote")
    await cli("kv", "export", str(file))
    assert file.read_bytes() == await cli.raw("kv", "export")
    assert await cli("kv", "export", "/dev/null") == ""


def written(folder: Path, exported: bytes) -> Path:
    file = folder / "damaged"
    file.write_bytes(exported.splitlines(keepends=True)[0] + b'{"key": "%"}\n')
    return file


async def test_counters_of_imported_nodes_go_on_behind_the_greatest(cli: Cli) -> None:
    lines = [json.dumps({"path": b64encode(path).decode(), "data": ""}) for path in (b"/", b"/s_0000000300")]
    await cli.raw("kv", "import", given="\n".join(lines).encode())
    assert await cli.client.tree.create(b"/s_", sequential=True) == b"/s_0000000301"
    assert (await cli.client.tree.children(b"/"))[0] == [b"s_0000000300", b"s_0000000301"]


async def test_a_name_that_ends_in_a_large_number_creates_no_nodes_without_end(cli: Cli) -> None:
    lines = [json.dumps({"path": b64encode(path).decode(), "data": ""}) for path in (b"/", b"/at-1700000000", b"/b")]
    file = cli.folder / "exported"
    file.write_text("\n".join(lines))
    said = await cli.fails(ExitCode.REFUSED, "kv", "import", str(file))
    assert "all 3 keys and nodes are written" in said
    assert (await cli.client.tree.children(b"/"))[0] == [b"at-1700000000", b"b"]
    assert await cli.client.tree.create(b"/s_", sequential=True) < b"/s_0000000010"


async def test_a_lock_is_held_while_a_program_runs(cli: Cli) -> None:
    code = "import os, sys; print(os.environ['PAVANE_TOKEN'], flush=True); sys.stdin.read(); sys.exit(7)"
    holder = await running(cli, "kv", "lock", "l", "--ttl", "5", "--", sys.executable, "-c", code)
    assert holder.stdout is not None
    token = int(await holder.stdout.readline())
    item = await cli.client.kv.get(b"l")
    assert item is not None
    assert (item.create_revision, item.lease > 0) == (token, True)
    second = await running(cli, "kv", "lock", "l", "--ttl", "5")
    assert holder.stdin is not None
    holder.stdin.close()
    assert await holder.wait() == 7
    assert second.stdout is not None
    assert int(await second.stdout.readline()) > token
    second.send_signal(signal.SIGTERM)
    assert await second.wait() == ExitCode.DONE
    assert await cli.client.kv.get(b"l") is None


async def test_a_program_that_a_signal_ended_has_the_exit_code_of_a_shell(cli: Cli) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    holder = await running(cli, "kv", "lock", "l", "--", sys.executable, "-c", code)
    assert await holder.wait() == 128 + signal.SIGKILL
    assert await cli.client.kv.get(b"l") is None


async def test_a_program_whose_lock_was_lost_is_told_and_never_counts_as_done(cli: Cli) -> None:
    code = (
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print(flush=True); signal.pause()"
    )
    holder = await running(cli, "kv", "lock", "l", "--ttl", "1", "--", sys.executable, "-c", code)
    assert holder.stdout is not None
    assert holder.stderr is not None
    await holder.stdout.readline()
    item = await cli.client.kv.get(b"l")
    assert item is not None
    await cli.client.kv.command(LeaseRevoke(item.lease))
    assert await holder.wait() == ExitCode.ERROR
    assert f"lease {item.lease} is lost" in (await holder.stderr.read()).decode()


async def test_a_lost_lease_is_told(cli: Cli) -> None:
    holder = await running(cli, "kv", "lease", "--ttl", "1", "--holder", "me")
    assert holder.stdout is not None
    assert holder.stderr is not None
    lease = int(await holder.stdout.readline())
    await cli.client.kv.command(LeaseRevoke(lease))
    assert await holder.wait() == ExitCode.ERROR
    assert f"lease {lease} is lost" in (await holder.stderr.read()).decode()


async def test_a_lease_that_is_lost_while_waiting_for_a_lock_ends_the_wait(cli: Cli) -> None:
    async with cli.client.kv.lease(30.0) as other:
        token = await cli.client.kv.lock(b"l", other.id)
        waiting = await running(cli, "kv", "lock", "l", "--ttl", "1", "--holder", "me")
        assert waiting.stderr is not None
        commands: list[int] = []
        while len(commands) < 2:  # its lease, and its first look at the lock
            async with aclosing(cli.client.entries(token)) as entries:
                commands = [entry.index async for entry in entries if entry.type == EntryType.STATE]
        await cli.client.kv.command(LeaseRevoke(commands[0]))
        assert await waiting.wait() == ExitCode.ERROR
        assert "is lost" in (await waiting.stderr.read()).decode()


async def running(cli: Cli, *arguments: str) -> asyncio.subprocess.Process:
    """Start a command as a process of its own."""
    command = [sys.executable, "-m", "pavane_cli.main", *cli.command(*arguments)]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(os.environ))


async def test_the_log_of_a_cluster_with_keys_takes_no_entries(cli: Cli) -> None:
    assert "pavane raft kv put" in await cli.fails(ExitCode.REFUSED, "append", "hello")
    await cli("kv", "put", "k", "v")
    types = [entry["type"] for entry in json.loads(await cli("read", "-o", "json"))]
    assert types.count("State") == 1
    await cli("kv", "txn", "--if", "mod(k) > 1", "--then", "create /n d", "--then", "list a", "--else", "del k")
    async with cli.client.kv.lease(5.0, b"me") as lease:
        pass
    told = [line.split(None, 4)[4:] for line in (await cli("read", "-o", "wide")).splitlines()]
    assert told[-4:] == [
        ["put k=v"],
        ["if mod_revision(k) > 1 then create /n=d, range a b else delete k"],
        ["grant 5000 ms me"],
        [f"revoke {lease.id}"],
    ]
    assert "leader 1" in await cli("info")


@pytest.mark.parametrize("cli", [("name", "Broadcast"), ("peers", "Broadcast")], indirect=True)
async def test_a_plain_log_takes_entries_and_no_keys(cli: Cli) -> None:
    index = await cli("append", "hello")
    assert await cli("read") == "hello"
    assert f"commit {index}" in await cli("info")
    for command in (("kv", "get", "k"), ("kv", "put", "k", "v"), ("kv", "watch"), ("tree", "ls"), ("kv", "lease")):
        await cli.fails(ExitCode.REFUSED, *command)
    earlier = cli.folder / "keys.jsonl"
    earlier.write_text("what an earlier export wrote")
    await cli.fails(ExitCode.REFUSED, "kv", "export", str(earlier))
    assert earlier.read_text() == "what an earlier export wrote"
    assert list(cli.folder.glob("keys*")) == [earlier]


@pytest.mark.parametrize("cli", [("peers", "Tree")], indirect=True)
async def test_the_peers_need_a_secret(cli: Cli) -> None:
    peers = Cli(cli.reach[:2], cli.client, cli.folder)
    assert "--secret-file" in await peers.fails(ExitCode.USAGE, "kv", "list")
    wrong = Cli(("--peers", "localhost", *cli.reach[2:]), cli.client, cli.folder)
    assert "tcp://host:port" in await wrong.fails(ExitCode.USAGE, "kv", "list")


@pytest.mark.parametrize("status", [0, 503])
async def test_a_control_plane_that_is_away_for_a_moment_costs_no_lease(status: int) -> None:
    def away(request: httpx2.Request) -> httpx2.Response:
        if status:
            return httpx2.Response(status, json={"detail": "does not answer: refused"})
        raise httpx2.ConnectError("refused", request=request)

    async with httpx2.AsyncClient(base_url="http://plane", transport=httpx2.MockTransport(away)) as http:
        session = RestSession(RestClient(http), "/x")
        with pytest.raises(RaftError, match="does not answer: refused"):  # after which a held lease is renewed again
            await session.keep_alive(7, 1.0)
        with pytest.raises(RaftError, match="does not answer: refused"):  # and who ends it goes on: it ends by itself
            await session.command(LeaseRevoke(7), None, 1.0)


PROGRESS = 'event: progress\ndata: {"revision": 7, "events": []}\n\n'
PUT = {"kind": "Put", "key": "YQ==", "data": "MQ==", "version": 1, "mark": 0}
CHANGE = f"event: changes\ndata: {json.dumps({'revision': 8, 'events': [PUT]})}\n\n"


class Breaking(httpx2.AsyncByteStream):
    """Says something, and then nothing any more."""

    def __init__(self, text: str, error: httpx2.TransportError) -> None:
        self.text, self.error = text, error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.text.encode()
        raise self.error


@pytest.mark.parametrize(
    "error", [httpx2.ReadTimeout("too late"), httpx2.ReadError("reset"), httpx2.ConnectError("refused")]
)
async def test_a_watch_goes_on_behind_what_it_was_told_when_its_stream_is_lost(
    error: httpx2.TransportError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_plane, "AGAIN_S", 0.0)
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.params["from"])
        match len(asked):
            case 1:
                return httpx2.Response(200, stream=Breaking(PROGRESS, error))
            case 2:
                raise error
            case 3:
                return httpx2.Response(503, json={"detail": "nobody leads"})
            case _:
                return httpx2.Response(200, stream=Breaking(CHANGE, error))

    found = []
    async with httpx2.AsyncClient(base_url="http://plane", transport=httpx2.MockTransport(answer)) as http:
        changes = RestSession(RestClient(http), "/x").changes(Watch(Scope.KEYS, b"a", b"b", 5))
        async with aclosing(changes):
            async for change in changes:
                found.append((change.revision, len(change.events)))
                if change.events:
                    break
    assert (found, asked) == ([(7, 0), (8, 1)], ["5", "8", "8", "8"])


async def test_why_the_control_plane_ended_a_watch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_plane, "LOST_S", 0.0)
    told = f"{PROGRESS}event: error\ndata: nobody leads\n\n"
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, text=told))
    async with httpx2.AsyncClient(base_url="http://plane", transport=transport) as http:
        with pytest.raises(UserError, match="nobody leads; go on with --from 8"):
            async for _ in RestSession(RestClient(http), "/x").changes(Watch(Scope.KEYS, b"a", b"b")):
                pass
