"""``pavane raft tree``: the nodes of a cluster with the state machine Tree (docs/specs/raft.md 12.8, 17)."""

import os
from typing import Annotated

import typer

from pavane.raft.machines.commands import ANY_VERSION
from pavane_api.raftkeys.schemas import SCOPES, Node
from pavane_cli import output
from pavane_cli.changes import Count, From, print_changes
from pavane_cli.data import DataFile, data_of, show
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.output import Format, Output
from pavane_cli.raft_reach import MinRevision, RaftReach, Stale, reaching
from pavane_cli.target import run_with

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
    children, _ = run_with(
        reach.store(stale=stale, since=min_revision), lambda store: store.tree.children(os.fsencode(path))
    )
    names = [output.printable(name) for name in children]
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
    node = run_with(reach.store(stale=stale, since=min_revision), lambda store: store.tree.get(os.fsencode(path)))
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
    output.say(str(run_with(reach.store(), lambda store: store.tree.set(os.fsencode(path), content, version=version))))


@reaching
def create(
    reach: RaftReach,
    path: Path_,
    data: Annotated[str, typer.Argument(metavar="DATA", help="Default: none.")] = "",
    sequential: Annotated[bool, typer.Option("--sequential", help="Append the parent's counter to the name.")] = False,
    lease: Annotated[int, typer.Option("--lease", metavar="ID", help="Delete the node when this lease ends.")] = 0,
) -> None:
    """Create a node below an existing parent and print its path."""
    name, content = os.fsencode(path), os.fsencode(data)
    made = run_with(reach.store(), lambda store: store.tree.create(name, content, lease=lease, sequential=sequential))
    output.say(output.printable(made))


@reaching
def rm(reach: RaftReach, path: Path_, version: Version = ANY_VERSION) -> None:
    """Remove a node without children."""
    run_with(reach.store(), lambda store: store.tree.remove(os.fsencode(path), version=version))


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
    run_with(
        reach.store(),
        lambda store: print_changes(store.tree.watch(os.fsencode(path), wanted, from_=first), count, form),
    )
