"""``pavane swim watch|ping|join|leave|keys``: ask a member that runs on this machine."""

import asyncio
import json
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from pavane.swim.config import id_of_name
from pavane.swim.control import ControlError, ask, running, socket_of
from pavane.swim.wire.values import U32_MAX
from pavane_cli.failures import ExitCode, UserError, as_user_error
from pavane_cli.output import Format, Output, note, say, structured

Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Name of the member; not needed if only one runs here.")
]
Socket = Annotated[
    Path | None, typer.Option("--socket", metavar="FILE", help="Its control socket, if started with --socket.")
]
TIMEOUT_S = 30.0
T = TypeVar("T")


def watch(name: Name = None, socket: Socket = None) -> None:
    """Print the members, then what happens, as JSON lines until Ctrl-C."""

    async def follow(path: Path) -> None:
        async with aclosing(ask(path, {"do": "watch"})) as answers:
            async for answer in answers:
                say(json.dumps(answer))

    _run(follow(path_of(name, socket)))


def ping(
    who: Annotated[str, typer.Argument(metavar="MEMBER", help="Its id or name.")],
    name: Name = None,
    socket: Socket = None,
) -> None:
    """Ping a member of the group once, without any effect on it. Exit code 5 if it does not answer."""
    number = int(who) if who.isascii() and who.isdecimal() and 0 < int(who) <= U32_MAX else id_of_name(who)
    path = path_of(name, socket)
    try:
        answer = ask_one(path, {"do": "ping", "id": number})
    except UserError as error:  # it knows the id alone, not what the user called it
        raise UserError(f"{who}: {error}", error.code) from error
    if answer["rtt_s"] is None:
        raise UserError(f"{who} does not answer", ExitCode.TIME_OUT)
    say(f"{answer['rtt_s'] * 1000:.2f} ms")


def join(
    seed: Annotated[list[str] | None, typer.Argument(metavar="[HOST:PORT]...", help="Members to contact.")] = None,
    name: Name = None,
    socket: Socket = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait until a member admits it.")] = TIMEOUT_S,
) -> None:
    """Join a group: with further seeds, or again after `pavane swim leave`."""
    answer = ask_one(path_of(name, socket), {"do": "join", "seeds": seed or []}, timeout)
    say(answer["own"])


def leave(name: Name = None, socket: Socket = None) -> None:
    """Leave the group. The process keeps running, and `pavane swim join` makes it join again."""
    say(ask_one(path_of(name, socket), {"do": "leave"})["own"])


def keys(name: Name = None, socket: Socket = None, output: Output = Format.TABLE) -> None:
    """List the ids of the keys that the member has; the first protects what it sends.

    A rotation is three versions of the key file on every member: the new key last, the new key first, the old key gone.
    Go on when every member lists the version before.
    """
    answer = ask_one(path_of(name, socket), {"do": "keys"})
    if output.structured:
        structured(answer, output)
        return
    for number, key in enumerate(answer["key_ids"]):
        say(key if output is Format.NAME or number else f"{key}   in use")
    if not answer["key_ids"]:
        note("no keys: what this member sends is not protected")


def path_of(name: str | None, socket: Path | None) -> Path:
    """Return the control socket that the options mean; raises ``UserError``."""
    if socket is not None:
        return socket
    with as_user_error(ControlError):
        names = running()
        wanted = [name] if name is not None else names
        if len(wanted) == 1 and wanted[0] in names:
            return socket_of(wanted[0])
    if not names:
        text = "none of your members runs here; start one with `pavane swim member`, or pass its --socket"
    else:
        text = f"these members run here: {', '.join(names)}; say which by --name"
    raise UserError(text, ExitCode.NOT_FOUND)


def ask_one(path: Path, request: dict[str, Any], timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Return the first answer of a member to a request; raises ``UserError``."""

    async def first() -> dict[str, Any]:
        async with asyncio.timeout(timeout_s), aclosing(ask(path, request)) as answers:
            return await anext(answers)

    return _run(first())


def _run(asking: Coroutine[Any, Any, T]) -> T:
    try:
        with as_user_error(ControlError):
            return asyncio.run(asking)
    except TimeoutError:
        raise UserError(
            "the member did not get there in time; `pavane swim watch` shows why", ExitCode.TIME_OUT
        ) from None
