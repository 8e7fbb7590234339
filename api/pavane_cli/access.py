"""A Raft client for a RaftCluster, from a shell: on a local cluster its hosts file stands in for DNS."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from pavane.raft.client import RaftClient
from pavane.runtime import names
from pavane_cli.failures import ExitCode, as_user_error
from pavane_operator import kube
from pavane_operator.kinds.raft import access

HOSTS_FOLDER = "hosts"


async def raft_client(client: kube.KubeClient, document: kube.Object, kubeconfig: Path | None) -> RaftClient:
    """Return a client, not yet open, of the RaftCluster ``document``.

    On a local cluster (``kubeconfig`` lies in its folder) names are looked up in the cluster's hosts file. Raises
    ``UserError`` while the resource serves no clients, or when its keys are damaged.
    """
    with as_user_error(access.NotServing, ValueError, code=ExitCode.REFUSED):
        return await access.raft_client(client, document, _resolver(kubeconfig, document["metadata"]["namespace"]))


def _resolver(kubeconfig: Path | None, namespace: str) -> Callable[[str], Sequence[str]]:
    hosts = kubeconfig.parent / HOSTS_FOLDER / namespace if kubeconfig else None
    return functools.partial(_resolve, hosts) if hosts is not None and hosts.exists() else names.resolve


def _resolve(hosts: Path, host: str) -> Sequence[str]:
    return names.resolve_among(names.parse_hosts(hosts.read_text(encoding="utf-8")), host)
