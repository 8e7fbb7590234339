"""How a command reaches the data of a Raft cluster (docs/specs/raft.md 17): by NAME, or by ``--peers``."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from pavane.raft import errors
from pavane.raft.client import Keys, RaftClient, TreeKeys
from pavane.raft.client.urls import split_url
from pavane.raft.keys import RaftKeys
from pavane.runtime import names
from pavane_api.problems import problem_type
from pavane_cli import completing, reach
from pavane_cli.failures import ExitCode, UserError, exit_code
from pavane_cli.gathering import gathering
from pavane_cli.output import note
from pavane_cli.reach import PEERS, ControlPlane, ReachingCommand, addresses, through_plane
from pavane_cli.rest_keys import RestSession
from pavane_cli.secret import SecretEnv, SecretFile, secret_in

NAME_S = 1.5  # for the look-up of a name; who waits for it is a person

Name = Annotated[
    str, typer.Argument(metavar="NAME", autocompletion=completing.names, help="The RaftCluster; omit it with --peers.")
]
Peers = Annotated[
    str | None,
    typer.Option(PEERS, metavar="URL,…", help="Ask these peers directly, without the platform; needs the secret."),
]
KeyFolder = Annotated[
    Path | None,
    typer.Option("--keys", metavar="DIR", help="With --peers: folder with the cluster's keys, as in Secret NAME-keys."),
]

Stale = Annotated[bool, typer.Option("--stale", help="Ask any peer: the answer may be old, but needs no leader.")]

MinRevision = Annotated[
    int,
    typer.Option("--min-revision", metavar="REVISION", min=0, help="With --stale: nothing older than this revision."),
]


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """The keys of a cluster, and its tree if it has one."""

    kv: Keys
    tree: TreeKeys


@dataclass(frozen=True, slots=True)
class RaftReach(reach.Reach):
    """What the options of a command say about a RaftCluster."""

    kind = "raft"
    peers: tuple[str, ...] = ()
    """Those to ask directly; none = by NAME."""
    secret_file: Path | None = None
    secret_env: str | None = None
    keys: Path | None = None

    @asynccontextmanager
    async def store(self, *, stale: bool = False, since: int = 0) -> AsyncIterator[ClusterKeys]:
        """Open the keys by the way that was named; with ``stale`` any peer answers that has reached ``since``."""
        with explained():
            if self.peers:
                async with self.client() as client:
                    kv, tree = (client.stale_kv, client.stale_tree) if stale else (client.kv, client.tree)
                    yield ClusterKeys(kv.since(since), tree.since(since))
            else:
                async with self.rest() as rest:
                    session = RestSession(rest, self.path, since if stale else None)
                    yield ClusterKeys(Keys(session), TreeKeys(session))

    @asynccontextmanager
    async def reading(
        self, path: str, direct: Callable[..., Awaitable[BaseModel]]
    ) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        """Open what reads a document of the REST API: from the control plane at ``path``, or from the peers.

        ``direct`` makes it of a client of the peers, and takes the parameters of the query.
        """
        if self.peers:
            async with self.client() as client:

                async def read(**parameters: int) -> Any:
                    return (await direct(client, **parameters)).model_dump(mode="json", by_alias=True)

                yield read
        else:
            async with self.rest() as rest:
                yield functools.partial(rest.get, self.path + path)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[RaftClient]:
        """Open a client of the peers that were named."""
        ident, curve = b"", None
        if self.keys is not None:
            try:
                known = RaftKeys.read(self.keys, self.secret_file)
            except (OSError, ValueError) as error:
                raise UserError(f"--keys: {error}", ExitCode.USAGE) from error
            ident, curve = known.ident, known.curve
        elif (self.secret_file is None) == (self.secret_env is None):
            raise UserError("with --peers give one of --secret-file, --secret-env, --keys", ExitCode.USAGE)
        else:
            ident = secret_in(self.secret_file, self.secret_env)
        with explained():
            try:
                client = RaftClient(self.peers, ident, curve=curve)
            except ValueError as error:
                raise UserError(f"{PEERS}: {error}", ExitCode.USAGE) from error
            await _check_names(self.peers)
            async with client:
                yield client


async def _check_names(urls: Sequence[str]) -> None:
    """Print which names have no address; raises ``UserError`` if none has, for the client would try long."""
    hosts = dict.fromkeys(split_url(url)[0] for url in urls)
    found = dict(zip(hosts, await asyncio.gather(*map(_has_address, hosts)), strict=True))
    absent = ", ".join(host for host, there in found.items() if not there)
    if not any(found.values()):
        raise UserError(f"{PEERS}: {absent} has no address: see that the name is right", ExitCode.TIME_OUT)
    if absent:
        note(f"{PEERS}: {absent} has no address; the other peers are asked")


async def _has_address(host: str) -> bool:
    try:
        async with asyncio.timeout(NAME_S):
            return bool(await names.look_up(names.resolve, host))
    except (OSError, TimeoutError):
        return False


@through_plane
def _reach(
    plane: ControlPlane,
    name: Name,
    peers: Peers = None,
    secret_file: SecretFile = None,
    secret_env: SecretEnv = None,
    keys: KeyFolder = None,
) -> RaftReach:
    return RaftReach(plane, name, addresses(peers), secret_file, secret_env, keys)


reaching = gathering(_reach, ReachingCommand)
"""Gives a command the argument NAME and all options of ``RaftReach``, which it takes as its first parameter."""


@contextmanager
def explained() -> Iterator[None]:
    """Turn the errors of a ``RaftClient`` into ``UserError``, with the exit codes of the control plane's answers."""
    try:
        yield
    except errors.RaftError as error:
        told = problem_type(error)
        text = error.text if isinstance(error, errors.Refused) else str(error)
        raise UserError(text, exit_code(told.status, told.kind)) from error
