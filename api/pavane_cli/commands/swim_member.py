"""``pavane swim member``: one member of a group without any of the platform (docs/specs/swim.md 1)."""

import logging
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pavane.runtime.ops import OpsServer
from pavane.runtime.process import EXIT_FAILED, Process, run
from pavane.swim.config import CAPACITY_SOUND, PROFILES, Config, ViewKind, id_of_name
from pavane.swim.control import ControlServer, socket_of
from pavane.swim.core.outputs import Happened, Own
from pavane.swim.errors import SwimError
from pavane.swim.member import SwimMember
from pavane.swim.metrics import metrics
from pavane.swim.wire.payload import META_BYTES_MAX
from pavane.swim.wire.values import UNSPECIFIED, Address
from pavane_cli.failures import ExitCode, UserError, as_user_error
from pavane_cli.output import say

_logger = logging.getLogger(__name__)

# What an administrator wants to read; the rest is for programs, by the API or by `pavane swim watch`.
_WARNINGS = frozenset({Happened.SUSPECT, Happened.DEAD, Happened.JOIN_REFUSED, Happened.ONE_WAY, Happened.ID_CONFLICT,
                       Happened.NEAR_CAPACITY, Happened.OVER_CAPACITY, Happened.VIEW_MISMATCH,
                       Happened.MISSED})  # fmt: skip


class ProfileName(StrEnum):
    """Kinds of network (docs/specs/swim.md 17.1)."""

    LOCAL = "local"
    LAN = "lan"
    WAN = "wan"


def member(
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of this member; determines its id.")],
    bind: Annotated[
        str, typer.Option("--bind", metavar="HOST:PORT", help="Where to listen, UDP. 0.0.0.0 or [::]: every interface.")
    ],
    seed: Annotated[
        list[str] | None, typer.Option("--seed", metavar="HOST:PORT", help="A member to contact; may be repeated.")
    ] = None,
    discover: Annotated[
        str | None,
        typer.Option(
            "--discover",
            metavar="HOST:PORT",
            help="Announce by broadcast and join others that do, for example 255.255.255.255:7946.",
        ),
    ] = None,
    advertise: Annotated[
        str | None, typer.Option("--advertise", metavar="HOST:PORT", help="Address for the others; default: --bind.")
    ] = None,
    group: Annotated[str, typer.Option("--group", help="Name of the group; members of others are not admitted.")] = "",
    keys_file: Annotated[
        Path | None,
        typer.Option("--keys-file", metavar="FILE", help="Keys of the group; read again when it changes."),
    ] = None,
    seal: Annotated[bool, typer.Option("--seal", help="Encrypt datagrams, not only authenticate them.")] = False,
    accept_plaintext: Annotated[
        bool,
        typer.Option("--accept-plaintext", help="Also accept members without keys, while keys are added to the group."),
    ] = False,
    psk_file: Annotated[
        Path | None,
        typer.Option("--psk-file", metavar="FILE", help="Secrets required to join; they protect nothing else."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Keep the generation there, if the clock may be wrong.")
    ] = None,
    meta: Annotated[
        str | None, typer.Option("--meta", metavar="TEXT", help="Description that every member sees.")
    ] = None,
    profile: Annotated[ProfileName, typer.Option("--profile", help="Kind of network.")] = ProfileName.LAN,
    view: Annotated[
        ViewKind,
        typer.Option("--view", help="Track all members, or only --capacity of them; the same for all members."),
    ] = ViewKind.FULL,
    capacity: Annotated[int, typer.Option("--capacity", help="The most members that it tracks.")] = 1024,
    ops: Annotated[
        str | None, typer.Option("--ops", metavar="HOST:PORT", help="Serve /livez, /readyz and /metrics there, HTTP.")
    ] = None,
    socket: Annotated[
        Path | None,
        typer.Option("--socket", metavar="FILE", help="Control socket; default: by --name, for your user only."),
    ] = None,
) -> None:
    """Run one member. On SIGTERM it leaves the group and stops.

    The other commands of `pavane swim` ask a member that runs on this machine.
    """
    where = _address("--bind", bind)
    config = Config(
        id=id_of_name(name),
        address=UNSPECIFIED if advertise is None else _address("--advertise", advertise),
        broadcast_to=None if discover is None else _address("--discover", discover),
        group=group,
        view=view,
        capacity=capacity,
        profile=PROFILES[profile],
    )
    ops_at = None if ops is None else _address("--ops", ops)
    with as_user_error(SwimError, code=ExitCode.USAGE):
        config.validate()
        config = replace(config, seal=seal, accept_plaintext=accept_plaintext)  # valid with keys, which are read later
        control = socket if socket is not None else socket_of(name)
        if keys_file is None and (seal or accept_plaintext):
            raise UserError("--seal and --accept-plaintext need --keys-file", ExitCode.USAGE)
        swim = SwimMember(
            config, (where.host, where.port), seed or [], keys_file=keys_file, psk_file=psk_file, data=data
        )
        if meta is not None and len(meta.encode()) > META_BYTES_MAX:
            raise UserError(f"--meta has at most {META_BYTES_MAX} bytes", ExitCode.USAGE)

    async def body(process: Process) -> None:
        if view is ViewKind.PARTIAL and capacity < CAPACITY_SOUND:
            _logger.warning("--capacity %d: a mass crash can cut such a group apart; take 8 or more", capacity)
        try:
            async with swim:
                if meta is not None:
                    swim.set_meta(meta.encode())
                await _live(process, swim, name, control, ops_at)
        except (SwimError, OSError) as error:
            process.exit(EXIT_FAILED, str(error))

    raise typer.Exit(run(body, service="pavane-swim-member"))


async def _live(process: Process, swim: SwimMember, name: str, control: Path, ops_at: Address | None) -> None:
    if not swim.key_ids:
        _logger.warning("no keys: anyone who reaches %s can impersonate members", swim.bound)
    server = ControlServer(swim, control)
    await server.start()
    ops: OpsServer | None = None
    try:
        if ops_at is not None:
            ops = OpsServer(
                host=ops_at.host,
                port=ops_at.port,
                live=lambda: None,
                ready=lambda: None if swim.own is Own.MEMBER else f"not a member of a group: {swim.own}",
                metrics=lambda: metrics(swim),
            )
            await ops.start(process)
        process.spawn(_tell(process, swim), name="swim member")
        say(f"up {name} {swim.bound}")
        await process.ended()
        if swim.failed is None:
            await swim.leave()
    finally:
        await server.stop()
        if ops is not None:
            await ops.stop()


async def _tell(process: Process, swim: SwimMember) -> None:
    """Log what happens; ends with an error when the member fails, and the process when the member lost its id."""
    async for event in swim.events():
        level = logging.WARNING if event.kind in _WARNINGS else logging.INFO
        member = event.member
        about = f" {member.id} at {member.address}, generation {member.gen}" if member is not None else ""
        at = f" {event.address}" if event.address is not None else ""
        _logger.log(level, "%s%s%s%s", event.kind, about, at, f" {event.text}" if event.text else "")
        if event.kind is Happened.ID_CONFLICT and swim.own is Own.OUT:
            process.exit(EXIT_FAILED, f"a member of the same name runs{at}: stop one, or give another --name")


def _address(option: str, text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError:
        raise UserError(
            f"{option}: {text!r} must be a numeric address and a port, as 10.3.2.1:7946 or [2001:db8::7]:7946",
            ExitCode.USAGE,
        ) from None
