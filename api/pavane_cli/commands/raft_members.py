"""``pavane raft members|watch|transfer|config``: who is in a cluster and who leads it (docs/specs/raft.md 17)."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from pavane_api.raftmembers import service
from pavane_cli import output
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.output import Format, Output
from pavane_cli.raft_reach import RaftReach, reaching
from pavane_cli.target import run, run_with

LOOK_S = 1.0  # between two looks of `watch`: elections take less, rollouts more

PeerArgument = Annotated[list[str], typer.Argument(metavar="ID=URL…", help="URL of a running peer.")]


@reaching
def members(reach: RaftReach, form: Output = Format.TABLE) -> None:
    """Show the role, program and progress of each member, asking each one directly."""
    found = run_with(reach.reading("/members", service.members), lambda look: look())
    if form.structured:
        output.structured(found, form)
    else:
        _show(found)


@reaching
def watch(reach: RaftReach) -> None:
    """Show the members again whenever their roles, terms or the configuration change, until Ctrl-C."""

    async def follow() -> None:
        shown: Any = None
        async with reach.reading("/members", service.members) as look:
            while True:
                found = await look()
                picture = [(each["id"], each.get("role"), each.get("term")) for each in found["items"]]
                if picture != shown:
                    _show(found)
                    shown = picture
                await asyncio.sleep(LOOK_S)

    run(follow())


@reaching
def transfer(
    reach: RaftReach,
    to: Annotated[str | None, typer.Argument(metavar="ID", help="New leader; default: the best member.")] = None,
) -> None:
    """Transfer leadership and print the new leader."""

    async def send() -> str:
        if reach.peers:
            async with reach.client() as client:
                return (await service.transfer(client, to)).leader
        async with reach.rest() as rest:
            return str((await rest.send("POST", reach.path + "/transfer", {"to": to}))["leader"])

    output.say(run(send()))


@reaching
def add(reach: RaftReach, added: PeerArgument) -> None:
    """Add running peers as members, and print the index of the joint configuration."""
    pairs = _peers(added)
    _change(reach, lambda present: (*(peer for peer in present if peer[0] not in dict(pairs)), *pairs))


@reaching
def remove(reach: RaftReach, ids: Annotated[list[str], typer.Argument(metavar="ID…")]) -> None:
    """Remove members, and print the index of the joint configuration."""

    def left(present: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
        missing = set(ids) - dict(present).keys()
        if missing:
            raise UserError(f"{', '.join(sorted(missing))}: no such member", ExitCode.NOT_FOUND)
        return [peer for peer in present if peer[0] not in ids]

    _change(reach, left)


@reaching
def set_members(reach: RaftReach, members: PeerArgument) -> None:
    """Set the members, and print the index of the joint configuration."""
    wanted = _peers(members)
    _change(reach, lambda _: wanted)


def _change(reach: RaftReach, wanted: Any) -> None:
    if not reach.peers:
        raise UserError(
            f"the operator decides who is a member of {reach.name}: `pavane scale raft/{reach.name} --replicas N`; "
            "of a cluster without a platform use --peers",
            ExitCode.REFUSED,
        )

    async def send() -> int:
        async with reach.client() as client:
            present = (await client.configuration()).peers
            return await client.change_members(wanted(present))

    output.say(str(run(send())))


def _peers(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    pairs = [text.partition("=") for text in texts]
    for peer, separator, url in pairs:
        if not (peer and separator and url):
            raise UserError(f"{peer!r}: write ID=URL, for example 4=tcp://10.0.0.4:8047", ExitCode.USAGE)
    return tuple((peer, url) for peer, _, url in pairs)


def _show(found: dict[str, Any]) -> None:
    output.say(f"leader {found['leader'] or 'none'}{'  members are being changed' if found['changing'] else ''}")
    rows = [
        (
            each["id"],
            (each.get("role") or "no answer") + (" (leaving)" if each["old"] else ""),
            each["kind"],
            each.get("term"),
            each.get("lastIndex"),
            each.get("appliedIndex"),
            each.get("lag"),
            each["url"],
        )
        for each in found["items"]
    ]
    output.table(("MEMBER", "ROLE", "KIND", "TERM", "LAST", "APPLIED", "LAG", "URL"), rows)
