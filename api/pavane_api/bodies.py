"""Bodies of requests that are bytes."""

from collections.abc import AsyncIterator

from pavane_api.problems import TooLarge


async def bounded(stream: AsyncIterator[bytes], bytes_max: int, what: str) -> bytes:
    """Return the whole body; raises ``TooLarge`` as soon as it is beyond ``bytes_max``. ``what`` names it for users."""
    body = bytearray()
    async for piece in stream:
        body += piece
        if len(body) > bytes_max:
            raise TooLarge(f"{what} has at most {bytes_max} bytes.")
    return bytes(body)
