"""A Raft client for a RaftCluster, from outside its pods."""

import base64
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from pavane.raft.client import RaftClient
from pavane.runtime import names
from pavane_cli.failures import ExitCode, UserError
from pavane_operator import kube
from pavane_operator.kube.resources import SECRETS

HOSTS_FOLDER = "hosts"
SECRET_KEY = "secret"  # noqa: S105 - the name of a key, not a secret


async def raft_client(client: kube.KubeClient, document: kube.Object, kubeconfig: Path | None) -> RaftClient:
    """Return a client, not yet open, of the RaftCluster ``document``.

    On a local cluster (``kubeconfig`` lies in its folder) names are looked up in the cluster's hosts file. Raises
    ``UserError`` while the resource serves no clients.
    """
    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    endpoints = (document.get("status") or {}).get("endpoints") or ()
    seeds = [f"tcp://{item['address']}:{item['port']}" for item in endpoints if item["name"] == "raft"]
    if not seeds:
        raise UserError(f"{name} serves no clients yet: `pavane why raft/{name}` says why", ExitCode.REFUSED)
    keys = await client.get(SECRETS, f"{name}-keys", namespace)
    secret = base64.b64decode(keys["data"][SECRET_KEY])
    return RaftClient(seeds, secret, resolve=_resolver(kubeconfig, namespace))


def _resolver(kubeconfig: Path | None, namespace: str) -> Callable[[str], Sequence[str]]:
    hosts = kubeconfig.parent / HOSTS_FOLDER / namespace if kubeconfig else None
    return functools.partial(_resolve, hosts) if hosts is not None and hosts.exists() else names.resolve


def _resolve(hosts: Path, host: str) -> Sequence[str]:
    listed = names.parse_hosts(hosts.read_text(encoding="utf-8")).get(host.rstrip(".").lower())
    return listed or names.resolve(host)
