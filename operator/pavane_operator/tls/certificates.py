"""Authorities and certificates as PEM: made, read, judged. Nothing here has a clock; times are aware and in UTC."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pavane.compute.certificates import dns_names

CLOCK_SKEW = timedelta(minutes=5)
"""Certificates are valid from this long before they are issued: clocks of nodes differ."""
COMMON_NAME_MAX_CHARACTERS = 64
"""Of X.509; names are judged by the alternative ones, which have no such limit."""
READ_MAX = 1024
"""Pairs whose reading is remembered, two of each resource: each plan reads them, which took half a millisecond."""
BOTH_ENDS = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
"""One certificate serves pods and their operator: both belong to the resource."""
CLIENT_END = (ExtendedKeyUsageOID.CLIENT_AUTH,)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its key, both as PEM; the certificate may be followed by those that lead to its authority."""

    certificate: bytes
    key: bytes = field(repr=False)


def new_authority(name: str, now: datetime, life: timedelta) -> Pair:
    """An authority that is valid until `now` + `life`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(f"{name} authority")
    builder = (
        _builder(subject, subject, key.public_key(), now, life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def new_certificate(
    authority: Pair,
    names: Sequence[str],
    now: datetime,
    life: timedelta,
    ends: Sequence[x509.ObjectIdentifier] = BOTH_ENDS,
) -> Pair:
    """A certificate for these DNS names, for these `ends` of a connection, signed by `authority`."""
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signing_key = serialization.load_pem_private_key(authority.key, None)
    if not isinstance(signing_key, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is not on an elliptic curve")
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    builder = (
        _builder(_subject(names[0]), signer.subject, key.public_key(), now, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(ends), critical=False)
        .add_extension(alternatives, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)  # type: ignore[arg-type]
    )
    return _pair(builder.sign(signing_key, hashes.SHA256()), key)


def authorities_in(pem: bytes) -> tuple[x509.Certificate, ...]:
    """The certificates of a bundle; empty where it cannot be read."""
    try:
        return tuple(x509.load_pem_x509_certificates(pem))
    except ValueError:
        return ()


@functools.lru_cache(maxsize=READ_MAX)
def certificate_in(pair: Pair) -> x509.Certificate | None:
    """The certificate of the pair; None where it cannot be read or the key is not its own."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, None)
    except (ValueError, TypeError):
        return None
    return certificate if key.public_key() == certificate.public_key() else None


def id_of(certificate: x509.Certificate) -> str:
    """What tells one certificate from every other."""
    return certificate.fingerprint(hashes.SHA256()).hex()


@functools.lru_cache(maxsize=READ_MAX)
def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether `authority` itself signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def fault_in(pair: Pair, authorities: bytes, now: datetime) -> str | None:
    """Why pods and operator could not use what a user gave, in words that follow the name of the Secret; or None."""
    certificate = certificate_in(pair)
    if certificate is None:
        return "tls.crt holds no certificate in PEM, or tls.key is not its key"
    if not authorities_in(authorities):
        return "ca.crt holds no certificate in PEM"
    if now >= certificate.not_valid_after_utc:
        return f"tls.crt has expired at {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: renew it"
    if not dns_names(certificate):
        return "tls.crt names no DNS name: add one, for example that of the public Service"
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return None  # without it every use is allowed
    missing = [name for name, use in zip(("server auth", "client auth"), BOTH_ENDS, strict=True) if use not in usage]
    return f"tls.crt lacks the extended key usage {' and '.join(missing)}: both ends show it" if missing else None


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:COMMON_NAME_MAX_CHARACTERS])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    since = now.replace(microsecond=0)
    return x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=issuer,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=since - CLOCK_SKEW,
        not_valid_after=since + life,
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), private)
