"""HTTP connections that this process dials: they notice silence, and long idle ones are not trusted with a request."""

import httpx2

from pavane.parts.silence import REUSE_S
from pavane.runtime.keepalive import socket_options

CONNECTIONS_MAX = 100  # as the library's own; beyond, requests wait for each other


def http_transport() -> httpx2.AsyncHTTPTransport:
    """Return the transport for an ``httpx2.AsyncClient`` of ours. It takes no proxy from the environment."""
    limits = httpx2.Limits(max_connections=CONNECTIONS_MAX, keepalive_expiry=REUSE_S)
    return httpx2.AsyncHTTPTransport(limits=limits, trust_env=False, socket_options=socket_options())
