"""TLS of the log's ports, from a folder with ``tls.crt``, ``tls.key`` and ``ca.crt`` (docs/specs/waltz.md 2.5).

The client port asks nobody for a certificate; storage nodes and those who talk to them show one of the same authority.
Host names are not compared on any of the links, as with the original.
"""

import ssl
from pathlib import Path

CERTIFICATE_FILE, KEY_FILE, AUTHORITIES_FILE = "tls.crt", "tls.key", "ca.crt"


class Certificates:
    """Contexts over one folder. ``refresh`` loads what has changed; it counts from the next handshake on.

    Raises ``OSError`` (``ssl.SSLError``) when the files cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.client_port = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.storage_port = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.storage_link = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.storage_port.verify_mode = ssl.CERT_REQUIRED
        self.storage_link.check_hostname = False
        self._loaded: object = None
        self.refresh()

    def refresh(self) -> None:
        """Load certificate, key and authorities if they are others than before."""
        files = [self._folder / name for name in (CERTIFICATE_FILE, KEY_FILE, AUTHORITIES_FILE)]
        state = [(status.st_ino, status.st_mtime_ns) for status in (file.stat() for file in files)]
        if state == self._loaded:
            return
        for context in (self.client_port, self.storage_port, self.storage_link):
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(files[0], files[1])
        for context in (self.storage_port, self.storage_link):
            context.load_verify_locations(files[2])
        self._loaded = state
