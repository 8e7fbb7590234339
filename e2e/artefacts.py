"""What is kept of a test that failed: its objects, their events, the logs of its pods and of the platform, spans."""

import contextlib
from pathlib import Path

import yaml

from e2e.cluster import RaftTest
from e2e.targets.base import SYSTEM
from pavane_api.kinds import RAFT_CLUSTERS
from pavane_operator.kube import KubeError
from pavane_operator.kube.resources import BUILT_IN, CRDS, NAMESPACES, PODS, SECRETS

LOG_LINES = 5000
"""Of each container from the end; more hides what matters."""


async def keep(test: RaftTest, folder: Path) -> None:
    """Write the artefacts of a test into ``folder`` and print where they are; what cannot be read is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    for resource in (RAFT_CLUSTERS, *(each for each in BUILT_IN if each not in (NAMESPACES, CRDS, SECRETS))):
        with contextlib.suppress(KubeError):
            found = (await test.kube.list_all(resource, test.namespace)).items
            if found:
                (folder / f"{resource.plural}.yaml").write_text(yaml.safe_dump_all(found, sort_keys=False))
    for namespace in (test.namespace, SYSTEM):
        with contextlib.suppress(KubeError):
            for pod in (await test.kube.list_all(PODS, namespace)).items:
                await _logs(test, pod["metadata"]["name"], namespace, folder)
    spans = test.platform.run("trace", "list", "-o", "json", check=False)
    (folder / "traces.json").write_text(spans.stdout or spans.stderr)
    print(f"artefacts: {folder}")  # noqa: T201


async def _logs(test: RaftTest, pod: str, namespace: str, folder: Path) -> None:
    for previous, suffix in ((False, "log"), (True, "previous.log")):
        with contextlib.suppress(KubeError):
            pieces = test.kube.pod_logs(pod, namespace, previous=previous, tail_lines=LOG_LINES, timestamps=True)
            if content := b"".join([piece async for piece in pieces]):
                (folder / f"{namespace}.{pod}.{suffix}").write_bytes(content)
