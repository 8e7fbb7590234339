"""A transport for a command that makes a few calls: it starts in a tenth of the library's time.

httpx would do the same on the same h11, but importing it takes 0.16 s of CPU; a whole command takes a quarter second.

It understands kubeconfigs with a token or a client certificate. `light` refuses what it does not understand to the
last word (programs that log in, proxies, several files, a mistake), and the library takes that.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11
import yaml

from pavane.runtime.keepalive import notice_silence

from .connect import Target, kubeconfig, proxy_of_environment
from .transport import CONNECT_TIMEOUT_S

READ_BYTES = 64 * 1024

_CLUSTER = {"server", "certificate-authority", "certificate-authority-data", "insecure-skip-tls-verify", "extensions"}
_USER = {"token", "client-certificate", "client-certificate-data", "client-key", "client-key-data"}


def light(target: Target) -> LightTransport | None:
    """A transport for `target`, or None where the library has to look at it.

    Raises ConnectError where there is no kubeconfig.
    """
    named = kubeconfig(target)
    if named is None or os.pathsep in named:
        return None
    path = Path(named).expanduser()
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        context = _entry(config, "context", target.context or config["current-context"])
        cluster = _entry(config, "cluster", context["cluster"])
        user = {"token": target.token} if target.token is not None else _entry(config, "user", context["user"])
        token = user.get("token")
        server = cluster["server"]
        if cluster.keys() - _CLUSTER or user.keys() - _USER or proxy_of_environment(server) is not None:
            return None
        if token is not None and not (token.isascii() and token.isprintable()):
            return None
        return LightTransport(server, token, _tls(path.parent, cluster, user))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
        return None


def _entry(config: Any, kind: str, name: str) -> dict[str, Any]:
    (found,) = (item[kind] for item in config[f"{kind}s"] if item["name"] == name)
    return dict(found or {})


def _tls(folder: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext | None:
    """What to speak TLS with, or None for a server without it."""
    if urlsplit(cluster["server"]).scheme == "http":
        return None
    authorities = _pem(folder, cluster, "certificate-authority")
    context = ssl.create_default_context(cadata=authorities.decode("ascii") if authorities is not None else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = _pem(folder, user, "client-certificate"), _pem(folder, user, "client-key")
    if certificate is not None:
        import tempfile  # noqa: PLC0415 - OpenSSL reads our own certificate from a file alone; most have a token

        with tempfile.NamedTemporaryFile() as file:
            file.write(certificate + b"\n" + (key or b""))
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _pem(folder: Path, entry: Mapping[str, Any], key: str) -> bytes | None:
    """A certificate or key: as data, which goes first, or in a file; a relative path begins at the kubeconfig."""
    if data := entry.get(f"{key}-data"):
        return base64.b64decode(data)
    return (folder / entry[key]).read_bytes() if entry.get(key) else None


class LightTransport:
    """See `transport.Transport`. Each request has a connection of its own."""

    def __init__(self, server: str, token: str | None, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(server)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None:
            raise ValueError(f"{server} is no address of a server")
        self._server = server
        self._host, self._port = parts.hostname, parts.port or (443 if tls else 80)
        self._path = parts.path.rstrip("/")
        self._always = {"Host": parts.netloc, "Connection": "close"}
        if token:
            self._always["Authorization"] = f"Bearer {token}"
        self._tls = tls
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def server(self) -> str:
        """URL of the API server."""
        return self._server

    @asynccontextmanager
    async def open(
        self, method: str, path: str, headers: Mapping[str, str], body: object, silence_s: float | None
    ) -> AsyncIterator[LightResponse]:
        """Send a request; the answer can be read inside the context."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {**headers, **self._always, "Content-Length": str(len(data))}
        http = h11.Connection(h11.CLIENT)
        request = http.send(h11.Request(method=method, target=self._path + path, headers=list(sent.items()))) or b""
        request += (http.send(h11.Data(data)) or b"") + (http.send(h11.EndOfMessage()) or b"")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        except OSError as error:
            raise ConnectionError(f"cannot connect: {_words(error)}") from error
        self._open.add(writer)
        try:
            notice_silence(writer)
            writer.write(request)
            await writer.drain()
            response = LightResponse(http, reader, silence_s)
            await response.begin()
            yield response
        except h11.RemoteProtocolError as error:
            raise ConnectionError(str(error)) from error
        finally:
            self._open.discard(writer)
            # Nothing is left to say, and the server need not agree.
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    async def close(self) -> None:
        """Close all connections."""
        for writer in self._open:
            writer.transport.abort()


def _words(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came within {CONNECT_TIMEOUT_S:g} s"
    if isinstance(error, ssl.SSLError) or not error.errno:
        return str(error)
    # Of a name without an address the number is none of the system's; else asyncio puts the address there.
    return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)


class LightResponse:
    """See `transport.Response`."""

    def __init__(self, http: h11.Connection, reader: asyncio.StreamReader, silence_s: float | None) -> None:
        self._http = http
        self._reader = reader
        self._silence_s = silence_s
        self.status = 0
        self.headers: Mapping[str, str] = {}

    async def begin(self) -> None:
        """Read up to the body."""
        event = await self._next()
        while isinstance(event, h11.InformationalResponse):
            event = await self._next()
        if not isinstance(event, h11.Response):
            raise ConnectionError("the connection was closed without an answer")
        self.status = event.status_code
        self.headers = {name.decode("latin-1").title(): value.decode("latin-1") for name, value in event.headers}

    async def pieces(self) -> AsyncIterator[bytes]:
        """Pieces of the body until its end."""
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(self._silence_s):
                self._http.receive_data(await self._reader.read(READ_BYTES))
        return event
