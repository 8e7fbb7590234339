"""What the dialling end of a stage port reads out of certificates (docs/specs/compute.md 2.1)."""

from cryptography import x509

from pavane.compute.tls import StageCredentials
from pavane.runtime.certificates import Files

WILDCARD = "*"
ANY_LABEL = "pod"
"""Stands for the label that a wildcard stands for, where one name is needed."""


def client_credentials(files: Files) -> StageCredentials:
    """Credentials to dial a pod that has the same certificate. Raises ``ValueError`` when it cannot be used."""
    name = expected_name(x509.load_pem_x509_certificate(files.certificate))
    return StageCredentials(files.authorities, files.certificate, files.key, name)


def expected_name(certificate: x509.Certificate) -> str:
    """Return a DNS name that the certificate is good for. Raises ``ValueError`` where it holds none."""
    names = dns_names(certificate)
    if not names:
        raise ValueError("the certificate holds no DNS name")
    return names[0].replace(WILDCARD, ANY_LABEL, 1)


def dns_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """The DNS names that the certificate holds, in its order."""
    try:
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return ()
    return tuple(alternatives.value.get_values_for_type(x509.DNSName))
