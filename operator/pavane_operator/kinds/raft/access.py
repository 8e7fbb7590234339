"""A Raft client for a RaftCluster, from outside its pods: for the control plane and the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pavane.raft.client import RaftClient
from pavane.raft.keys import RaftKeys
from pavane.runtime import names
from pavane_operator.crds.raftcluster import SecretRef
from pavane_operator.kinds.raft.keys import known, name_of
from pavane_operator.kube import KubeClient
from pavane_operator.kube.resources import SECRETS, Object

PORT_NAME = "raft"


class NotServing(Exception):
    """The cluster serves no clients yet."""


async def raft_client(
    kube: KubeClient, document: Object, resolve: Callable[[str], Sequence[str]] = names.resolve
) -> RaftClient:
    """A client, not yet open, of the RaftCluster `document`, whose status names its endpoints. Raises as `way_to`."""
    seeds, keys = await way_to(kube, document)
    return RaftClient(seeds, keys.ident, curve=keys.curve, resolve=resolve)


async def way_to(kube: KubeClient, document: Object) -> tuple[list[str], RaftKeys]:
    """The urls of the RaftCluster `document`, from its status, and what a client is known by.

    Raises NotServing while there are none, KubeError when its keys cannot be read, ValueError when they are damaged.
    """
    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    endpoints = (document.get("status") or {}).get("endpoints") or ()
    seeds = [f"tcp://{item['address']}:{item['port']}" for item in endpoints if item.get("name") == PORT_NAME]
    if not seeds:
        raise NotServing(f"RaftCluster {name} serves no clients yet: `pavane why raft/{name}` says what it waits for")
    given = (document.get("spec") or {}).get("secretRef")
    reference = None if given is None else SecretRef.model_validate(given)
    references = {}
    if reference is not None:
        references[reference.name] = await kube.get(SECRETS, reference.name, namespace)
    return seeds, known(await kube.get(SECRETS, name_of(name), namespace), reference, references)
