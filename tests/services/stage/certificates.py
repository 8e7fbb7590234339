"""Authorities and certificates for tests, and the folder in which a pod sees them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from pavane.compute.tls import StageCredentials
from pavane_operator.tls.certificates import Pair, new_authority, new_certificate

NAME = "queue.orders.svc"
LIFE = timedelta(hours=1)


def now() -> datetime:
    return datetime.now(UTC)


def authority() -> Pair:
    return new_authority("orders/queue", now(), LIFE)


def certificate(signer: Pair, *names: str, life: timedelta = LIFE) -> Pair:
    return new_certificate(signer, names or (NAME,), now(), life)


def credentials(shown: Pair, *trusted: Pair) -> StageCredentials:
    return StageCredentials(b"".join(one.certificate for one in trusted), shown.certificate, shown.key, NAME)


def publish(folder: Path, shown: Pair, *trusted: Pair) -> None:
    """Put the files where a pod sees them, all at once, as a kubelet does."""
    version = folder / f"..{len(list(folder.iterdir()))}"
    version.mkdir()
    (version / "tls.crt").write_bytes(shown.certificate)
    (version / "tls.key").write_bytes(shown.key)
    (version / "ca.crt").write_bytes(b"".join(one.certificate for one in trusted))
    link = folder / "..new"
    link.symlink_to(version.name)
    link.rename(folder / "..data")
    for name in ("tls.crt", "tls.key", "ca.crt"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
