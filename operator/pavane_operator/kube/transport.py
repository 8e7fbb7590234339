"""What `KubeClient` needs of HTTP. There are two: `library` understands every kubeconfig, `light` starts quickly."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

CONNECT_TIMEOUT_S = 5.0


class Response(Protocol):
    """The head of an answer, and its body as it comes."""

    @property
    def status(self) -> int:
        """HTTP status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers, by names such as `Retry-After`."""

    def pieces(self) -> AsyncIterator[bytes]:
        """Pieces of the body until its end."""


class Transport(Protocol):
    """Sends requests to one API server, with one identity."""

    @property
    def server(self) -> str:
        """URL of the API server."""

    def open(
        self, method: str, path: str, headers: Mapping[str, str], body: object, silence_s: float | None
    ) -> AbstractAsyncContextManager[Response]:
        """Send a request, with `body` as JSON unless it is None or bytes; the answer can be read inside the context.
        `path` includes the query.

        Raises OSError (TimeoutError too) when the connection cannot be made in CONNECT_TIMEOUT_S, breaks, carries
        no HTTP, or is silent for `silence_s`; also while the body is read.
        """

    async def close(self) -> None:
        """Close all connections; what is open ends with OSError."""
