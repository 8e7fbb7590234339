"""What a resource that goes leaves in the log that it has used: its consumer (docs/specs/operator.md 2.10)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

from pavane.waltz.client import Waltz, trusting
from pavane_operator.crds.waltzcluster import DEFINITION
from pavane_operator.kinds.waltz.names import client_secret
from pavane_operator.plan.model import Observed

PATIENCE_S = 5.0  # for one server; the planner tries again


def secrets(log: str) -> tuple[str, ...]:
    """Names of the Secrets with which a log is reached; with its own certificate it lets the consumer go."""
    return client_secret(log), f"{log}-tls"


async def forget(observed: Observed, log: str, consumer: str) -> None:
    """Remove a consumer from all partitions, unless the log itself is gone or going. Raises ``WaltzError``."""
    target = observed.references.get(f"{DEFINITION.name}/{log}")
    found = observed.references.get(client_secret(log))
    if target is None or target["metadata"].get("deletionTimestamp") or found is None:
        return
    data = _decoded(found)
    own = _decoded(observed.references.get(f"{log}-tls") or {}) if "tls.crt" in data else {}
    tls = trusting(data["ca.crt"], own.get("tls.crt", ""), own.get("tls.key", "")) if "ca.crt" in data else None
    async with Waltz(data["servers"].split(), tls=tls, patience=PATIENCE_S) as client:
        known = client.consumer(consumer)

        async def leave(partition: int) -> None:
            if any(one.name == consumer for one in await client.consumers(partition)):
                await known.remove(partition)

        # One that answers nothing, such as an added one that was never open, holds up no other.
        done = await asyncio.gather(*map(leave, range(client.partition_count)), return_exceptions=True)
    for failed in done:
        if failed is not None:
            raise failed


def _decoded(secret: Mapping[str, Any]) -> dict[str, str]:
    return {name: base64.b64decode(value).decode() for name, value in (secret.get("data") or {}).items()}
