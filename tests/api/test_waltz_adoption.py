"""A log is adopted over REST: by a real peer without its registry, a server that is asked by it, and a storage node."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pavane.pods.waltz_adoption import Adoption, adopt_if_asked, request_path
from pavane.pods.waltz_metadata import RaftMetadata
from pavane.raft.client import RaftClient
from pavane.waltz.aio.cluster import read_rollout
from pavane.waltz.client import Waltz
from pavane.waltz.wire.blobs import Rollout
from pavane_api.kinds import WALTZ_CLUSTERS
from pavane_operator.kinds.waltz.names import raft_root
from tests.api.plane import IDENT, Plane, plane, served
from tests.services.waltz.running import Log, running_log

BASE = "/api/v1/namespaces/default/waltzclusters/ledger/partitions/adopt"


async def cluster(api: Plane, generation: int | None) -> str:
    """Make WaltzCluster ``ledger`` and return the root of its registry."""
    spec = {"metadata": {"raftClusterRef": {"name": "meta"}}, "servers": {"replicas": 2}, "tls": {"mode": "Disabled"}}
    body = await api.kube.create(WALTZ_CLUSTERS, {"metadata": {"name": "ledger"}, "spec": spec}, "default")
    if generation is not None:
        status = {"metadata": {"name": "ledger"}, "status": {"activeGeneration": generation}}
        await api.kube.apply_status(WALTZ_CLUSTERS, status, "default")
    return raft_root("ledger", body["metadata"]["uid"])


async def serving(log: Log, generation: int) -> None:
    """Do what the pods of a generation do: look whether somebody asks."""
    while True:
        await adopt_if_asked(log.metadata, log.config, generation, None)
        await asyncio.sleep(0.05)


async def test_a_lost_registry_is_made_again_and_the_log_goes_on(tmp_path: Path) -> None:
    async with plane(tmp_path) as api, served(api, tmp_path, "Tree", "meta") as peer:
        root = await cluster(api, 3)
        async with running_log(tmp_path, nodes=1, root=root) as log:
            await log.settled()
            async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
                for number in range(3):
                    await client.append(0, b"%d" % number)
            await log.servers.pop().stop()
            config, port = log.config, log.nodes[0].tools.port
            async with RaftMetadata(RaftClient([peer.bound], IDENT.encode())) as store:
                await store.create(request_path(root), b"somebody else's, who did not wait")
                log.metadata, log.config = store, replace(config, admin_port=port)
                asked = [asyncio.create_task(serving(log, generation)) for generation in (3, 3, 2)]
                try:
                    answer = await api.http.post(f"{BASE}?dryRun=true")
                    assert (answer.status_code, answer.json()["transactions"]) == (200, 3), answer.text
                    assert await store.get(root) is None
                    await log.stop_node(0)
                    answer = await api.http.post(BASE)
                    assert (answer.status_code, "no majority" in answer.json()["detail"]) == (409, True), answer.text
                    await log.start_node(0)
                    log.config = replace(config, admin_port=log.nodes[0].tools.port)
                    answer = await api.http.post(BASE)
                    assert answer.json() == {"partitions": 1, "transactions": 3, "copiedAnew": {}}
                    assert await read_rollout(store, root) == Rollout(3, 2)
                    assert await store.get(request_path(root)) is None
                finally:
                    for task in asked:
                        task.cancel()
                        with suppress(asyncio.CancelledError):
                            await task
                await log.start_server(generation=3)
                await log.settled()
                async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
                    assert await client.append(0, b"3") == 3
                    assert [each.data async for each in client.read(0, 0, 4)] == [b"0", b"1", b"2", b"3"]
                answer = await api.http.post(BASE)
                assert (answer.status_code, "nothing is lost" in answer.json()["detail"]) == (409, True)
                await log.servers.pop().stop()


async def test_a_log_that_never_served_is_not_adopted(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await cluster(api, None)
        answer = await api.http.post(BASE)
        assert (answer.status_code, "never served" in answer.json()["detail"]) == (409, True)


async def test_a_server_leaves_what_others_have_taken_up(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log:
        path = request_path(log.config.root)
        taken = Adoption(id="a", generation=3, servers=2, dry_run=True, state="taken")
        await log.metadata.create(path, taken.model_dump_json().encode())
        assert await adopt_if_asked(log.metadata, log.config, 3, None) is None
