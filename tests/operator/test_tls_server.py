"""Years of certificates in Secrets on an API server: what is replaced there is gone (docs/specs/operator.md 4.1)."""

from datetime import UTC, datetime
from pathlib import Path

from pavane_local.platform import LocalSettings, local_cluster
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.raft import kind
from pavane_operator.kube import KubeClient, Target
from pavane_operator.kube.resources import SECRETS, custom
from pavane_operator.runtime.cache import Cache
from pavane_operator.runtime.execute import Executor
from pavane_operator.runtime.observe import children_of, resource_of
from pavane_operator.tls.secrets import Identity, look

RAFT_CLUSTERS = custom("RaftCluster", "raftclusters")
DEFAULTS = RenderDefaults("image", "0.1.0", None, b"k" * 32, "pavane-system")
LABELS = {"app.kubernetes.io/name": "raftcluster", "app.kubernetes.io/instance": "log"}
IDENTITY = Identity(LABELS, ("log.default.svc",))
ONE = {"tls.crt", "tls.key"}
TWO = ONE | {"former.crt", "former.key"}
AUTHORITIES = 3


async def test_an_authority_that_was_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    settings = LocalSettings(tmp_path / "cluster", fast=True, platform_pods=False)
    async with local_cluster(settings) as local, await KubeClient.connect(Target(local.kubeconfig)) as kube:
        body = {"metadata": {"name": "log"}, "spec": {"stateMachine": "Broadcast"}}
        resource = resource_of(kind(DEFAULTS), await kube.create(RAFT_CLUSTERS, body, "default"))
        cache = Cache()
        executor = Executor(kube, RAFT_CLUSTERS, cache, lambda: datetime.now(UTC))
        now, authorities, held = datetime.now(UTC), set[str](), list[set[str]]()
        while len(authorities) < AUTHORITIES or held[-1] != ONE:
            children = children_of(resource.uid, cache.members("RaftCluster", "default", "log"))
            found = look(resource, children, IDENTITY, None, now).plan
            for action in found.actions:
                await executor.execute(resource, action)
            now = found.again_at or now
            stored = await kube.get(SECRETS, "log-ca", "default")
            authorities.add(stored["data"]["tls.crt"])
            if not held or held[-1] != set(stored["data"]):
                held.append(set(stored["data"]))
        assert held == [ONE, *[TWO, ONE] * (AUTHORITIES - 1)]
