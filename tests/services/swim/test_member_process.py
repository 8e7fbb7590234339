"""``pavane swim …`` as processes: what a user starts, asks, stops and kills."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pavane.runtime.process import EXIT_FAILED, Process
from pavane.swim.config import Config, id_of_name
from pavane.swim.control import ControlError, ControlServer, ask, running, socket_of
from pavane.swim.member import SwimMember
from pavane_cli.commands.swim_member import _tell
from pavane_cli.failures import ExitCode
from tests.services.processes import STARTED_S
from tests.services.swim.lone import place
from tests.services.swim.standalone import Members
from tests.services.swim.test_member import FAST, KEYS, key_file


@pytest.fixture
async def members(tmp_path: Path) -> AsyncIterator[Members]:
    members = Members(tmp_path)
    yield members
    await members.stop_all()


async def test_members_are_asked_leave_come_back_crash_and_are_started_again(members: Members, tmp_path: Path) -> None:
    keys = ("--keys-file", str(key_file(tmp_path / "keys", KEYS[0])))
    for name in "abc":
        await members.up(name, *keys, "--data", str(tmp_path / name), "--meta", f"role={name}")
    await members.agree("a", "b", "c")

    code, output, _ = await members.call("members", "--name", "b", "-o", "name")
    assert (code, set(output.split())) == (0, {str(id_of_name(name)) for name in "abc"})
    described: dict[int, str] = {}
    async with asyncio.timeout(STARTED_S):
        while described != {id_of_name(name): f"role={name}" for name in "abc"}:
            code, output, _ = await members.call("members", "--name", "b", "-o", "json")
            described = {member["id"]: member["meta"] for member in json.loads(output)["members"]}
    code, output, _ = await members.call("ping", "c", "--name", "a")
    assert (code, output.endswith(" ms\n")) == (0, True)

    assert (await members.call("leave", "--name", "c"))[:2] == (0, "out\n")
    await members.agree("a", "b")
    code, _, errors = await members.call("members", "--name", "c")
    assert "has left it" in errors
    assert (await members.call("join", "--name", "c"))[:2] == (0, "member\n")
    await members.agree("a", "b", "c")

    assert await members.end("b", signal.SIGKILL) == -signal.SIGKILL
    await members.agree("a", "c")
    code, _, errors = await members.call("ping", "b", "--name", "a")
    assert (code, "alive here" in errors) == (ExitCode.ERROR, True)
    await members.up("b", *keys, "--data", str(tmp_path / "b"))
    await members.agree("a", "b", "c")

    assert await members.end("c", signal.SIGTERM) == 0
    await members.agree("a", "b")
    assert running_names(members) == ["a", "b"]


def running_names(members: Members) -> list[str]:
    return sorted(path.stem for path in (members.folder / "pavane-swim").glob("*.sock"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--bind", "somewhere:1"), "numeric address"),
        (("--bind", "127.0.0.1:0", "--seed", "nowhere"), "host:port"),
        (("--bind", "127.0.0.1:0", "--advertise", "10.0.0.1:0"), "port 0"),
        (("--bind", "127.0.0.1:0", "--name", "a/b"), "no name"),
        (("--bind", "127.0.0.1:0", "--capacity", "2"), "capacity 2"),
        (("--bind", "127.0.0.1:0", "--view", "half"), "partial"),
    ],
)
async def test_wrong_options_are_told_in_one_line(members: Members, options: tuple[str, ...], message: str) -> None:
    code, _, errors = await members.call("member", "--name", "a", *options)
    assert code == ExitCode.USAGE
    assert message in errors
    assert "Traceback" not in errors


async def test_a_member_that_cannot_start_says_why(members: Members, tmp_path: Path) -> None:
    await members.up("a")
    bind = members.addresses["a"]
    for options, message in (
        (("--name", "b", "--bind", bind), "in use"),
        (("--name", "a", "--bind", "127.0.0.1:0"), "another name"),
        (("--name", "b", "--bind", "127.0.0.1:0", "--keys-file", str(tmp_path / "none")), "none"),
    ):
        code, _, errors = await members.call("member", *options)
        assert (code, message in errors, "Traceback" in errors) == (1, True, False)
    assert await members.sees("a") == {id_of_name("a"): "alive"}


async def test_a_member_whose_id_is_another_processs_ends_and_says_where_that_is() -> None:
    process = Process()
    async with SwimMember(Config(id=7, profile=FAST), ("127.0.0.1", 0)) as member:
        watching = asyncio.create_task(_tell(process, member))
        await asyncio.sleep(0)
        member._core.call(lambda _: member._core.core._parts.rename(place(9)))
        end = await process.ended()
        assert (end.code, str(place(9)) in end.reason) == (EXIT_FAILED, True)
        watching.cancel()


# --- the control socket in one process ---------------------------------------------------------------------------


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[SwimMember, Path]]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = socket_of("one")
    async with SwimMember(Config(profile=FAST), ("127.0.0.1", 0)) as member:
        server = ControlServer(member, path)
        await server.start()
        yield member, path
        await server.stop()


async def first(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    async for answer in ask(path, request):
        return answer
    raise AssertionError("no answer")


@pytest.mark.parametrize(
    "request_", [{"do": "dance"}, {}, [], 7, {"do": "ping"}, {"do": "ping", "id": "x"}, {"do": "join", "seeds": ["x"]}]
)
async def test_a_wrong_request_is_refused_and_harms_nobody(served: tuple[SwimMember, Path], request_: Any) -> None:
    with pytest.raises(ControlError):
        await first(served[1], request_)
    assert (await first(served[1], {"do": "members"}))["own"] == "dialing"


@pytest.mark.parametrize("said", [b"", b'{"do": "mem'])
async def test_whoever_asks_nothing_or_half_of_it_makes_room(
    served: tuple[SwimMember, Path], monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr("pavane.swim.control.REQUEST_S", 0.2)
    reader, writer = await asyncio.open_unix_connection(served[1])
    writer.write(said)
    async with asyncio.timeout(STARTED_S):
        assert await reader.read() == b""
    writer.close()
    monkeypatch.setattr("pavane.swim.control.REQUEST_S", STARTED_S)
    assert (await first(served[1], {"do": "members"}))["own"] == "dialing"


async def test_only_their_owner_may_use_sockets(served: tuple[SwimMember, Path], tmp_path: Path) -> None:
    assert running() == ["one"]
    assert served[1].stat().st_mode & 0o077 == 0
    (tmp_path / "pavane-swim").chmod(0o755)
    with pytest.raises(ControlError, match="open to others"):
        socket_of("one")


async def test_watchers_who_go_make_room(served: tuple[SwimMember, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pavane.swim.control.CONNECTIONS_MAX", 2)
    member, path = served
    watchers = [ask(path, {"do": "watch"}) for _ in range(2)]
    for watcher in watchers:
        assert (await anext(watcher))["own"] == "dialing"
    with pytest.raises(ControlError, match="busy"):
        await first(path, {"do": "members"})
    async with SwimMember(member._config, ("127.0.0.1", 0), [str(member.bound)]) as other:
        joined = {event["event"]: event async for event in _until(watchers[0], "joined")}["joined"]
        assert joined["member"]["id"] == other.info.id
    for watcher in watchers:
        await watcher.aclose()
    async with asyncio.timeout(STARTED_S):
        while True:
            with suppress(ControlError):
                assert (await first(path, {"do": "members"}))["id"] == member.info.id
                break


async def _until(watcher: AsyncIterator[dict[str, Any]], kind: str) -> AsyncIterator[dict[str, Any]]:
    async for event in watcher:
        yield event
        if event["event"] == kind:
            return
