"""The kubelet: a runner for every pod, hosts files, addresses, logs (docs/specs/operator.md 6.8, 6.10)."""

import asyncio
import shutil
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pavane_local.kubelet import hosts, logs
from pavane_local.kubelet.addresses import AddressBlock
from pavane_local.kubelet.container import interrupted
from pavane_local.kubelet.logs import LogOptions
from pavane_local.kubelet.pod import PodRunner, condition
from pavane_local.kubelet.port import KubeletApi, KubeletSettings, Object
from pavane_local.kubelet.spawn import kill_all_below, signal_container


class LogsMissing(LookupError):
    """There is no such run of a container; the text says why."""


class Kubelet:
    """Runs every pod of the cluster as processes. Start `run` from the main thread (6.8.3)."""

    def __init__(self, api: KubeletApi, settings: KubeletSettings, block: AddressBlock) -> None:
        self._api = api
        self._settings = settings
        self._block = block
        self._runners: dict[str, PodRunner] = {}  # by uid
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}  # the last runner of each namespace and name
        self._slices: dict[tuple[str, str], Object] = {}
        self._namespaces: set[str] = set()
        self._stopped = False

    async def recover(self, pods: Sequence[Object], claims: Iterable[Object]) -> None:
        """Take over from a former kubelet that may have died: kill what it left, tell of all `pods` that they ended.

        Folders of pods and `claims` that are gone go too. Call it once, before `run` and before anybody reads a status.
        """
        kill_all_below(self._settings.folder / "pods")
        kept = {self._settings.pod_folder(pod) for pod in pods} | {self._volume(claim) for claim in claims}
        for folder in [*self._settings.folder.glob("pods/*/*/*"), *self._settings.folder.glob("volumes/*/*")]:
            if folder not in kept:
                shutil.rmtree(folder)
        for pod in pods:
            status = pod.get("status", {})
            keys = [key for key in ("initContainerStatuses", "containerStatuses") if status.get(key)]
            ended = {key: [interrupted(each) for each in status[key]] for key in keys}
            for container in [each for key in keys for each in status[key]]:
                signal_container(container.get("containerID", ""), signal.SIGKILL)
            unready = ("Ready", "ContainersReady")
            conditions = [
                condition(each["type"], each["type"] not in unready and each["status"] == "True", each)
                for each in status.get("conditions") or ()
            ]
            await self._api.patch_status(pod, status | ended | {"conditions": conditions})

    async def run(self) -> None:
        """Run all pods until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for resource, take in (
                ("namespaces", self._namespace),
                ("endpointslices.discovery.k8s.io", self._endpoint_slice),
                ("persistentvolumeclaims", self._claim),
                ("configmaps", self._reference("configmaps")),
                ("secrets", self._reference("secrets")),
                ("pods", self._pod),
            ):
                group.create_task(self._follow(resource, take), name=f"kubelet follows {resource}")

    async def stop(self, *first: str) -> None:
        """End all processes and keep the pods: those of the namespaces `first` before all others."""
        self._stopped = True
        for chosen in (True, False):
            ending = [key for key in self._tasks if (key[0] in first) == chosen]
            for runner in self._runners.values():
                if (runner.pod["metadata"]["namespace"] in first) == chosen:
                    runner.stop()
            await asyncio.gather(*(self._tasks[key] for key in ending), return_exceptions=True)

    def stream(self, pod: Object, container: str, options: LogOptions, *, previous: bool) -> logs.Pieces:
        """The log of a container's present or previous run, in pieces. Raises LogsMissing at once."""
        name = pod["metadata"]["name"]
        runner = self._runners.get(pod["metadata"]["uid"])
        if runner is None or (chosen := runner.container(container)) is None:
            raise LogsMissing(f'container "{container}" in pod "{name}" has no log: the pod does not run yet')
        if previous and not chosen.restarts:
            raise LogsMissing(f'previous terminated container "{container}" in pod "{name}" not found')
        path = chosen.folder / f"{chosen.restarts - int(previous)}.log"
        if not path.exists():
            reason = chosen.state.get("waiting", {}).get("reason", "ContainerCreating")
            raise LogsMissing(f'container "{container}" in pod "{name}" is waiting to start: {reason}')
        return logs.read(path, options, None if previous else chosen.log)

    async def _follow(self, resource: str, take: Callable[[str, Object], Any]) -> None:
        async for kind, found in self._api.watch(resource):
            take(kind, found)

    def _pod(self, kind: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        runner = self._runners.get(uid)
        if kind == "DELETED":
            if runner is not None:
                runner.vanished()
        elif runner is not None:
            runner.update(pod)
        elif not self._stopped:
            loop = asyncio.get_running_loop()
            address = self._block.take(loop.time(), pod.get("status", {}).get("podIP"))
            runner = self._runners[uid] = PodRunner(pod, address, self._api, self._settings)
            runner.update(pod)
            running = self._run(runner, self._tasks.get(_key(pod)))
            self._tasks[_key(pod)] = self._group.create_task(running, name=f"pod {'/'.join(_key(pod))}")

    async def _run(self, runner: PodRunner, former: asyncio.Task[None] | None) -> None:
        """Run a pod once its namesake has ended: never two pods of one identity."""
        if former is not None:
            await asyncio.wait({former})
        try:
            await runner.run()
        finally:
            self._block.release(runner.address, asyncio.get_running_loop().time())
            if self._tasks.get(_key(runner.pod)) is asyncio.current_task():
                del self._tasks[_key(runner.pod)]
            del self._runners[runner.pod["metadata"]["uid"]]

    def _reference(self, resource: str) -> Callable[[str, Object], None]:
        def take(_kind: str, found: Object) -> None:
            for runner in self._runners.values():
                if runner.pod["metadata"]["namespace"] == found["metadata"]["namespace"]:
                    runner.referenced_changed(resource, found["metadata"]["name"])

        return take

    def _claim(self, kind: str, claim: Object) -> None:
        """A claim is a folder, bound at once; the folder goes with it."""
        if kind == "DELETED":
            shutil.rmtree(self._volume(claim), ignore_errors=True)
        else:
            self._reference("persistentvolumeclaims")(kind, claim)

    def _volume(self, claim: Object) -> Path:
        return self._settings.folder.joinpath("volumes", *_key(claim))

    def _namespace(self, kind: str, namespace: Object) -> None:
        name = namespace["metadata"]["name"]
        if kind == "DELETED":
            self._namespaces.discard(name)
            self._settings.hosts_file(name).unlink(missing_ok=True)
        elif name not in self._namespaces:
            self._namespaces.add(name)
            self._write_hosts()

    def _endpoint_slice(self, kind: str, endpoint_slice: Object) -> None:
        if kind == "DELETED":
            self._slices.pop(_key(endpoint_slice), None)
        else:
            self._slices[_key(endpoint_slice)] = endpoint_slice
        self._write_hosts()

    def _write_hosts(self) -> None:
        for name in self._namespaces:
            hosts.replace(self._settings.hosts_file(name), hosts.render(name, self._slices.values()))


def _key(found: Object) -> tuple[str, str]:
    return found["metadata"]["namespace"], found["metadata"]["name"]
