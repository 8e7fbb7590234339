"""``pavane raft tree``: the nodes of a cluster with the state machine Tree (docs/specs/raft.md 12.8, 17)."""

import os
from typing import Annotated

import typer

from pavane.raft.client import NodeInfo
from pavane.raft.machines.commands import ANY_VERSION
from pavane_api.raftkeys.schemas import SCOPES, Node
from pavane_cli import output
from pavane_cli.changes import Count, From, print_changes
from pavane_cli.data import DataFile, data_of, show
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.output import Format, Output
from pavane_cli.raft_reach import MinRevision, RaftReach, Stale, reaching
from pavane_cli.target import run

Path_ = Annotated[str, typer.Argument(metavar="PATH", help="Begins with /.")]
PathOrRoot = Annotated[str, typer.Argument(metavar="PATH", help="Begins with /; default: the root.")]
Version = Annotated[int, typer.Option(help="Only if the node has this version; default: any.")]


@reaching
def ls(
    reach: RaftReach,
    path: PathOrRoot = "/",
    stale: Stale = False,
    min_revision: MinRevision = 0,
    form: Output = Format.TABLE,
) -> None:
    """Print the names of a node's children in order."""

    async def read() -> list[bytes]:
        async with reach.store(stale=stale, since=min_revision) as store:
            return (await store.tree.children(os.fsencode(path)))[0]

    names = [output.printable(name) for name in run(read())]
    if form.structured:
        output.structured(names, form)
    else:
        for name in names:
            output.say(name)


@reaching
def get(
    reach: RaftReach, path: Path_, stale: Stale = False, min_revision: MinRevision = 0, form: Output = Format.TABLE
) -> None:
    """Print the data of a node; with -o json or yaml also its versions. Exit code 3 if the node does not exist."""

    async def read() -> NodeInfo | None:
        async with reach.store(stale=stale, since=min_revision) as store:
            return await store.tree.get(os.fsencode(path))

    node = run(read())
    if node is None:
        raise UserError(f"there is no node {path}", ExitCode.NOT_FOUND)
    show(node.data, Node.of(node), form)


@reaching
def set_node(
    reach: RaftReach,
    path: Path_,
    data: Annotated[str | None, typer.Argument(metavar="DATA", help="Default: standard input.")] = None,
    file: DataFile = None,
    version: Version = ANY_VERSION,
) -> None:
    """Replace the data of a node and print its new version."""
    content = data_of(data, file)

    async def send() -> int:
        async with reach.store() as store:
            return await store.tree.set(os.fsencode(path), content, version=version)

    output.say(str(run(send())))


@reaching
def create(
    reach: RaftReach,
    path: Path_,
    data: Annotated[str, typer.Argument(metavar="DATA", help="Default: none.")] = "",
    sequential: Annotated[bool, typer.Option("--sequential", help="Append the parent's counter to the name.")] = False,
    lease: Annotated[int, typer.Option("--lease", metavar="ID", help="Delete the node when this lease ends.")] = 0,
) -> None:
    """Create a node below an existing parent and print its path."""

    async def send() -> bytes:
        async with reach.store() as store:
            return await store.tree.create(os.fsencode(path), os.fsencode(data), lease=lease, sequential=sequential)

    output.say(output.printable(run(send())))


@reaching
def rm(reach: RaftReach, path: Path_, version: Version = ANY_VERSION) -> None:
    """Remove a node without children."""

    async def send() -> None:
        async with reach.store() as store:
            await store.tree.remove(os.fsencode(path), version=version)

    run(send())


@reaching
def watch(
    reach: RaftReach,
    path: PathOrRoot = "/",
    scope: Annotated[str, typer.Option(help=f"{', '.join(name for name in SCOPES if name != 'Keys')}.")] = "Subtree",
    first: From = 0,
    count: Count = 0,
    form: Output = Format.TABLE,
) -> None:
    """Print each change of a node, its children or all below it once and in order, until Ctrl-C."""
    wanted = SCOPES.get(scope)
    if wanted is None or scope == "Keys":
        raise UserError(f"--scope {scope}: unknown scope", ExitCode.USAGE)

    async def follow() -> None:
        async with reach.store() as store:
            await print_changes(store.tree.watch(os.fsencode(path), wanted, from_=first), count, form)

    run(follow())
