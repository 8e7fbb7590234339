"""A member's local control socket: one JSON request per connection, JSON lines as its answer.

``pavane swim members|watch|ping|join|leave|keys`` speak to it. Who may open the socket's file may use it.
"""

import asyncio
import contextlib
import json
import os
import re
import socket
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from pavane.parts import documents
from pavane.swim.core.outputs import Event, Happened, Member
from pavane.swim.errors import SwimError
from pavane.swim.member import SwimMember
from pavane.swim.wire.values import UNSPECIFIED

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
SUFFIX = ".sock"
PATH_BYTES_MAX = 107  # what sockaddr_un holds
REQUEST_BYTES_MAX = 8192  # 32 seeds with long names
LINE_BYTES_MAX = 1 << 26  # an answer with the largest table, 65,535 members, and some of them with metadata
DEAD_TOLD_MAX = 100  # of those who died last; there may be four times as many as live members
REQUEST_S = 10.0  # for a request, which is one line and written at once
CONNECTIONS_MAX = 32  # people and scripts on this machine
_RUNTIME_VARIABLE = "XDG_RUNTIME_DIR"

Json = dict[str, Any]


class ControlError(SwimError):
    """No member answers on a control socket, or it refused; the message says what to do."""


def folder() -> Path:
    """Return where the sockets of this user's members are, made if it is missing; raises ``ControlError``."""
    runtime = os.environ.get(_RUNTIME_VARIABLE)
    path = Path(runtime) / "pavane-swim" if runtime else Path(tempfile.gettempdir()) / f"pavane-swim-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner, mode = path.lstat().st_uid, path.lstat().st_mode
    except OSError as error:
        raise ControlError(f"{path} cannot be used: {error}; name a socket by --socket") from error
    if owner != os.getuid() or mode & 0o077:
        raise ControlError(f"{path} is open to others than you; remove it, or name a socket by --socket")
    return path


def socket_of(name: str) -> Path:
    """Return the socket of this user's member ``name``; raises ``ControlError``."""
    if not NAME.fullmatch(name):
        raise ControlError(f"{name!r} is no name: use letters, digits, '.', '_' and '-', at most 63")
    return folder() / f"{name}{SUFFIX}"


def running() -> list[str]:
    """Return the names of this user's members that answer, sorted."""
    return sorted(path.name.removesuffix(SUFFIX) for path in folder().glob(f"*{SUFFIX}") if _listens(path))


# --- the member's side -------------------------------------------------------------------------------------------


