"""Mutual TLS of a stage port over gRPC (docs/specs/compute.md 2.1): both ends show a certificate of one authority.

A server takes changed files at the handshake that follows. Streams stay open as long as the authority counts of whoever
dialled: gRPC closes no single connection, so each of its streams is judged, when it begins and when an authority goes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from pavane.runtime.certificates import Certificates, Files, Watched, chain_of

SHOWN, SHOWN_CHAIN = "x509_pem_cert", "x509_pem_cert_chain"
"""What gRPC calls the certificate of the other end, alone and with those above it."""


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


def server_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Credentials of a server that accepts only clients with a certificate of its authorities."""
    used = certificates.current()

    def changed() -> Any:  # the stubs forget that it may answer None
        """Answer gRPC, which asks before each handshake under a lock of its own."""
        nonlocal used
        former, used = used, certificates.current()
        return None if used is former else _configuration(used)

    return grpc.dynamic_ssl_server_credentials(_configuration(used), changed, require_client_authentication=True)


def watch(certificates: Certificates | None, stream: Watched, context: Any) -> None:
    """End a server's stream as soon as the authority of its connection is not trusted any more."""
    if certificates is not None:
        shown: Mapping[str, list[bytes]] = context.auth_context()
        pem = (*shown.get(SHOWN, ()), *shown.get(SHOWN_CHAIN, ()))
        certificates.watch(stream, chain_of(each.decode("ascii", "replace") for each in pem))


def _configuration(files: Files) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], files.authorities)
