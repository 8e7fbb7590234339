"""HTTP to pods: by their own address, whatever the environment says of proxies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2


def pods_http() -> httpx2.AsyncClient:
    """Return a client for ops ports of pods. A proxy of the environment is for the world outside and reaches no pod."""
    import httpx2  # noqa: PLC0415 - most commands talk to the API server alone

    from pavane.runtime.dialling import http_transport  # noqa: PLC0415 - the same

    return httpx2.AsyncClient(transport=http_transport(), trust_env=False)
