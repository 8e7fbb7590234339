"""Mutual TLS of the stage port (docs/specs/compute.md 2.1): both ends show a certificate of the same authority.

A pod reads its files again at the handshake that follows a change, so certificates are renewed without a restart;
streams that are open stay open.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

CERTIFICATE_FILE = "tls.crt"
KEY_FILE = "tls.key"
AUTHORITIES_FILE = "ca.crt"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageCredentials:
    """What the dialling end shows and trusts; certificates and key as PEM.

    Pods are dialled by address, so ``name`` says what is looked for in their certificate instead: a DNS name in it.
    """

    authorities: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    name: str

    def channel_options(self) -> tuple[tuple[str, str], ...]:
        """Options of a channel that uses these credentials."""
        return (("grpc.ssl_target_name_override", self.name),)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """The same for gRPC."""
        return grpc.ssl_channel_credentials(self.authorities, self.key, self.certificate)


def server_credentials(folder: Path) -> grpc.ServerCredentials:
    """Credentials of a server that accepts only clients with a certificate of its authorities.

    ``folder`` holds ``tls.crt``, ``tls.key`` and ``ca.crt``; they are read again when they have changed. What cannot be
    read then is logged, and the former certificate stays in use. Raises ``OSError`` when they cannot be read now.
    """
    files = _Files(folder)
    changed: Any = files.changed  # the stubs forget that it may answer None
    return grpc.dynamic_ssl_server_credentials(files.read(), changed, require_client_authentication=True)


class _Files:
    """The three files of a mounted Secret. gRPC asks before each handshake, under a lock of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: object = None

    def read(self) -> grpc.ServerCertificateConfiguration:
        folder, state = self._state()
        authorities = (folder / AUTHORITIES_FILE).read_bytes()
        pair = ((folder / KEY_FILE).read_bytes(), (folder / CERTIFICATE_FILE).read_bytes())
        self._read = state
        return grpc.ssl_server_certificate_configuration([pair], authorities)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        try:
            return None if self._state()[1] == self._read else self.read()
        except OSError as error:
            _logger.warning("changed certificates cannot be read, the former ones stay in use: %s", error)
            return None

    def _state(self) -> tuple[Path, object]:
        # A kubelet replaces all files at once by turning one link, so all are read behind the link as it is now.
        folder = (self._folder / CERTIFICATE_FILE).resolve(strict=True).parent
        files = [(folder / name).stat() for name in (AUTHORITIES_FILE, KEY_FILE, CERTIFICATE_FILE)]
        return folder, (folder, [(file.st_ino, file.st_mtime_ns) for file in files])
