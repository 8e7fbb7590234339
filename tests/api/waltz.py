"""A WaltzCluster whose servers are those of a test."""

import base64
from collections.abc import Sequence
from typing import Any

from pavane_api.kinds import WALTZ_CLUSTERS
from pavane_operator.kube.resources import SECRETS
from tests.api.plane import Plane


async def waltz_cluster(api: Plane, addresses: Sequence[str], **metadata: Any) -> None:
    """Make WaltzCluster ``ledger`` and the Secret for its clients, in place of the operator."""
    spec = {"metadata": metadata or {"raftClusterRef": {"name": "meta"}}, "tls": {"mode": "Disabled"}}
    await api.kube.create(WALTZ_CLUSTERS, {"metadata": {"name": "ledger"}, "spec": spec}, "default")
    servers = base64.b64encode("\n".join(addresses).encode()).decode()
    secret = {"metadata": {"name": "ledger-client"}, "data": {"servers": servers}}
    await api.kube.create(SECRETS, secret, "default")
