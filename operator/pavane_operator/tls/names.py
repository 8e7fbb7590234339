"""What the Secrets of certificates are called (docs/specs/operator.md 4.1)."""

from pavane_operator.crds.tls import TlsSpec


def authority_secret(resource: str) -> str:
    """The Secret with the authority of a resource, which no pod sees."""
    return f"{resource}-ca"


def client_authority_secret(resource: str) -> str:
    """The Secret with the authority of a resource's clients, which no pod sees."""
    return f"{resource}-clients-ca"


def issued_secret(resource: str) -> str:
    """The Secret with all that is issued to clients, which no pod sees: `ca.crt`, and `client.{client}.crt`, `.key`."""
    return f"{resource}-clients"


def issued_stem(client: str) -> str:
    """How the files of a client begin there; a client may be called `ca`."""
    return f"client.{client}"


def certificate_secret(resource: str, tls: TlsSpec) -> str:
    """The Secret that pods mount: the one that the user gives, or ours."""
    return tls.secret_name or f"{resource}-tls"
