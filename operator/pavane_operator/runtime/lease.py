"""The Lease `pavane-operator` as the source of the operator's epoch.

It is taken once, at the start, by one write, and not renewed: its number of transitions grows at each start, so every
operator supersedes all earlier ones on every stage stream (docs/specs/operator.md 3, 5.6).
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime

from pavane_operator.kube import Conflict, KubeClient
from pavane_operator.kube.resources import LEASES, Object

LEASE_NAME = "pavane-operator"
LEASE_DURATION_S = 15
RETRY_S = 0.2


async def take(kube: KubeClient, namespace: str, identity: str, now: datetime) -> int:
    """Write our `identity` into the Lease and return its transitions: the greatest epoch ever given, plus one.

    `now` is in UTC. Raises KubeError, but no Conflict: the Lease is read again when another operator was faster.
    """
    while True:
        present = await kube.get_or_none(LEASES, LEASE_NAME, namespace)
        transitions = _transitions(present) + 1
        with contextlib.suppress(Conflict):
            await _write(kube, namespace, _lease(present, identity, transitions, now))
            return transitions
        await asyncio.sleep(RETRY_S)


async def raise_epoch(kube: KubeClient, namespace: str, identity: str, now: datetime, *, above: int) -> int | None:
    """Number of transitions greater than `above` (somebody deleted the Lease, so it began anew), written as ours.

    None when the Lease does not name us any more: then another operator is at work. Raises KubeError; Conflict means
    that somebody is writing it at this moment.
    """
    present = await kube.get_or_none(LEASES, LEASE_NAME, namespace)
    if present is None or (present.get("spec") or {}).get("holderIdentity") != identity:
        return None
    transitions = max(_transitions(present), above) + 1
    await _write(kube, namespace, _lease(present, identity, transitions, now))
    return transitions


async def _write(kube: KubeClient, namespace: str, lease: Object) -> None:
    if "resourceVersion" in lease["metadata"]:
        await kube.replace(LEASES, lease, namespace)
    else:
        await kube.create(LEASES, lease, namespace)


def _transitions(lease: Object | None) -> int:
    return 0 if lease is None else int((lease.get("spec") or {}).get("leaseTransitions") or 0)


def _lease(present: Object | None, identity: str, transitions: int, now: datetime) -> Object:
    metadata: Object = {"name": LEASE_NAME}
    if present is not None:
        metadata = {
            "name": LEASE_NAME,
            "resourceVersion": present["metadata"]["resourceVersion"],
        }
    stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "metadata": metadata,
        "spec": {
            "holderIdentity": identity,
            "leaseTransitions": transitions,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "acquireTime": stamp,
            "renewTime": stamp,
        },
    }
