"""HTTP to pods: by their own address, whatever the environment says of proxies."""

import httpx2


def pods_http() -> httpx2.AsyncClient:
    """Return a client for ops ports of pods. A proxy of the environment is for the world outside and reaches no pod."""
    return httpx2.AsyncClient(trust_env=False)
