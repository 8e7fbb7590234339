"""Certificate and secrets of the local API server, and kubeconfig files for it (`docs/specs/operator.md` 6.6, 6.9)."""

import base64
import ipaddress
import os
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALIDITY_DAYS = 3650  # trusted by this cluster's kubeconfig alone; no folder lives longer than a machine
CONTEXT = "pavane-local"
SECRET_BYTES = 32


def ensure_credentials(folder: Path) -> None:
    """Make what is missing: `server.key`, `server.crt` (which clients trust), `admin.token`, `token.key`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / "server.crt").exists():
        key = ec.generate_private_key(ec.SECP256R1())
        plain = serialization.NoEncryption()
        text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        write_private(folder / "server.key", text)
        write_private(folder / "server.crt", _certificate(key))
    for name in ("admin.token", "token.key"):
        if not (folder / name).exists():
            write_private(folder / name, secrets.token_hex(SECRET_BYTES).encode())


def kubeconfig(url: str, authority: bytes, token: str, namespace: str = "default") -> str:
    """Return a kubeconfig file with the one context `pavane-local`."""
    cluster = {"server": url, "certificate-authority-data": base64.b64encode(authority).decode()}
    context = {"cluster": CONTEXT, "user": CONTEXT, "namespace": namespace}
    parts = {"cluster": cluster, "context": context, "user": {"token": token}}
    head = {"apiVersion": "v1", "kind": "Config", "current-context": CONTEXT}
    return yaml.safe_dump(head | {f"{kind}s": [{"name": CONTEXT, kind: part}] for kind, part in parts.items()})


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read; others see the old content or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _certificate(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a certificate that is signed by itself."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pavane local API server")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=VALIDITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
