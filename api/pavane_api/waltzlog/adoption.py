"""Ask the servers of a log to adopt it, by the RaftCluster that has lost its registry (docs/specs/waltz.md 13.6)."""

import asyncio
import uuid

from pavane.pods.waltz_adoption import Adoption, request_path
from pavane.waltz.state.metadata import Paths
from pavane_api.control import Control
from pavane_api.kinds import WALTZ_CLUSTERS
from pavane_api.problems import Conflict, Unavailable
from pavane_api.raft_clients import Use
from pavane_api.waltzlog.schemas import AdoptedLog
from pavane_operator.kinds.waltz.names import raft_root, storage_addresses

ANSWER_S = 25.0  # for a server to take it up and to ask all storage nodes; callers wait 30 s
LOOK_S = 0.2


async def adopted(control: Control, namespace: str, name: str, *, dry_run: bool) -> AdoptedLog:
    """Return the answer of the server that took it up. Raises ``Conflict`` and ``Unavailable``, which say why not."""
    document = await control.kube.get(WALTZ_CLUSTERS, name, namespace)
    spec = document["spec"]
    ref = spec["metadata"].get("raftClusterRef")
    generation = (document.get("status") or {}).get("activeGeneration")
    if ref is None:
        raise Conflict(f"The registry of WaltzCluster {name} is in ZooKeeper: bring its former data back there.")
    if not generation:
        raise Conflict(f"WaltzCluster {name} has never served: there is nothing to be adopted.")
    root = raft_root(spec.get("clusterName") or name, document["metadata"]["uid"])
    path = request_path(root).encode()
    servers = (spec.get("servers") or {}).get("replicas", 1)
    counts = (document.get("status") or {}).get("partitions") or {}
    keys = 0 if (found := counts.get("keys", 0)) == counts.get("total") else found
    if counts.get("moving"):
        raise Conflict(
            f"Partitions of WaltzCluster {name} were on their way to other storage nodes when the registry was lost, "
            "so nobody knows which copies count: restore a backup of the registry."
        )
    nodes = counts.get("nodes", 0)
    asked = Adoption(
        id=uuid.uuid4().hex,
        generation=generation,
        servers=servers,
        dry_run=dry_run,
        keys=keys,
        storage=tuple(storage_addresses(name, namespace, nodes)),
    )
    async with control.raft.of(namespace, ref["name"], Use.TREE) as client:
        if await client.tree.exists(Paths(root).servers.encode()):
            raise Conflict(f"RaftCluster {ref['name']} holds the registry of WaltzCluster {name}: nothing is lost.")
        if await client.tree.exists(path):  # of somebody who did not wait
            await client.tree.remove(path)
        await client.tree.create(path, asked.model_dump_json(exclude_defaults=True).encode())
        try:
            async with asyncio.timeout(ANSWER_S):
                while True:
                    node = await client.tree.get(path)
                    answer = None if node is None else Adoption.model_validate_json(node.data)
                    if answer is None or answer.id != asked.id:
                        raise Conflict("Somebody else asks for the same now: wait for that.")
                    if answer.state in ("done", "refused"):
                        break
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise Unavailable(
                f"No server of generation {generation} has carried it out within {ANSWER_S:.0f} s; `kubectl get pods` "
                "says whether they run. Ask again."
            ) from None
        await client.tree.remove(path)
    if answer.state == "refused":
        raise Conflict(f"Nothing was adopted: {answer.why}.")
    return AdoptedLog(
        partitions=answer.partitions, transactions=answer.transactions, copied_anew=dict(answer.copied_anew)
    )
