"""Probes (docs/specs/operator.md 6.8.7)."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pavane_local.kubelet.spawn import StartError

ANSWER_BYTES_MAX = 10 * 1024  # as much of a body as the kubelet of Kubernetes reads
DEFAULTS = {"periodSeconds": 10, "timeoutSeconds": 1, "successThreshold": 1, "failureThreshold": 3}


@dataclass(frozen=True, slots=True)
class Target:
    """The container that is probed: pod address, ports by name, and how to execute a command in it."""

    address: str
    ports: Mapping[str, int]
    execute: Callable[[Sequence[str]], Awaitable[int]]

    def port(self, port: int | str) -> int:
        """A port by number or name. Raises ValueError for an unknown name."""
        if isinstance(port, int) or port.isdigit():
            return int(port)
        if port not in self.ports:
            raise ValueError(f'no container port is named "{port}"')
        return self.ports[port]


async def results(probe: dict[str, Any], target: Target) -> AsyncIterator[tuple[bool, str]]:
    """Runs a probe for ever; yields (success, why) each time that a threshold is reached, also repeatedly."""
    settings = DEFAULTS | probe
    await asyncio.sleep(settings.get("initialDelaySeconds", 0))
    count, last = 0, None
    while True:
        good, why = await attempt(settings, target)
        count = count + 1 if good == last else 1
        last = good
        if count >= settings["successThreshold" if good else "failureThreshold"]:
            yield good, why
        await asyncio.sleep(settings["periodSeconds"])


async def attempt(probe: dict[str, Any], target: Target) -> tuple[bool, str]:
    """One attempt: (success, what happened)."""
    try:
        async with asyncio.timeout(probe["timeoutSeconds"]):
            if "httpGet" in probe:
                return await _http_get(probe["httpGet"], target)
            if "tcpSocket" in probe:
                return await _tcp_socket(probe["tcpSocket"], target)
            code = await target.execute(probe["exec"]["command"])
            return code == 0, f"exit code {code}"
    except TimeoutError:
        return False, f"no answer within {probe['timeoutSeconds']} s"
    except (OSError, ValueError, StartError) as error:
        return False, str(error)


async def _tcp_socket(action: dict[str, Any], target: Target) -> tuple[bool, str]:
    _, writer = await asyncio.open_connection(action.get("host") or target.address, target.port(action["port"]))
    writer.close()
    return True, "connected"


async def _http_get(action: dict[str, Any], target: Target) -> tuple[bool, str]:
    """Any status from 200 to 399 is a success; a certificate is not checked, as in Kubernetes."""
    context = None
    if action.get("scheme") == "HTTPS":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = action.get("host") or target.address, target.port(action["port"])
    headers = {"Host": f"{host}:{port}", "User-Agent": "kube-probe/1.32", "Connection": "close"}
    headers |= {header["name"]: header["value"] for header in action.get("httpHeaders") or ()}
    lines = [f"GET {action.get('path') or '/'} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    reader, writer = await asyncio.open_connection(host, port, ssl=context, limit=ANSWER_BYTES_MAX)
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode())
        first = (await reader.readline()).split()
        if len(first) < 2 or not first[1].isdigit():
            return False, "no HTTP answer"
        return 200 <= int(first[1]) < 400, f"HTTP status {int(first[1])}"
    finally:
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await writer.wait_closed()
