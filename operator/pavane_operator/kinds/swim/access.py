"""The members of a SwimGroup, from outside its pods: for the control plane and the command line."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import httpx2

from pavane.runtime import names as resolving
from pavane_operator.crds.swimgroup import DEFINITION
from pavane_operator.kinds.swim.members import Table, ask
from pavane_operator.kinds.swim.names import NAMES
from pavane_operator.kube.resources import Object

PORT_NAME = "swim"
ASK_TIMEOUT_S = 2.0
"""Per pod, one after the other until one answers."""
ASKED_MAX = 3
"""Pods that are asked at most: who waits for them is a person."""


class NotServing(Exception):
    """No member of the group answers."""


async def group_members(
    http: httpx2.AsyncClient, document: Object, resolve: Callable[[str], Sequence[str]] = resolving.resolve_service
) -> Table:
    """What a member of the SwimGroup `document` knows; its status names where members are. Raises NotServing."""
    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    status = document.get("status") or {}
    endpoints = [item["address"] for item in status.get("endpoints") or () if item.get("name") == PORT_NAME]
    if endpoints == [f"{name}.{namespace}.svc"]:  # the public Service has no ops port: the pods themselves do
        host = NAMES.headless_host(name, namespace, status.get("activeGeneration") or 0)
        try:
            endpoints = list(await resolving.look_up(resolve, host))
        except OSError:
            endpoints = []
    for address in random.sample(endpoints, min(ASKED_MAX, len(endpoints))):
        table = await ask(http, address, ASK_TIMEOUT_S)
        if table is not None:
            return table
    raise NotServing(f"no member of {DEFINITION.name} {name} answers: `pavane why swim/{name}` says what it waits for")
