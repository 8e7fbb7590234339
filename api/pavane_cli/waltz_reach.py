"""How a command reaches a log: by the NAME of a WaltzCluster through the control plane, or by ``--servers``."""

import base64
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pavane.application.finding import CannotConnect, LogConnection, way_from
from pavane.application.log import connect_log
from pavane.runtime.certificates import client_of, trusting
from pavane.waltz.client import Conflict, Waltz, WaltzError
from pavane_api.problems import problem_type
from pavane_cli import completing, reach
from pavane_cli.failures import ExitCode, UserError, exit_code
from pavane_cli.gathering import Place, gathering
from pavane_cli.kinds import plain_name
from pavane_cli.reach import SERVERS, ControlPlane, ReachingCommand, addresses, through_plane
from pavane_cli.target import KINDS, cluster
from pavane_operator import kube
from pavane_operator.kinds.waltz.names import client_secret
from pavane_operator.kube.resources import SECRETS

PATIENCE_S = 30.0

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", autocompletion=completing.names, help="The WaltzCluster; omit it with --servers."),
]
Servers = Annotated[
    str | None,
    typer.Option(SERVERS, metavar="HOST:PORT,…", help="Ask these servers directly; any of the cluster."),
]
Authority = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        exists=True,
        help="With --servers: their authority, or a folder with ca.crt and our tls.crt and tls.key.",
    ),
]
NoTls = Annotated[bool, typer.Option("--no-tls", help="With --servers: connect without TLS.")]
Partition = Annotated[int, typer.Option("--partition", "-p", min=0, help="Which partition.")]
Patience = Annotated[float, typer.Option("--timeout", min=0.1, help="With --servers: maximum wait in seconds.")]


@dataclass(frozen=True, slots=True)
class WaltzReach(reach.Reach):
    """What the options of a command say about a log, and a partition of it."""

    kind = "waltz"
    servers: tuple[str, ...] = ()
    """Those to ask directly; none = by NAME."""
    authority: Path | None = None
    plain: bool = False
    partition: int = 0
    patience: float = PATIENCE_S

    @property
    def partitions(self) -> str:
        """The partitions' place below ``/api/v1``."""
        return f"{self.path}/partitions"

    @property
    def transactions(self) -> str:
        """The place of the partition's transactions."""
        return f"{self.partitions}/{self.partition}/transactions"

    @asynccontextmanager
    async def log(self) -> AsyncIterator[Waltz]:
        """Open a client, by NAME as applications do; its errors become ``UserError``."""
        with explained():
            if self.servers:
                log = Waltz(self.servers, tls=self._tls(), patience=self.patience)
            else:
                found = await connection_of(self.plane, plain_name(self.kind, self.name))
                log = await connect_log("", connection=found, timeout_s=self.patience, patience=self.patience)
            async with log:
                yield log

    def _tls(self) -> ssl.SSLContext | None:
        if self.plain:
            if self.authority is not None:
                raise UserError("give --tls-ca or --no-tls, not both", ExitCode.USAGE)
            return None
        if self.authority is None:
            return ssl.create_default_context()
        try:
            if self.authority.is_dir():
                if (found := client_of(self.authority)) is None:
                    raise FileNotFoundError("it has no ca.crt")
                return found
            return trusting(self.authority.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--tls-ca: {self.authority} holds no certificates: {error}", ExitCode.USAGE) from error


@through_plane
def _reach(
    plane: ControlPlane,
    name: Name,
    servers: Servers = None,
    tls_ca: Authority = None,
    no_tls: NoTls = False,
    partition: Partition = 0,
    timeout: Patience = PATIENCE_S,
) -> WaltzReach:
    return WaltzReach(plane, name, addresses(servers), tls_ca, no_tls, partition, timeout)


reaching = gathering(_reach, ReachingCommand)
"""Gives a command the argument NAME and all options of ``WaltzReach``, which it takes as its first parameter."""


async def connection_of(place: Place, name: str, identity: str = "") -> LogConnection:
    """Return the connection of a WaltzCluster, from the Secret that the operator keeps for applications, or for one."""
    async with cluster(place) as client:
        await client.get(KINDS["waltz"], name, place.namespace)  # an error about it says more than of its Secret
        try:
            data = (await client.get(SECRETS, client_secret(name, identity), place.namespace)).get("data") or {}
        except kube.NotFound as error:
            if identity:
                text = f"{name} has no certificate for {identity}: give it a rule in spec.clients.rights"
                raise UserError(text, ExitCode.NOT_FOUND) from error
            data = {}
    path, held = place.path(), {key: base64.b64decode(value).decode() for key, value in data.items()}
    way = {} if path is None else way_from(path, place.namespace, place.context or "")
    with explained():
        return LogConnection.of(name, held, **way)


@contextmanager
def explained() -> Iterator[None]:
    """Turn the errors of a ``Waltz`` client into ``UserError``."""
    try:
        yield
    except CannotConnect as error:
        raise UserError(str(error), ExitCode.TIME_OUT) from error
    except WaltzError as error:
        told, words = problem_type(error), str(error)
        if isinstance(error, Conflict):
            words = (
                f"conflict: a lock of this append was written by transaction {error.txid} or before. Nothing was "
                f"written. Read up to it (`pavane waltz feed -p {error.partition} --from …`), decide again, then "
                f"append with --seen {error.txid}"
            )
        raise UserError(words, exit_code(told.status, told.kind)) from error
    except ValueError as error:
        raise UserError(str(error), ExitCode.USAGE) from error
    except ExceptionGroup as group:  # of writers that met the same
        with explained():
            raise group.exceptions[0] from group
