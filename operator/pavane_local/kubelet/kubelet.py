"""The kubelet: a runner for every pod, hosts files, addresses, logs (docs/specs/operator.md 6.8, 6.10)."""

import asyncio
import logging
import shutil
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

from pavane_local.api.cluster import Cluster, WriteOptions
from pavane_local.controllers.endpoints import SERVICE_LABEL
from pavane_local.controllers.loop import changes, name_of
from pavane_local.kubelet import logs
from pavane_local.kubelet.addresses import AddressBlock
from pavane_local.kubelet.container import interrupted
from pavane_local.kubelet.logs import LogOptions
from pavane_local.kubelet.pod import WRITE_AGAIN_SECONDS, KubeletSettings, PodRunner
from pavane_local.kubelet.spawn import kill_all_below
from pavane_local.store import Object

_log = logging.getLogger(__name__)

SLICES = "endpointslices.discovery.k8s.io"
CLAIMS = "persistentvolumeclaims"


class Kubelet:
    """Runs every pod of the cluster as processes. Start `run` from the main thread (6.8.3)."""

    def __init__(self, cluster: Cluster, settings: KubeletSettings, block: AddressBlock) -> None:
        self._cluster = cluster
        self._settings = settings
        self._block = block
        self._runners: dict[str, PodRunner] = {}  # by uid
        self._tasks: dict[str, asyncio.Task[None]] = {}  # their runs, by uid
        self._stopped = False
        self._hosts_again: asyncio.TimerHandle | None = None

    async def recover(self) -> None:
        """Take over from a former kubelet that may have died: kill what it left, tell of all pods that they ended.

        Folders of pods and claims that are gone go too. Call it once, before `run` and before anybody reads a status.
        """
        folder, pods = self._settings.folder, self._cluster.list("pods")
        kill_all_below(folder / "pods")
        kept = {self._settings.pod_folder(pod) for pod in pods}
        kept |= {self._settings.claim_folder(claim) for claim in self._cluster.list(CLAIMS)}
        for found in [*folder.glob("pods/*/*/*"), *folder.glob("volumes/*/*")]:
            if found not in kept:
                shutil.rmtree(found)
        for pod in pods:
            containers = [interrupted(each) for each in pod["status"].get("containerStatuses") or ()]
            status = {"conditions": [], "containerStatuses": containers}
            options = WriteOptions(wait_for_room=False)
            await self._cluster.patch("pods", *name_of(pod), {"status": status}, options=options, subresource="status")

    async def run(self) -> None:
        """Run all pods until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for resource, take in {
                "namespaces": self._write_hosts, SLICES: self._write_hosts, CLAIMS: self._refresh,
                "configmaps": self._refresh, "secrets": self._refresh, "pods": self._pod,
            }.items():  # fmt: skip
                group.create_task(self._follow(resource, take), name=f"kubelet follows {resource}")

    async def stop(self, first: str) -> None:
        """End all processes and keep the pods: those of the namespace `first` before all others."""
        self._stopped = True
        for chosen in (True, False):
            ending = [uid for uid, each in self._runners.items() if (name_of(each.pod)[0] == first) == chosen]
            for uid in ending:
                self._runners[uid].end()
            await asyncio.gather(*(self._tasks[uid] for uid in ending), return_exceptions=True)

    def stream(
        self, pod: Object, container: str, options: LogOptions, *, previous: bool
    ) -> AsyncGenerator[bytes, None]:
        """The log of a container's present or previous run, in pieces. Raises LookupError at once."""
        about = f'container "{container}" in pod "{pod["metadata"]["name"]}"'
        runner = self._runners.get(pod["metadata"]["uid"])
        chosen = runner and runner.containers.get(container)
        path = chosen and chosen.folder / f"{chosen.restarts - int(previous)}.log"
        if not chosen or not path or not path.exists():
            raise LookupError(f"{about} has not run yet" if not previous else f"previous terminated {about} not found")
        return logs.read(path, options, None if previous else chosen.log)

    async def _follow(self, resource: str, take: Callable[[str, Object], Any]) -> None:
        async for kind, found in changes(self._cluster, resource):
            take(kind, found)

    def _pod(self, kind: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        runner = self._runners.get(uid)
        if runner is not None:
            runner.update(pod, gone=kind == "DELETED")
        elif kind != "DELETED" and not self._stopped:
            address = self._block.take(pod.get("status", {}).get("podIP"))
            namesakes = [self._tasks[key] for key, each in self._runners.items() if name_of(each.pod) == name_of(pod)]
            runner = self._runners[uid] = PodRunner(pod, address, self._cluster, self._settings)
            runner.update(pod)
            name = f"pod {'/'.join(name_of(pod))}"
            self._tasks[uid] = self._group.create_task(self._run(uid, runner, namesakes), name=name)

    async def _run(self, uid: str, runner: PodRunner, namesakes: list[asyncio.Task[None]]) -> None:
        """Run a pod once its namesakes have ended: never two pods of one identity."""
        if namesakes:
            await asyncio.wait(namesakes)
        try:
            await runner.run()
        finally:
            self._block.release(runner.address)
            del self._runners[uid], self._tasks[uid]

    def _refresh(self, kind: str, found: Object) -> None:
        """Let the pods of a namespace look at what their volumes show; a claim is a folder, and takes it along."""
        if kind == "DELETED" and found["kind"] == "PersistentVolumeClaim":
            shutil.rmtree(self._settings.claim_folder(found), ignore_errors=True)
        for runner in self._runners.values():
            if name_of(runner.pod)[0] == name_of(found)[0]:
                runner.refresh.set()

    def _write_hosts(self, kind: str, found: Object) -> None:
        try:
            self._write_hosts_files(kind, found)
        except OSError as error:  # a full disk, for one
            if self._hosts_again is None:
                _log.warning("the hosts files are written again in %s s: %s", WRITE_AGAIN_SECONDS, error)
                self._hosts_again = asyncio.get_running_loop().call_later(WRITE_AGAIN_SECONDS, self._hosts_due)

    def _hosts_due(self) -> None:
        self._hosts_again = None
        self._write_hosts("MODIFIED", {})

    def _write_hosts_files(self, kind: str, found: Object) -> None:
        folder = self._settings.folder / "hosts"
        folder.mkdir(exist_ok=True)
        if kind == "DELETED" and found["kind"] == "Namespace":
            (folder / found["metadata"]["name"]).unlink(missing_ok=True)
        slices = self._cluster.list(SLICES)
        for namespace in self._cluster.list("namespaces"):
            path = folder / namespace["metadata"]["name"]
            text = hosts_text(path.name, slices)
            if not path.exists() or path.read_text() != text:
                scratch = path.with_name(f".{path.name}.new")
                scratch.write_text(text)
                scratch.replace(path)


def hosts_text(namespace: str, slices: Iterable[Object]) -> str:
    """The hosts file of a namespace: all ready endpoints of `slices` (EndpointSlices of all namespaces)."""
    lines = []
    for each in slices:
        own, service = each["metadata"]["namespace"], each["metadata"].get("labels", {}).get(SERVICE_LABEL)
        names = [f"{service}{suffix}" for suffix in (f".{own}", f".{own}.svc", f".{own}.svc.cluster.local")]
        names += [service] if own == namespace else []
        for endpoint in each.get("endpoints") or () if service else ():
            if endpoint.get("conditions", {}).get("ready"):
                hosts = [f"{endpoint['hostname']}.{name}" for name in names] if "hostname" in endpoint else []
                lines += [f"{address} {' '.join([*names, *hosts])}\n" for address in endpoint["addresses"]]
    return "".join(sorted(lines))
