"""Probes: httpGet alone (docs/specs/operator.md 6.8.7)."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

ANSWER_BYTES_MAX = 10 * 1024  # as much of an answer as the kubelet of Kubernetes reads


async def results(probe: dict[str, Any], address: str, ports: Mapping[str, int]) -> AsyncIterator[tuple[bool, str]]:
    """Runs a probe for ever; yields (success, why) each time that a threshold is reached, also repeatedly.

    `probe` has the defaults of the API server; `ports` are the ports of the container by name.
    """
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    count, last = 0, None
    while True:
        good, why = await _attempt(probe, address, ports)
        count = count + 1 if good == last else 1
        last = good
        if count >= probe["successThreshold" if good else "failureThreshold"]:
            yield good, why
        await asyncio.sleep(probe["periodSeconds"])


async def _attempt(probe: dict[str, Any], address: str, ports: Mapping[str, int]) -> tuple[bool, str]:
    """One attempt: (success, what happened). Any status from 200 to 399 is a success."""
    port = ports.get(probe["httpGet"]["port"], probe["httpGet"]["port"])
    head = f"GET {probe['httpGet'].get('path', '/')} HTTP/1.1\r\nHost: {address}:{port}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(probe["timeoutSeconds"]):
            reader, writer = await asyncio.open_connection(address, port, limit=ANSWER_BYTES_MAX)
            try:
                writer.write(head.encode())
                status = (await reader.readline()).split()[1]
            finally:
                writer.close()
            return 200 <= int(status) < 400, f"HTTP status {int(status)}"
    except TimeoutError:
        return False, f"no answer within {probe['timeoutSeconds']} s"
    except OSError as error:
        return False, str(error)
    except (ValueError, IndexError):
        return False, "no HTTP answer"
