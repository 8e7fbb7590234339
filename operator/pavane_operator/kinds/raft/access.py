"""A Raft client for a RaftCluster, from outside its pods: for the control plane and the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pavane.raft.client import RaftClient
from pavane.raft.keys import RaftKeys
from pavane.runtime import names
from pavane_operator.crds.raftcluster import SecretRef
from pavane_operator.kinds.raft import names as raft_names
from pavane_operator.kinds.raft.keys import known, name_of
from pavane_operator.kube import KubeClient
from pavane_operator.kube.resources import SECRETS, Object

PORT_NAME = "raft"


class NotServing(Exception):
    """The cluster serves no clients."""


class Suspended(NotServing):
    """It is suspended: nothing runs."""


async def raft_client(
    kube: KubeClient, document: Object, resolve: Callable[[str], Sequence[str]] = names.resolve
) -> RaftClient:
    """A client, not yet open, of the RaftCluster `document`; it knows all members, so that one that is left over in an
    outage is found although it is not Ready. Raises as `way_to`, NotServing while no generation is active.
    """
    refuse_suspended(document)
    seeds = list(dict.fromkeys((*_endpoints(document), *_members(document))))
    if not seeds:
        raise _not_serving(document)
    keys = await _keys(kube, document)
    return RaftClient(seeds, keys.ident, curve=keys.curve, resolve=resolve)


async def way_to(kube: KubeClient, document: Object) -> tuple[list[str], RaftKeys]:
    """The urls of the RaftCluster `document`, from its status, and what a client is known by.

    Raises NotServing while there are none, KubeError when its keys cannot be read, ValueError when they are damaged.
    """
    refuse_suspended(document)
    seeds = _endpoints(document)
    if not seeds:
        raise _not_serving(document)
    return seeds, await _keys(kube, document)


def refuse_suspended(document: Object) -> None:
    """Raise Suspended if the RaftCluster is; no pod would answer."""
    conditions = (document.get("status") or {}).get("conditions") or ()
    if any(each["type"] == "Ready" and each["reason"] == "Suspended" for each in conditions):
        name = document["metadata"]["name"]
        raise Suspended(f"RaftCluster {name} is suspended: start it with `pavane resume-resource raft/{name}`")


def _not_serving(document: Object) -> NotServing:
    name = document["metadata"]["name"]
    return NotServing(f"RaftCluster {name} serves no clients yet: `pavane why raft/{name}` says what it waits for")


def _endpoints(document: Object) -> list[str]:
    endpoints = (document.get("status") or {}).get("endpoints") or ()
    return [f"tcp://{item['address']}:{item['port']}" for item in endpoints if item.get("name") == PORT_NAME]


def _members(document: Object) -> list[str]:
    """Urls of the pods of the active generation, Ready or not."""
    metadata, status = document["metadata"], document.get("status") or {}
    active = status.get("activeGeneration")
    pods = max((each["pods"] for each in status.get("generations") or () if each["number"] == active), default=0)
    found = raft_names.members(metadata["name"], metadata["namespace"], active or 0, pods)
    return [url for _, url in found]


async def _keys(kube: KubeClient, document: Object) -> RaftKeys:
    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    given = (document.get("spec") or {}).get("secretRef")
    reference = None if given is None else SecretRef.model_validate(given)
    references = {}
    if reference is not None:
        references[reference.name] = await kube.get(SECRETS, reference.name, namespace)
    return known(await kube.get(SECRETS, name_of(name), namespace), reference, references)
