"""One client per WaltzCluster, kept while it is used; it follows fail-overs and rollouts by itself."""

import base64
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pavane.runtime import names
from pavane.waltz import errors
from pavane.waltz.client import Waltz, trusting
from pavane.waltz.client.link import Address, Route, parse_address
from pavane_api.kinds import WALTZ_CLUSTERS
from pavane_api.lending import Pool
from pavane_api.problems import Problem, Unavailable, problem_type
from pavane_operator import kube
from pavane_operator.kube.resources import SECRETS

CLIENTS_MAX = 64  # a client is a connection per server; the one not used for longest is closed first
PATIENCE_S = 20.0  # for a server that can serve a request; callers wait 30 s for an answer


class WaltzClients:
    """Clients by namespace and name, at most CLIENTS_MAX."""

    def __init__(self, client: kube.KubeClient) -> None:
        self._kube = client
        self._pool = Pool[Waltz](CLIENTS_MAX)

    @asynccontextmanager
    async def of(self, namespace: str, name: str) -> AsyncIterator[Waltz]:
        """Lend the client of a WaltzCluster; what it raises while it is lent becomes a problem.

        Raises ``kube.NotFound``, and ``Unavailable`` while the resource does not serve.
        """
        document = await self._kube.get(WALTZ_CLUSTERS, name, namespace)
        try:
            data = await self._data(namespace, f"{name}-client")
            if "tls.crt" in data:
                # Kubernetes has said what the caller may do: the log takes the word of who has its pods' certificate.
                data |= await self._data(namespace, f"{name}-tls")
        except kube.NotFound as error:
            raise Unavailable(_waits(name)) from error
        except ValueError as error:
            raise Unavailable(f"a Secret of {name} is damaged: {error}. {_waits(name)}") from error
        try:
            pair = data.get("tls.crt", ""), data.get("tls.key", "")
            # Of another uid it is a resource that was deleted and made again: another log.
            made_of = (document["metadata"]["uid"], data["servers"], data.get("ca.crt", ""), *pair)
            tls = trusting(made_of[2], *pair) if made_of[2] else None
            # Without TLS nothing else keeps a server of another namespace from answering for this one.
            route = None if tls else _route_in(namespace)
            log = Waltz(made_of[1].split(), tls=tls, patience=PATIENCE_S, route=route)
        except (KeyError, ValueError, ssl.SSLError) as error:
            raise Unavailable(f"Secret {name}-client is damaged: {error}. {_waits(name)}") from error

        if route is not None:
            await _refuse_others(made_of[1].split(), route)

        async def make() -> Waltz:
            return log

        try:
            async with self._pool.lend((namespace, name), made_of, make) as lent:
                yield lent
        except errors.WaltzError as error:
            raise problem_of(error, name) from error

    async def _data(self, namespace: str, name: str) -> dict[str, str]:
        data = (await self._kube.get(SECRETS, name, namespace)).get("data") or {}
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    async def close(self) -> None:
        """Close all clients."""
        await self._pool.close()


def _route_in(namespace: str) -> Route:
    """Return what finds servers by names of ``namespace`` alone, also those that a server names in its view."""
    suffix = f".{namespace}.svc"

    async def route(address: Address) -> Address:
        host, port = address
        if not host.endswith(suffix):
            raise names.AnotherName(
                socket.EAI_NONAME,
                f"{host} is no name in namespace {namespace}: a log without TLS is not looked for there",
            )
        return (await names.look_up(names.resolve_service, host))[0], port

    return route


async def _refuse_others(servers: Sequence[str], route: Route) -> None:
    """Raise ``Unavailable`` at once where a server's name leads to what may be another namespace's."""
    for each in servers:
        with contextlib.suppress(socket.gaierror):  # the client waits for names that nobody knows yet
            try:
                await route(parse_address(each))
            except names.AnotherName as error:
                raise Unavailable(f"{error.strerror}.") from error


def problem_of(error: errors.WaltzError, name: str) -> Problem:
    """Return the problem that tells a caller what the log answered."""
    problem = problem_type(error)
    match error:
        case errors.Conflict():
            return problem(f"{error}.")
        case errors.Unavailable():
            return problem(f"{error}. {_waits(name)}", headers={"Retry-After": "1"})
        case errors.Trimmed():
            return problem(f"{str(error).removeprefix('TRIMMED: ')}.")
    return problem(str(error))


def _waits(name: str) -> str:
    return f"`pavane why waltz/{name}` says what the WaltzCluster waits for."
