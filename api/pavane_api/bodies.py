"""How large bodies of requests may be."""

from collections.abc import AsyncIterator

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pavane_api.problems import TooLarge

BODY_BYTES_MAX = 11 * 1024 * 1024  # the largest that any request needs is an entry of 10 MiB, which says so itself


class BodyLimit:
    """Ends a request whose body is beyond ``BODY_BYTES_MAX``: JSON is read whole before anybody asks who sent it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > BODY_BYTES_MAX:
                raise HTTPException(TooLarge.status, f"A request has at most {BODY_BYTES_MAX} bytes.")
            return message

        await self._app(scope, counted, send)


async def bounded(stream: AsyncIterator[bytes], bytes_max: int, what: str) -> bytes:
    """Return the whole body; raises ``TooLarge`` as soon as it is beyond ``bytes_max``. ``what`` names it for users."""
    body = bytearray()
    async for piece in stream:
        body += piece
        if len(body) > bytes_max:
            raise TooLarge(f"{what} has at most {bytes_max} bytes.")
    return bytes(body)
