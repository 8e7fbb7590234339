"""How large bodies of requests may be."""

from collections.abc import AsyncIterator

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pavane_api.auth import STRANGER, Authority, audience_at
from pavane_api.problems import Problem, TooLarge, Unauthenticated, from_kubernetes
from pavane_operator.kube import KubeError

BODY_BYTES_MAX = 11 * 1024 * 1024  # the largest that any request needs is an entry of 10 MiB, which says so itself

OCTETS = "application/octet-stream"

AUTHENTICATED = "/api/"
"""What begins the paths of all endpoints that ask who calls."""


class BodyLimit:
    """Reads bodies of authenticated callers only, and refuses one that is beyond ``BODY_BYTES_MAX``.

    FastAPI reads and parses JSON before it asks a dependency who sent it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        size, known = 0, not str(scope.get("path", "")).startswith(AUTHENTICATED)

        async def counted() -> Message:
            nonlocal size, known
            if not known:
                known = True  # also where it fails: who then reads on, reads what is left of the body
                await _authenticate(scope)
            message = await receive()
            size += len(message.get("body", b""))
            if size > BODY_BYTES_MAX:
                raise HTTPException(TooLarge.status, f"A request has at most {BODY_BYTES_MAX} bytes.")
            return message

        await self._app(scope, counted, send)


async def _authenticate(scope: Scope) -> None:
    """Raise an exception that FastAPI passes on while it reads a body, unless the cluster knows who calls."""
    scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
    try:
        if scheme.lower() != "bearer" or not token:
            raise Unauthenticated(STRANGER, headers={"WWW-Authenticate": "Bearer"})
        authority: Authority = scope["app"].state.control.authority
        await authority.identify(token, also=audience_at(str(scope["path"])))
    except Problem as problem:
        raise HTTPException(problem.status, problem.detail, problem.headers) from problem
    except KubeError as error:
        told = from_kubernetes(error)
        raise HTTPException(told.status, told.detail, told.headers) from error


async def bounded(stream: AsyncIterator[bytes], bytes_max: int, what: str) -> bytes:
    """Return the whole body; raises ``TooLarge`` as soon as it is beyond ``bytes_max``. ``what`` names it for users."""
    body = bytearray()
    async for piece in stream:
        body += piece
        if len(body) > bytes_max:
            raise TooLarge(f"{what} has at most {bytes_max} bytes.")
    return bytes(body)
