"""Mutual TLS between coordinators (docs/specs/ambrosia.md 11.7): a connection that is there becomes a sealed one."""

import asyncio
import ssl

from pavane.runtime.certificates import watch


class _Sealed(asyncio.StreamReaderProtocol):
    def __init__(
        self, reader: asyncio.StreamReader, below: asyncio.StreamWriter, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(reader, loop=loop)
        self._below = below  # a writer that is forgotten closes what it wrote to


async def agree(
    writer: asyncio.StreamWriter, context: ssl.SSLContext, limit: int, *, accepting: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Agree on TLS with the other side, by a context of ``Certificates``.

    Call it before anything else was awaited, and bound its time.

    Raises ``OSError`` (``ssl.SSLError``) when the other side cannot, or shows no certificate that counts. Whatever it
    raises, the connection is closed.
    """
    if writer.transport.is_closing():
        # asyncio would begin a handshake that nothing ends for a minute: it has told of the end already.
        raise ConnectionResetError("the connection ended before its handshake")
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit, loop)
    protocol = _Sealed(reader, writer, loop)
    try:
        transport = await loop.start_tls(writer.transport, protocol, context, server_side=accepting)
    except BaseException:
        writer.transport.abort()
        raise
    if transport is None:
        raise ConnectionResetError("the connection ended within its handshake")
    protocol.connection_made(transport)
    watch(transport)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
