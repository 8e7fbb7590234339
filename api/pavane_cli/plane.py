"""The control plane's REST API, as a command sees it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from pavane_cli.failures import ExitCode, UserError
from pavane_cli.target import Where, control_plane_url, explained, kubeconfig_token, with_advice

REST_TIMEOUT_S = 40.0  # the control plane waits up to 30 s for a cluster, and then says what it waited for

_PROBLEMS = {"lock-conflict": ExitCode.CONFLICT, "outcome-unknown": ExitCode.OUTCOME_UNKNOWN}
ANSWERS = {
    400: ExitCode.USAGE,
    401: ExitCode.REFUSED,
    403: ExitCode.REFUSED,
    404: ExitCode.NOT_FOUND,
    409: ExitCode.REFUSED,
    410: ExitCode.NOT_FOUND,
    412: ExitCode.REFUSED,
    413: ExitCode.USAGE,
    415: ExitCode.USAGE,
    422: ExitCode.USAGE,
    429: ExitCode.TIME_OUT,
    503: ExitCode.TIME_OUT,
}


class ApiError(UserError):
    """The control plane refused: a problem document, or another answer."""

    def __init__(self, message: str, code: ExitCode, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(message, code)
        self.status = status
        self.headers = headers


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

    async def events(self, path: str) -> AsyncIterator[tuple[str, str]]:
        """Yield kind and data of the events of a stream until the control plane ends it."""
        async with self._client.stream("GET", path) as response:
            if response.status_code >= 400:
                await response.aread()
                self._answer(response)
            fields: dict[str, str] = {}
            async for line in response.aiter_lines():
                name, _, value = line.partition(": ")
                if line:
                    fields[name] = value
                elif "event" in fields:
                    yield fields["event"], fields.get("data", "")
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
        code = _PROBLEMS.get(kind) or ANSWERS.get(response.status_code, ExitCode.ERROR)
        raise ApiError(message, code, response.status_code, response.headers)


@asynccontextmanager
async def control_plane(where: Where, url: str | None, token: str | None) -> AsyncIterator[RestClient]:
    """Lend a client of the REST API; its address and token come from the options, else from the local cluster.

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
            async with httpx2.AsyncClient(
                base_url=base, headers={"Authorization": f"Bearer {bearer}"}, timeout=REST_TIMEOUT_S, trust_env=False
            ) as client:
                yield RestClient(client)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = str(error).rstrip(".") or type(error).__name__
            raise UserError(
                f"the control plane at {address} does not answer: {reason}. On a local cluster `pavane ps` shows "
                "whether it runs; elsewhere see whether your `kubectl port-forward` still does"
            ) from error
