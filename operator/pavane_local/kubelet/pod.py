"""One pod: volumes, init containers, containers, status, end (docs/specs/operator.md 6.8)."""

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pavane_local.kubelet import volumes
from pavane_local.kubelet.container import Container, NoImage, Surroundings, now_text
from pavane_local.kubelet.port import KubeletApi, KubeletSettings, Object
from pavane_local.kubelet.probes import Target
from pavane_local.kubelet.spawn import Command, expand, spawn
from pavane_local.kubelet.volumes import MissingReference

GRACE_SECONDS_DEFAULT = 30
HOST_ADDRESS = "127.0.0.1"
RESOURCES = {"cpu": os.cpu_count() or 1, "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")}

_log = logging.getLogger(__name__)


class PodRunner:
    """Runs one pod (by uid) until it is deleted or the kubelet stops."""

    def __init__(self, pod: Object, address: str, api: KubeletApi, settings: KubeletSettings) -> None:
        self.pod = pod
        self.address = address
        self.folder = settings.pod_folder(pod)
        self._api = api
        self._settings = settings
        self._dirty = asyncio.Event()  # the status may differ from the stored one
        self._refresh = asyncio.Event()  # a referenced object may have changed
        self._ending = asyncio.Event()
        self._grace_seconds: float | None = None
        self._gone = False
        self._began = pod.get("status", {}).get("startTime") or now_text()
        self._problem: str | None = None
        self.init_containers = self._containers("initContainers", "initContainerStatuses")
        self.containers = self._containers("containers", "containerStatuses")

    def _containers(self, key: str, status_key: str) -> list[Container]:
        former = {each["name"]: each for each in self.pod.get("status", {}).get(status_key) or ()}
        return [
            Container(spec, self.folder / spec["name"], former.get(spec["name"]), self._dirty.set, self._settings.speed)
            for spec in self.pod["spec"].get(key) or ()
        ]

    def update(self, pod: Object) -> None:
        """Take a newer version of the pod; a deletion timestamp ends it."""
        relabelled = any(pod["metadata"].get(key) != self.pod["metadata"].get(key) for key in ("labels", "annotations"))
        self.pod = pod
        if relabelled:
            self._refresh.set()
        if "deletionTimestamp" in pod["metadata"]:
            self._end(pod["metadata"].get("deletionGracePeriodSeconds", GRACE_SECONDS_DEFAULT))

    def vanished(self) -> None:
        """The pod was deleted by force: end at once, write nothing."""
        self._gone = True
        self._end(0)

    def stop(self) -> None:
        """The kubelet stops: end the processes, keep the pod."""
        self._ending.set()

    def _end(self, grace_seconds: float) -> None:
        if self._ending.is_set() and grace_seconds < (self._grace_seconds or grace_seconds):
            asyncio.get_running_loop().call_later(grace_seconds, self._kill)
        self._grace_seconds = grace_seconds
        self._ending.set()

    def _kill(self) -> None:
        for container in [*self.init_containers, *self.containers]:
            container.kill()

    def referenced_changed(self, resource: str, name: str) -> None:
        """A ConfigMap or Secret of the namespace changed."""
        if (resource, name) in set(_references(self.pod["spec"])):
            self._refresh.set()

    def container(self, name: str) -> Container | None:
        """A container by name, or None."""
        return next((each for each in [*self.containers, *self.init_containers] if each.name == name), None)

    async def run(self) -> None:
        """Run the pod to its end; afterwards no process of it is left, and a deleted pod is gone."""
        try:
            await self._live()
        except Exception as error:  # one pod that cannot be run must not end the others
            _log.exception("pod %s cannot be run", self.folder)
            text = f"{type(error).__name__}: {error}"
            await self._api.patch_status(self.pod, {"phase": "Pending", "reason": "KubeletError", "message": text})
            await self._ending.wait()
        if self._gone or "deletionTimestamp" in self.pod["metadata"]:
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self._gone:
                await self._api.confirm_deletion(self.pod)

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in (self._report(), self._work())]
            await self._ending.wait()
            self._dirty.set()
            default = self.pod["spec"].get("terminationGracePeriodSeconds", GRACE_SECONDS_DEFAULT)
            grace_seconds = default if self._grace_seconds is None else self._grace_seconds
            await asyncio.gather(*(each.stop(grace_seconds) for each in [*self.init_containers, *self.containers]))
            for task in tasks:
                task.cancel()
        if not self._gone:
            await self._api.patch_status(self.pod, self.status())

    async def _report(self) -> None:
        stored: Object | None = None
        while True:
            self._dirty.clear()
            if (status := self.status()) != stored and not self._gone:
                await self._api.patch_status(self.pod, status)
                stored = status
            await self._dirty.wait()

    async def _work(self) -> None:
        while not await self._prepared():
            await self._refresh.wait()
            self._refresh.clear()
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow_references())
            await self._run_all(self.pod["spec"].get("restartPolicy", "Always"))
            following.cancel()

    async def _run_all(self, policy: str) -> None:
        for container in self.init_containers:
            await self._run(container, "OnFailure" if policy == "Always" else policy)
            if container.exit_code != 0:
                return
        async with asyncio.TaskGroup() as group:
            for container in self.containers:
                group.create_task(self._run(container, policy))

    async def _run(self, container: Container, policy: str) -> None:
        async def execute(arguments: Sequence[str]) -> int:
            command = replace(await self._command(container), arguments=arguments)
            child = await spawn(command, lambda _: None)
            try:
                return await child.wait()
            finally:
                child.signal(signal.SIGKILL)

        async def record(kind: str, reason: str, message: str) -> None:
            await self._api.event(self.pod, kind, reason, message)

        ports = {each["name"]: each["containerPort"] for each in container.spec.get("ports") or () if "name" in each}
        target = Target(self.address, ports, execute)
        await container.run(policy, Surroundings(lambda: self._command(container), target, record))

    async def _follow_references(self) -> None:
        while True:
            await self._refresh.wait()
            self._refresh.clear()
            await self._prepared()  # what is missing now leaves the volume as it was

    async def _prepared(self) -> bool:
        """Make the volumes show what they should; False, with an event, while something is missing."""
        try:
            for volume in self.pod["spec"].get("volumes") or ():
                await self._materialize(volume)
        except MissingReference as error:
            if str(error) != self._problem:
                await self._api.event(self.pod, "Warning", "FailedMount", str(error))
            self._problem = str(error)
            return False
        self._problem = None
        return True

    async def _materialize(self, volume: dict[str, Any]) -> None:
        folder = self._volume_folder(volume)
        for kind, key, name in (("ConfigMap", "configMap", "name"), ("Secret", "secret", "secretName")):
            if key in volume:
                content = await self._data(kind, volume[key], volume[key][name])
                return volumes.publish(folder, volumes.selected(volume[key], content))
        if "downwardAPI" in volume:
            mode = volume["downwardAPI"].get("defaultMode", volumes.MODE_DEFAULT)
            items = volume["downwardAPI"].get("items") or ()
            files = {each["path"]: (self._field(each).encode(), each.get("mode", mode)) for each in items}
            return volumes.publish(folder, files)
        if claim := volume.get("persistentVolumeClaim"):
            volumes.require(
                "claim", claim["claimName"], await self._found("persistentvolumeclaims", claim["claimName"])
            )
        return folder.mkdir(parents=True, exist_ok=True)

    def _volume_folder(self, volume: dict[str, Any]) -> Path:
        if claim := volume.get("persistentVolumeClaim"):
            return self._settings.folder.joinpath("volumes", self.pod["metadata"]["namespace"], claim["claimName"])
        return self.folder.joinpath("volumes", volume["name"])

    async def _found(self, resource: str, name: str) -> Object | None:
        return await self._api.get(resource, self.pod["metadata"]["namespace"], name)

    async def _data(self, kind: str, source: dict[str, Any], name: str) -> dict[str, bytes]:
        found = await self._found("configmaps" if kind == "ConfigMap" else "secrets", name)
        return {} if found is None and source.get("optional") else volumes.data(kind, name, found)

    def _field(self, item: dict[str, Any]) -> str:
        if "resourceFieldRef" in item:
            section, _, name = item["resourceFieldRef"]["resource"].partition(".")
            wanted = item["resourceFieldRef"].get("containerName", self.pod["spec"]["containers"][0]["name"])
            specs = {each["name"]: each for each in self.pod["spec"]["containers"]}
            resources = specs.get(wanted, {}).get("resources", {})
            return str(resources.get(section, {}).get(name, RESOURCES.get(name, 0)))
        now = {**self.pod, "status": {**self.pod.get("status", {}), "podIP": self.address, "hostIP": HOST_ADDRESS}}
        return volumes.field(now, item["fieldRef"]["fieldPath"])

    async def _command(self, container: Container) -> Command:
        """What to execute for the next run: mounts made, env and arguments expanded and rewritten."""
        spec = container.spec
        installation = self._settings.environment_of(spec["image"])
        if installation is None:
            raise NoImage(
                f'image "{spec["image"]}" maps to no environment; start with `pavane up --image {spec["image"]}=PATH`'
            )
        root = container.folder / "root"
        by_name = {volume["name"]: self._volume_folder(volume) for volume in self.pod["spec"].get("volumes") or ()}
        mounts = {
            each["mountPath"]: volumes.inside(by_name[each["name"]], each.get("subPath", ""))
            for each in spec.get("volumeMounts") or ()
        }
        for path, target in sorted(mounts.items()):
            volumes.mount(root, path, target)
        given = await self._given_variables(installation, container.folder)
        wanted = await self._wanted_variables(spec, given)
        environment = given | {name: volumes.rewritten(value, root, list(mounts)) for name, value in wanted.items()}
        arguments = [*(spec.get("command") or ["pavane"]), *(spec.get("args") or ())]
        arguments = [volumes.rewritten(expand(each, environment), root, list(mounts)) for each in arguments]
        folder = volumes.rewritten(spec["workingDir"], root, list(mounts)) if "workingDir" in spec else str(root)
        return Command(arguments, environment, Path(folder))

    async def _given_variables(self, installation: Path, folder: Path) -> dict[str, str]:
        """What every container finds: how to reach its installation, its root folder, names, the API server."""
        hosts = self._settings.hosts_file(self.pod["metadata"]["namespace"])
        variables = {
            "PATH": f"{installation / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(folder / "root"),
            "LANG": "C.UTF-8",
            "HOSTNAME": self.pod["spec"].get("hostname") or self.pod["metadata"]["name"],
            "PYTHONUNBUFFERED": "1",
            "PAVANE_ROOT": str(folder / "root"),
            "PAVANE_HOSTS_FILE": str(hosts),
            "PAVANE_TERMINATION_LOG": str(folder / "termination-log"),
            "JAVA_TOOL_OPTIONS": f"-Djdk.net.hosts.file={hosts}",
        }
        if self.pod["spec"].get("automountServiceAccountToken", True):
            file = self.folder / "kubeconfig"
            if not file.exists():
                file.touch(0o600)
                file.write_text(await self._api.kubeconfig(self.pod))
            variables["KUBECONFIG"] = str(file)
        return variables

    async def _wanted_variables(self, spec: dict[str, Any], given: dict[str, str]) -> dict[str, str]:
        """What the container's envFrom and env say."""
        variables: dict[str, str] = {}
        for source in spec.get("envFrom") or ():
            kind = "ConfigMap" if "configMapRef" in source else "Secret"
            reference = source.get("configMapRef") or source["secretRef"]
            found = await self._data(kind, reference, reference["name"])
            variables |= {source.get("prefix", "") + key: value.decode() for key, value in found.items()}
        for each in spec.get("env") or ():
            value = await self._value(each)
            if value is not None:
                variables[each["name"]] = expand(value, given | variables)
        return variables

    async def _value(self, variable: dict[str, Any]) -> str | None:
        """The value of one env entry; None where an optional reference is missing."""
        source = variable.get("valueFrom")
        if not source:
            return str(variable.get("value", ""))
        if "fieldRef" in source or "resourceFieldRef" in source:
            return self._field(source)
        kind = "ConfigMap" if "configMapKeyRef" in source else "Secret"
        reference = source.get("configMapKeyRef") or source["secretKeyRef"]
        found = await self._data(kind, reference, reference["name"])
        if reference["key"] in found:
            return found[reference["key"]].decode()
        if reference.get("optional"):
            return None
        raise MissingReference(f'{kind} "{reference["name"]}" has no key "{reference["key"]}"')

    def status(self) -> Object:
        """The pod's present status."""
        initialized = all(each.exit_code == 0 for each in self.init_containers)
        ready = not self._ending.is_set() and all(each.ready for each in self.containers)
        conditions = {"PodScheduled": True, "Initialized": initialized, "ContainersReady": ready, "Ready": ready}
        former = {each["type"]: each for each in self.pod.get("status", {}).get("conditions") or ()}
        return {
            "phase": self._phase(), "startTime": self._began, "qosClass": "BestEffort",
            "hostIP": HOST_ADDRESS, "podIP": self.address, "podIPs": [{"ip": self.address}],
            "conditions": [condition(name, value, former.get(name)) for name, value in conditions.items()],
            "initContainerStatuses": [each.status() for each in self.init_containers],
            "containerStatuses": [each.status() for each in self.containers],
        }  # fmt: skip

    def _phase(self) -> str:
        policy, everyone = self.pod["spec"].get("restartPolicy", "Always"), [*self.init_containers, *self.containers]
        running = any("running" in each.state for each in self.containers)
        if policy == "Never" and any(each.exit_code for each in everyone):
            return "Running" if running else "Failed"
        if policy != "Always" and all(each.exit_code == 0 for each in self.containers):
            return "Succeeded"
        begun = all(each.last_state or {"running", "terminated"} & each.state.keys() for each in self.containers)
        return "Running" if begun else "Pending"


def condition(name: str, value: bool, former: Object | None) -> Object:
    """A condition of a pod; the time of its last change stays while it does not change."""
    status = str(value)
    if former is not None and former["status"] == status:
        return former
    return {"type": name, "status": status, "lastTransitionTime": now_text()}


def _references(spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The objects that the volumes show."""
    for volume in spec.get("volumes") or ():
        for key, name, resource in (
            ("configMap", "name", "configmaps"),
            ("secret", "secretName", "secrets"),
            ("persistentVolumeClaim", "claimName", "persistentvolumeclaims"),
        ):
            if key in volume:
                yield resource, volume[key][name]
