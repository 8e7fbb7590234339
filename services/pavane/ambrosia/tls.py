"""Mutual TLS between coordinators (docs/specs/ambrosia.md 11.7): each end shows a certificate the other trusts.

A certificate shows that a peer is one of them, not which one; so host names are not compared.
"""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import NamedTuple

CERTIFICATE_FILE, KEY_FILE, AUTHORITIES_FILE = "tls.crt", "tls.key", "ca.crt"

_logger = logging.getLogger(__name__)


class Contexts(NamedTuple):
    """One for each end of a link."""

    accepting: ssl.SSLContext
    dialling: ssl.SSLContext


class LinkTls:
    """Certificate and key of ``folder``; trusts its ``ca.crt``, and the authorities in the file ``peers`` if it exists.

    Raises ``OSError`` (``ssl.SSLError``) when the files cannot be read.
    """

    def __init__(self, folder: Path, peers: Path | None = None) -> None:
        self._folder = folder
        self._peers = peers
        self._seen: object = None
        contexts = self._changed()
        assert contexts is not None  # noqa: S101 - nothing was seen before
        self._contexts = contexts

    def contexts(self) -> Contexts:
        """Return what counts now; changed files that cannot be read leave the former ones in use."""
        try:
            self._contexts = self._changed() or self._contexts
        except OSError as error:
            _logger.warning("changed certificates cannot be read, the former ones stay in use: %s", error)
        return self._contexts

    def _changed(self) -> Contexts | None:
        # A kubelet replaces all files at once by turning one link, so all are read behind the link as it is now.
        folder = (self._folder / CERTIFICATE_FILE).resolve(strict=True).parent
        files = [folder / name for name in (CERTIFICATE_FILE, KEY_FILE, AUTHORITIES_FILE)]
        peers = [self._peers] if self._peers is not None and self._peers.exists() else []
        seen = [(str(file), file.stat().st_ino, file.stat().st_mtime_ns) for file in (*files, *peers)]
        if seen == self._seen:
            return None
        self._seen = seen  # also of files that are wrong: a warning for each handshake would be a flood
        trusted = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in (files[2], *peers))
        found = Contexts(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        found.dialling.check_hostname = False
        for context in found:
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_cert_chain(files[0], files[1])
            context.load_verify_locations(cadata=trusted)
        return found


class _Sealed(asyncio.StreamReaderProtocol):
    def __init__(
        self, reader: asyncio.StreamReader, below: asyncio.StreamWriter, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(reader, loop=loop)
        self._below = below  # a writer that is forgotten closes what it wrote to


async def agree(
    writer: asyncio.StreamWriter, context: ssl.SSLContext, limit: int, *, accepting: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Agree on TLS with the other side; call it before anything else was awaited, and bound its time.

    Raises ``OSError`` (``ssl.SSLError``) when the other side cannot, or shows no certificate that counts. Whatever it
    raises, the connection is closed.
    """
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
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
