"""HTTP servers without authentication: requests that a foreign web page makes a browser send are refused."""

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

MISDIRECTED, FORBIDDEN = 421, 403
OURS = (".localhost", ".svc", ".cluster.local")
"""How names end that nobody on the internet can own."""


class OwnVisitors:
    """Passes a request on to ``app`` unless a foreign web page can have sent it.

    A page's own address stands in ``Origin``, which has to be that of the request. A page may also have the address of
    this machine given to its own name (DNS rebinding), so on a loopback address ``Host`` is an address, or a name that
    nobody on the internet can own.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        answer = _refusal(scope) if scope["type"] == "http" else None
        await (answer or self._app)(scope, receive, send)


def is_json(headers: Headers) -> bool:
    """Whether the content type is JSON: a browser lets no foreign page send that without asking first (CORS)."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _refusal(scope: Scope) -> JSONResponse | None:
    headers = Headers(scope=scope)
    host, origin = headers.get("host", ""), headers.get("origin")
    if _is_loopback(scope.get("server")) and not _is_ours(host):
        text = f"Host {host[:100]} is no name of this machine: use localhost or the address"
        return JSONResponse({"error": "ForeignHost", "detail": text}, MISDIRECTED)
    if origin is not None and _authority(origin) != host.lower():
        text = f"a page of {origin[:100]} sends this; only programs, and pages of {host[:100]}, may"
        return JSONResponse({"error": "ForeignOrigin", "detail": text}, FORBIDDEN)
    return None


def _is_loopback(server: tuple[str, int | None] | None) -> bool:
    try:
        address = ipaddress.ip_address(server[0] if server else "")
    except ValueError:  # a socket in the file system
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _is_ours(host: str) -> bool:
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(OURS)
    return True


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
