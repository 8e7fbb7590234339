"""The control plane's REST API, as a command sees it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx2

from pavane.parts.silence import STREAM_SILENT_S
from pavane.runtime.dialling import http_transport
from pavane_cli.failures import ExitCode, UserError, exit_code
from pavane_cli.output import note
from pavane_cli.target import Where, control_plane_url, explained, kubeconfig_token, with_advice

AGAIN_S = 0.5  # between the end of a stream and the next try
LOST_S = 60.0  # a stream from which nothing has come for so long is given up: a control plane starts in much less
REST_TIMEOUT_S = 40.0  # the control plane waits up to 30 s for a cluster, and then says what it waited for


class ApiError(UserError):
    """The control plane refused: a problem document, or another answer."""

    def __init__(self, message: str, code: ExitCode, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(message, code)
        self.status = status
        self.headers = headers


class StreamLost(Exception):
    """A stream could not be followed any further; says why."""


class RestClient:
    """The control plane's REST API with a token; problems become ``ApiError``."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def get(self, path: str, **parameters: Any) -> Any:
        """GET below ``/api/v1``."""
        return self._answer(await self._client.get(path, params=parameters or None))

    async def post(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> Any:
        """POST ``body`` as bytes below ``/api/v1``."""
        sent = {"Content-Type": "application/octet-stream", **(headers or {})}
        return self._answer(await self._client.post(path, content=body, headers=sent))

    async def send(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        """Send ``body`` as JSON, if there is one; returns the answer's JSON, None without one."""
        return self._answer(await self._client.request(method, path, json=body, headers=headers))

    async def follow(self, path: Callable[[], str]) -> AsyncGenerator[tuple[str, str], None]:
        """Yield kind and data of a stream's events for ever; ``path`` says each time where it goes on.

        It is asked for again when it breaks, brings nothing for STREAM_SILENT_S, or the control plane ends it. Raises
        ``StreamLost`` when that has not helped for LOST_S, and at once if the first try fails.
        """
        loop = asyncio.get_running_loop()
        failing_since_s: float | None = None
        opened = heard = False  # whether a try succeeded so far, and whether anything came then
        while True:
            began_s, reason = loop.time(), "it ended the stream"
            try:
                async with aclosing(self._events(path())) as events:
                    async for kind, data in events:
                        if kind == "error":
                            reason = data
                            if not heard:
                                raise StreamLost(reason)
                            break
                        heard = heard or opened
                        opened = True
                        if kind:
                            failing_since_s = None
                            yield kind, data
            except (httpx2.TransportError, ApiError, TimeoutError) as error:
                if not opened or (isinstance(error, ApiError) and error.code is not ExitCode.TIME_OUT):
                    raise
                reason = str(error) or f"it said nothing for {STREAM_SILENT_S:g} s"
            now_s = loop.time()
            if failing_since_s is None or now_s - began_s >= LOST_S:
                failing_since_s = now_s
            if now_s - failing_since_s >= LOST_S:
                raise StreamLost(reason)
            note(f"the stream of the control plane begins again where it was: {reason}")
            await asyncio.sleep(AGAIN_S)

    async def _events(self, path: str) -> AsyncGenerator[tuple[str, str], None]:
        """Yield kind and data of each event until the stream ends; an empty kind where it only says that it lives."""
        async with self._client.stream("GET", path) as response:
            if response.status_code >= 400:
                await response.aread()
                self._answer(response)
            yield "", ""
            fields: dict[str, str] = {}
            lines = aiter(response.aiter_lines())
            while True:
                try:
                    async with asyncio.timeout(STREAM_SILENT_S):
                        line = await anext(lines)
                except StopAsyncIteration:
                    return
                name, _, value = line.partition(": ")
                if line:
                    fields[name] = value
                else:
                    yield fields.get("event", ""), fields.get("data", "")
                    fields = {}

    @staticmethod
    def _answer(response: httpx2.Response) -> Any:
        if response.status_code < 400:
            return response.json() if response.content else None
        try:
            problem = response.json()
            message = str(problem.get("detail") or problem.get("title"))
            message = with_advice(message)
            message += "".join(f"\n  {item['pointer']}: {item['detail']}" for item in problem.get("errors") or ())
        except ValueError:
            message = f"the control plane answered {response.status_code}"
            problem = {}
        kind = str(problem.get("type")).rpartition("/")[2]
        code = exit_code(response.status_code, kind)
        raise ApiError(message, code, response.status_code, response.headers)


@asynccontextmanager
async def control_plane(where: Where, url: str | None, token: str | None) -> AsyncIterator[RestClient]:
    """Open a client of the REST API; its address and token come from the options, else from the local cluster.

    Raises ``UserError`` that says where to get what is missing.
    """
    with explained():
        address = url or await control_plane_url(where)
        bearer = token or kubeconfig_token(where)
        if bearer is None:
            raise UserError(
                "the kubeconfig has no token for the control plane: make one with `kubectl create token NAME "
                "--audience pavane-api`, NAME a service account, and give it as PAVANE_API_TOKEN or --token"
            )
        if not bearer.isascii() or not bearer.isprintable():
            # The library would print it, whole, in its own error.
            raise UserError("the token holds characters that no token has, such as the end of a line", ExitCode.USAGE)
        base = address.rstrip("/") + "/api/v1"
        try:
            headers = {"Authorization": f"Bearer {bearer}"}
            async with httpx2.AsyncClient(
                base_url=base, headers=headers, timeout=REST_TIMEOUT_S, trust_env=False, transport=http_transport()
            ) as client:
                yield RestClient(client)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = str(error).rstrip(".") or type(error).__name__
            raise UserError(
                f"the control plane at {address} does not answer: {reason}. On a local cluster `pavane ps` shows "
                "whether it runs; elsewhere see whether your `kubectl port-forward` still does"
            ) from error