class ControlServer:
    """Answers on ``path`` for ``member``, between ``start`` and ``stop``."""

    def __init__(self, member: SwimMember, path: Path) -> None:
        self._member = member
        self._path = path
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[Any]] = set()
        self._answers: Mapping[str, Callable[[Json], Awaitable[Json]]] = {
            "members": self._members,
            "ping": self._ping,
            "join": self._join,
            "leave": self._leave,
            "keys": self._keys,
        }

    async def start(self) -> None:
        """Take the socket; raises ``OSError``, and ``ControlError`` if a member is using it."""
        if len(os.fsencode(self._path)) > PATH_BYTES_MAX:
            raise ControlError(f"{self._path} is longer than the {PATH_BYTES_MAX} bytes of a socket's path")
        if _listens(self._path):
            raise ControlError(f"a member listens on {self._path} already; give this one another name")
        self._path.unlink(missing_ok=True)
        before = os.umask(0o077)
        try:
            self._server = await asyncio.start_unix_server(self._serve, self._path, limit=REQUEST_BYTES_MAX)
        finally:
            os.umask(before)

    async def stop(self) -> None:
        """Give the socket up and end what is being answered."""
        if self._server is None:
            return
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        busy = len(self._serving) >= CONNECTIONS_MAX
        if not busy:
            self._serving.add(task)

        def cancel(_: object) -> None:
            task.cancel()

        gone: asyncio.Task[bytes] | None = None
        try:
            async with asyncio.timeout(REQUEST_S):
                request = await reader.readline()
            gone = asyncio.create_task(reader.read(1))
            gone.add_done_callback(cancel)
            async for line in self._busy() if busy else self._lines(request):
                writer.write(json.dumps(line).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, TimeoutError, ValueError, asyncio.CancelledError):
            pass  # the asker went away, sent an endless line or none, or the member ends
        finally:
            if gone is not None:
                gone.remove_done_callback(cancel)
                gone.cancel()
            self._serving.discard(task)
            writer.close()

    async def _busy(self) -> AsyncGenerator[Json, None]:
        yield {"error": f"the member is busy with {CONNECTIONS_MAX} others; end a `pavane swim watch`"}

    async def _lines(self, line: bytes) -> AsyncGenerator[Json, None]:
        try:
            request = documents.parse(line)
            what = request.get("do")
            if what == "watch":
                async with contextlib.aclosing(self._watch()) as events:
                    async for event in events:
                        yield event
            elif what in self._answers:
                yield await self._answers[what](request)
            else:
                yield {"error": f"a member cannot {what!r}; it can: watch, {', '.join(self._answers)}"}
        except SwimError as error:
            yield {"error": str(error)}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            yield {"error": f"no request: {error!r}"}

    async def _watch(self) -> AsyncGenerator[Json, None]:
        events = self._member.events()  # from before the list on, so that nothing is missed between
        yield members_json(self._member)
        async for event in events:
            yield event_json(event)

    async def _members(self, _: Json) -> Json:
        return members_json(self._member)

    async def _ping(self, request: Json) -> Json:
        return {"rtt_s": await self._member.ping(int(request["id"]))}

    async def _join(self, request: Json) -> Json:
        await self._member.join([str(seed) for seed in request.get("seeds", [])])
        await self._member.joined()
        return {"own": str(self._member.own)}

    async def _leave(self, _: Json) -> Json:
        await self._member.leave()
        return {"own": str(self._member.own)}

    async def _keys(self, _: Json) -> Json:
        return {"key_ids": [key.hex() for key in self._member.key_ids]}


def members_json(member: SwimMember) -> Json:
    """Return what a member says of itself and of who is there."""
    digest = member.digest
    return {
        "own": str(member.own),
        "id": member.info.id,
        "health": member.health,
        "dead": member.dead,
        "key_ids": [key.hex() for key in member.key_ids],
        "digest": None if digest is None else digest.xor.hex(),
        "members": [member_json(one) for one in member.members()],
        "dead_members": [member_json(one) for one in member.dead_members(DEAD_TOLD_MAX)],
    }


def member_json(member: Member) -> Json:
    """Return what is told of a member."""
    address = str(member.address) if member.address != UNSPECIFIED else None
    return {
        "id": member.id,
        "gen": member.gen,
        "address": address,
        "state": member.state.name.lower(),
        "stage": member.stage.name.lower(),
        "rollout": member.rollout,
        "meta": None if member.meta is None else _text(member.meta),
    }


def event_json(event: Event) -> Json:
    """Return what is told of an event; what it has not is left out."""
    told: Json = {"event": str(event.kind)}
    if event.member is not None:
        told["member"] = member_json(event.member)
    if event.address is not None:
        told["address"] = str(event.address)
    if event.text:
        told["text"] = event.text
    if event.kind is Happened.USER:
        told["data"] = _text(event.data)
    if event.rtt_s is not None:
        told["rtt_s"] = event.rtt_s
    return told


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
    return True


# --- the asker's side --------------------------------------------------------------------------------------------


async def ask(path: Path, request: Json) -> AsyncGenerator[Json, None]:
    """Send one request and yield the lines of its answer; raises ``ControlError``."""
    try:
        reader, writer = await asyncio.open_unix_connection(path, limit=LINE_BYTES_MAX)
    except OSError as error:
        raise ControlError(
            f"no member answers on {path} ({error.strerror or error}): `pavane swim member` starts one"
        ) from error
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        await writer.drain()
        answered = False
        while line := await reader.readline():
            answered = True
            answer: Json = json.loads(line)
            if "error" in answer:
                raise ControlError(answer["error"])
            yield answer
        if not answered:
            raise ControlError(f"the member on {path} ended before it answered")
    except (ConnectionError, ValueError) as error:
        raise ControlError(f"the member on {path} broke off: {error}") from error
    finally:
        writer.close()
