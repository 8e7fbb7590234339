"""Who is in the group of a SwimGroup, as one of its pods tells (docs/specs/operator.md 4.2)."""

from collections.abc import Mapping

from pavane_api.kinds import SWIM_GROUPS
from pavane_api.problems import Unavailable
from pavane_api.swimmembers.schemas import DeadMember, GroupMember, GroupMembers
from pavane_operator import kube
from pavane_operator.kinds.swim.access import NotServing, group_members
from pavane_operator.kinds.swim.names import NAMES, member_id


async def members(client: kube.KubeClient, namespace: str, name: str) -> GroupMembers:
    """Ask a pod of the active generation. Raises ``kube.NotFound``, and ``Unavailable`` while none answers."""
    document = await client.get(SWIM_GROUPS, name, namespace)
    try:
        async with kube.pods_http() as http:
            told = await group_members(http, document)
    except NotServing as error:
        raise Unavailable(f"{error}.") from error
    pods = _pods(document)
    items = [
        GroupMember(
            id=each.id,
            pod=pods.get(each.id),
            foreign=each.id not in pods,
            address=each.address,
            state=_camel(each.state.name),
            stage=_camel(each.stage.name),
            rollout=each.rollout,
            incarnation=each.gen,
            meta=each.meta,
        )
        for each in told.members.values()
    ]
    dead = [
        DeadMember(id=each.id, pod=pods.get(each.id), rollout=each.rollout, incarnation=each.gen)
        for each in told.dead_members
    ]
    asked = pods.get(told.id, str(told.id))
    return GroupMembers(asked=asked, digest=told.digest, dead=told.dead, dead_members=dead, items=items)


def _pods(document: kube.Object) -> Mapping[int, str]:
    """Return the names of the resource's pods, of all generations that have some, by their ids in the group."""
    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    wanted: int = document["spec"]["replicas"]
    pods = (
        NAMES.pod(name, generation["number"], ordinal)
        for generation in (document.get("status") or {}).get("generations") or ()
        for ordinal in range(max(wanted, generation["pods"]))
    )
    return {member_id(namespace, pod): pod for pod in pods}


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
