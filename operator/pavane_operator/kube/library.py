"""The Kubernetes library as transport: service accounts, programs that log in, proxies, and all else that it knows.

It keeps connections open and is instrumented for traces. Its import takes half a second of a processor.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import yaml
from aiohttp.client_proto import ResponseHandler
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from pavane.parts.silence import REUSE_S
from pavane.runtime.keepalive import notice_silence

from .connect import ConnectError, Target, kubeconfig, proxy_of_environment
from .transport import CONNECT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are, for a program that makes its own connections."""

    configuration: Configuration

    @property
    def server(self) -> str:
        """URL of the API server."""
        return str(self.configuration.host)

    @property
    def ca_path(self) -> str | None:
        """File with the certificates that the server's is checked against; None = the system's."""
        path: str | None = self.configuration.ssl_ca_cert
        return path

    @property
    def insecure(self) -> bool:
        """Whether the kubeconfig says not to check the server's certificate."""
        return not self.configuration.verify_ssl

    @property
    def certificate_path(self) -> str | None:
        """File with our own certificate, if we have one."""
        path: str | None = self.configuration.cert_file
        return path

    @property
    def private_key_path(self) -> str | None:
        """File with the key of our own certificate."""
        path: str | None = self.configuration.key_file
        return path

    async def authorization(self) -> str | None:
        """Value of the header `Authorization` now; tokens of service accounts are renewed."""
        value: str | None = await self.configuration.get_api_key_with_prefix("BearerToken")
        return value


async def load(target: Target) -> Configuration:
    """Configuration of the client library for `target`; touches no global state.

    Raises ConnectError.
    """
    configuration = Configuration()
    try:
        await _fill(configuration, target)
    except (ConfigException, OSError) as error:
        raise ConnectError(error) from error
    if target.token is not None:
        configuration.api_key = {"BearerToken": f"Bearer {target.token}"}
        configuration.refresh_api_key_hook = None
        configuration.cert_file = configuration.key_file = None
    # The proxy of the environment is read once: aiohttp would read it, and ~/.netrc, in a thread for every call.
    configuration.client_session_kwargs = {"trust_env": False}
    if configuration.proxy is None:
        configuration.proxy = proxy_of_environment(configuration.host)
    # Watches hold a connection each for as long as they live, so a pool of a fixed size would starve the calls;
    # those are bounded by the client (CALLS_OPEN_MAX).
    configuration.connection_pool_maxsize = 0
    return configuration


async def _fill(configuration: Configuration, target: Target) -> None:
    named = kubeconfig(target)
    if named is None:
        load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    else:
        try:
            await load_kube_config(named, target.context, configuration, persist_config=False)  # type: ignore[no-untyped-call]
        except (ValueError, TypeError, AttributeError, LookupError, yaml.YAMLError) as error:
            raise ConnectError(f"{named} is no kubeconfig: {' '.join(str(error).split())}") from error


class _Rest(RESTClientObject):
    """The library's way to the server, over connections of ours."""

    def _create_connector(self) -> aiohttp.TCPConnector:
        return connector(self.ssl_context)


class _Connector(aiohttp.TCPConnector):
    """Ends a connection whose request was given up at once: a silent server never answers TLS's farewell."""

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        if should_close:
            protocol.abort()
        super()._release(key, protocol, should_close=should_close)


def connector(tls: ssl.SSLContext) -> aiohttp.TCPConnector:
    """Return a connector without a bound on connections; they notice silence, and are not used after a long rest."""
    return _Connector(limit=0, ssl=tls, keepalive_timeout=REUSE_S, socket_factory=_noticing)


def _noticing(found: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = found
    made = socket.socket(family, kind, protocol)
    notice_silence(made)
    return made


class LibraryTransport:
    """See `transport.Transport`."""

    def __init__(self, configuration: Configuration) -> None:
        self._credentials = Credentials(configuration)
        self._rest = _Rest(configuration)

    @property
    def server(self) -> str:
        """URL of the API server."""
        return self._credentials.server

    @asynccontextmanager
    async def open(
        self, method: str, path: str, headers: Mapping[str, str], body: object, silence_s: float | None
    ) -> AsyncIterator[LibraryResponse]:
        """Send a request; the answer can be read inside the context."""
        sent = dict(headers)
        if isinstance(body, bytes):  # with the bare type the library would encode it again
            sent["Content-Type"] += "; charset=utf-8"
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S, sock_read=silence_s)
        try:
            authorization = await self._credentials.authorization()
            if authorization:
                sent["Authorization"] = authorization
            answer = await self._rest.request(  # type: ignore[no-untyped-call]
                method, self.server + path, headers=sent, body=body, _request_timeout=timeout
            )
            response: aiohttp.ClientResponse = answer.response
            try:
                yield LibraryResponse(response)
            finally:
                response.close()
        except aiohttp.ClientError as error:
            raise ConnectionError(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._rest.close()


class LibraryResponse:
    """See `transport.Response`."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def status(self) -> int:
        """HTTP status."""
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers, by names such as `Retry-After`."""
        return self._response.headers

    def pieces(self) -> AsyncIterator[bytes]:
        """Pieces of the body until its end."""
        return self._response.content.iter_any()
