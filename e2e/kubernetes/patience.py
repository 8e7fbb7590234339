"""An HTTP transport that waits for an API server as its own clients do."""

import time
from http import HTTPStatus

import httpx2

PAUSE_S = 0.1
PAUSES_MAX = 300


class Patient(httpx2.BaseTransport):
    """Repeats what Kubernetes refuses while it makes the storage of a kind ready; that may be at any moment."""

    def __init__(self, inner: httpx2.BaseTransport) -> None:
        self._inner = inner

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request until the answer is another one, half a minute at the most."""
        for _ in range(PAUSES_MAX):
            response = self._inner.handle_request(request)
            if response.status_code != HTTPStatus.TOO_MANY_REQUESTS:
                break
            if b"storage is (re)initializing" not in response.read():  # an eviction that would break a budget
                break
            time.sleep(PAUSE_S)
        return response

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()
