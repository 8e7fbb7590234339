"""Between an operator and its API server: counts writes, kills the operator at one of them, cuts the operator off."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum

import aiohttp
import yaml
from aiohttp import web

READS = frozenset({"GET", "HEAD", "OPTIONS"})
CLOCKED = "/leases"
"""Renewals of the Lease come by the clock, whatever else is done, so they are no calls to count."""
PASSED_ON = ("Authorization", "Accept", "Content-Type", "User-Agent")


class Moment(StrEnum):
    """When, relative to the call, the operator is killed."""

    BEFORE = "before"
    AFTER = "after"


@dataclass
class ApiProxy:
    """Running between `arm` and the death of the operator it counts; afterwards it only passes on."""

    upstream: str
    context: ssl.SSLContext
    kill: Callable[[], None]
    calls: list[str] = field(default_factory=list)
    """The writes since `arm`, as method and path."""
    killed: asyncio.Event = field(default_factory=asyncio.Event)
    cut_off: bool = False
    """Whether nothing gets through any more."""
    _deadly: tuple[int, Moment] | None = None

    def arm(self, call: int = 0, moment: Moment = Moment.BEFORE) -> None:
        """Count from here on, and kill at the `call`-th write; 0 = kill nobody."""
        self.calls.clear()
        self.killed.clear()
        self._deadly = (call, moment) if call else None

    async def forward(self, session: aiohttp.ClientSession, request: web.Request) -> web.StreamResponse:
        """Pass one request on, and its answer back as it comes."""
        if self.cut_off:
            return self._break_off(request)
        fate = self._fate(request)
        if fate is Moment.BEFORE:
            return self._die(request)
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        body = await request.read()
        async with session.request(
            request.method, self.upstream + request.raw_path, headers=headers, data=body, ssl=self.context
        ) as answer:
            if fate is Moment.AFTER:
                await answer.read()
                return self._die(request)
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            return response

    def _fate(self, request: web.Request) -> Moment | None:
        if request.method in READS or CLOCKED in request.path:
            return None
        if self.killed.is_set():
            return None
        self.calls.append(f"{request.method} {request.path}")
        if self._deadly is None or len(self.calls) != self._deadly[0]:
            return None
        return self._deadly[1]

    def _die(self, request: web.Request) -> web.Response:
        self.kill()
        self.killed.set()
        return self._break_off(request)

    @staticmethod
    def _break_off(request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=503)


@asynccontextmanager
async def a_proxy(kubeconfig: str, kill: Callable[[], None]) -> AsyncIterator[tuple[ApiProxy, str]]:
    """A proxy before the server of this kubeconfig (YAML), and a kubeconfig that leads to the proxy."""
    document = yaml.safe_load(kubeconfig)
    cluster = document["clusters"][0]["cluster"]
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    proxy = ApiProxy(cluster["server"], context, kill)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False) as session:

        async def forward(request: web.Request) -> web.StreamResponse:
            try:
                return await proxy.forward(session, request)
            except (aiohttp.ClientError, ConnectionError):
                return web.Response(status=502)

        application = web.Application(client_max_size=2**23)
        application.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        document["clusters"][0]["cluster"] = {"server": f"http://{host}:{port}"}
        try:
            yield proxy, yaml.safe_dump(document)
        finally:
            await runner.cleanup()
