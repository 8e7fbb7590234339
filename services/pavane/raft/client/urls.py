"""The urls by which peers are known: ``tcp://host:port``."""

import socket
from urllib.parse import urlsplit


def split_url(url: str) -> tuple[str, int]:
    """Return host and port of ``tcp://host:port``; raises ``ValueError`` that names the url otherwise."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:  # beyond 65535, or no number
        port = None
    if parts.scheme != "tcp" or not parts.hostname or port is None or parts.path:
        raise ValueError(f"{url!r} is no url of a peer; write tcp://host:port")
    return parts.hostname, port


def endpoint_of(address: str, port: int) -> str:
    """Return the url of a literal address."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def is_literal(host: str) -> bool:
    """Whether ``host`` is an address."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return True
    return False
