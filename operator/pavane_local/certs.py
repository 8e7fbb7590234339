"""Certificates and secrets of the local API server, and kubeconfig files for it (`docs/specs/operator.md` 6.6, 6.9)."""

import base64
import ipaddress
import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY_DAYS = 3650
"""The CA is trusted by nobody but this cluster's kubeconfig, and the folder lives no longer than a machine."""
CONTEXT = "pavane-local"
SECRET_BYTES = 32
SERVER_NAMES = ("localhost", "kubernetes.default.svc")


@dataclass(frozen=True)
class Credentials:
    """What the API server needs: PEM files, the CA as bytes, the admin token, the key that signs other tokens."""

    certificate: Path
    key: Path
    authority: bytes
    admin_token: str
    signing_key: bytes


def ensure_credentials(folder: Path) -> Credentials:
    """Read the credentials of a cluster from its folder `ca/`, and make those that are missing.

    The server's certificate is made anew each time, so that it never runs out before the CA does.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority_path, authority_key_path = folder / "ca.crt", folder / "ca.key"
    if not authority_path.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        write_private(authority_key_path, _key_text(key))
        write_private(authority_path, _certificate("pavane local CA", key, key, None))
    for name in ("admin.token", "token.key"):
        if not (folder / name).exists():
            write_private(folder / name, secrets.token_hex(SECRET_BYTES).encode())
    authority = x509.load_pem_x509_certificate(authority_path.read_bytes())
    authority_key = serialization.load_pem_private_key(authority_key_path.read_bytes(), None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)  # noqa: S101 - we wrote it
    key = ec.generate_private_key(ec.SECP256R1())
    write_private(folder / "server.key", _key_text(key))
    write_private(folder / "server.crt", _certificate("pavane local API server", key, authority_key, authority))
    return Credentials(
        certificate=folder / "server.crt",
        key=folder / "server.key",
        authority=authority_path.read_bytes(),
        admin_token=(folder / "admin.token").read_text(),
        signing_key=(folder / "token.key").read_bytes(),
    )


def kubeconfig(url: str, authority: bytes, token: str, namespace: str = "default") -> bytes:
    """Return a kubeconfig file with the one context `pavane-local`."""
    cluster = {"server": url, "certificate-authority-data": base64.b64encode(authority).decode()}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": cluster}],
        "users": [{"name": CONTEXT, "user": {"token": token}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT, "namespace": namespace}}],
        "current-context": CONTEXT,
    }
    return yaml.safe_dump(content, sort_keys=False).encode()


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read; others see the old content or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _key_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    kind, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, kind, plain)


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey, issuer: x509.Certificate | None
) -> bytes:
    """Return a certificate: of a CA if it has no issuer, else of the server."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    usage = {each: issuer is not None for each in ("digital_signature", "key_agreement")}
    usage |= {each: issuer is None for each in ("key_cert_sign", "crl_sign")}
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "encipher_only", "decipher_only")
    builder = (
        x509.CertificateBuilder(issuer.subject if issuer else subject, subject, key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=VALIDITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**usage, **dict.fromkeys(unused, False)), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if issuer:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        names = x509.SubjectAlternativeName([address, *(x509.DNSName(each) for each in SERVER_NAMES)])
        builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
