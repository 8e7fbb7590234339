"""How a command reaches a log: by the NAME of a WaltzCluster through the control plane, or by ``--servers``."""

import base64
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from typer.core import TyperCommand

from pavane.application.finding import HOSTS
from pavane.runtime.names import HOSTS_FILE_VARIABLE
from pavane.waltz.client import Conflict, NotFound, OutcomeUnknown, Unavailable, Waltz, WaltzError, trusting
from pavane_cli import completing
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.gathering import gathering
from pavane_cli.options import Api, Context, Kubeconfig, Namespace, Token
from pavane_cli.plane import RestClient, control_plane
from pavane_cli.target import KINDS, Where, cluster
from pavane_operator import kube
from pavane_operator.kinds.waltz.names import client_secret
from pavane_operator.kube.resources import SECRETS

SERVERS = "--servers"

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
        dir_okay=False,
        help="With --servers: their certificate authority.",
    ),
]
NoTls = Annotated[bool, typer.Option("--no-tls", help="With --servers: connect without TLS.")]
Partition = Annotated[int, typer.Option("--partition", "-p", min=0, help="Which partition.")]
Patience = Annotated[float, typer.Option("--timeout", min=0.1, help="With --servers: maximum wait in seconds.")]


@dataclass(frozen=True, slots=True)
class Reach:
    """What the options of a command say about the log."""

    name: str
    namespace: str
    where: Where
    api: str | None
    token: str | None
    servers: tuple[str, ...]
    authority: Path | None
    plain: bool
    partition: int
    patience: float

    @property
    def path(self) -> str:
        """The partitions' place below ``/api/v1``."""
        plain = self.name.removeprefix("waltz/").removeprefix("waltzcluster/")
        return f"/namespaces/{self.namespace}/waltzclusters/{quote(plain, safe='')}/partitions"

    @property
    def transactions(self) -> str:
        """The place of the partition's transactions."""
        return f"{self.path}/{self.partition}/transactions"

    @asynccontextmanager
    async def rest(self) -> AsyncIterator[RestClient]:
        """Lend the control plane."""
        async with control_plane(self.where, self.api, self.token) as rest:
            yield rest

    @asynccontextmanager
    async def log(self) -> AsyncIterator[Waltz]:
        """Lend a client; what it raises becomes a ``UserError``. By NAME it asks the cluster where the servers are."""
        servers, tls = (self.servers, self._tls()) if self.servers else await self._named()
        with explained():
            async with Waltz(servers, tls=tls, patience=self.patience) as log:
                yield log

    async def _named(self) -> tuple[tuple[str, ...], ssl.SSLContext | None]:
        """Read the Secret that the operator keeps for applications."""
        name = self.name.removeprefix("waltz/").removeprefix("waltzcluster/")
        async with cluster(self.where) as client:
            await client.get(KINDS["waltz"], name, self.namespace)  # an error about it says more than of its Secret
            try:
                data = (await client.get(SECRETS, client_secret(name), self.namespace)).get("data") or {}
            except kube.NotFound:
                data = {}
        path = self.where.path()
        hosts = path.parent / HOSTS / self.namespace if path is not None else None
        if hosts is not None and hosts.exists():  # names of a local cluster, which no DNS knows
            os.environ.setdefault(HOSTS_FILE_VARIABLE, str(hosts))
        held = {key: base64.b64decode(value).decode() for key, value in data.items()}
        if not held.get("servers", "").split():
            raise UserError(f"{name} has no servers yet; `pavane why waltz/{name}` says what it waits for")
        return tuple(held["servers"].split()), trusting(held["ca.crt"]) if "ca.crt" in held else None

    def _tls(self) -> ssl.SSLContext | None:
        if self.plain:
            if self.authority is not None:
                raise UserError("give --tls-ca or --no-tls, not both", ExitCode.USAGE)
            return None
        if self.authority is None:
            return ssl.create_default_context()
        try:
            return trusting(self.authority.read_text(encoding="utf-8"))
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise UserError(f"--tls-ca: {self.authority} holds no certificates: {error}", ExitCode.USAGE) from error


def _reach(
    name: Name,
    servers: Servers = None,
    tls_ca: Authority = None,
    no_tls: NoTls = False,
    partition: Partition = 0,
    timeout: Patience = 30.0,
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    api: Api = None,
    token: Token = None,
) -> Reach:
    names = tuple(text.strip() for text in (servers or "").split(",") if text.strip())
    where = Where(kubeconfig, context)
    return Reach(name, namespace, where, api, token, names, tls_ca, no_tls, partition, timeout)


class ReachingCommand(TyperCommand):
    """A command made by ``reaching``: with ``--servers`` there is no NAME."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put an empty NAME in its place if servers are named."""
        until = args.index("--") if "--" in args else len(args)
        if any(arg == SERVERS or arg.startswith(f"{SERVERS}=") for arg in args[:until]):
            args = ["", *args]
        return super().parse_args(ctx, args)


def reaching(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` the argument NAME and all options of ``Reach``, which it takes as its first parameter."""
    run = gathering(_reach)(command)
    run.command_class = ReachingCommand  # type: ignore[attr-defined]
    return run


@contextmanager
def explained() -> Iterator[None]:
    """Turn what the log answers into a ``UserError``."""
    try:
        yield
    except Conflict as conflict:
        words = (
            f"conflict: a lock of this append was written by transaction {conflict.txid} or before. Nothing was "
            f"written. Read up to it (`pavane waltz feed -p {conflict.partition} --from …`), decide again, then append "
            f"with --seen {conflict.txid}"
        )
        raise UserError(words, ExitCode.CONFLICT) from conflict
    except OutcomeUnknown as error:
        raise UserError(str(error), ExitCode.OUTCOME_UNKNOWN) from error
    except NotFound as error:
        raise UserError(str(error), ExitCode.NOT_FOUND) from error
    except Unavailable as error:
        raise UserError(str(error), ExitCode.TIME_OUT) from error
    except WaltzError as error:
        raise UserError(str(error), ExitCode.REFUSED) from error
    except ValueError as error:
        raise UserError(str(error), ExitCode.USAGE) from error
    except ExceptionGroup as group:  # of writers that met the same
        with explained():
            raise group.exceptions[0] from group
