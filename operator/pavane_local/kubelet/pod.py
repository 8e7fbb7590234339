"""One pod: volumes, containers, status, end (docs/specs/operator.md 6.8)."""

import asyncio
import base64
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pavane_local.api.cluster import Cluster, DeleteOptions, WriteOptions
from pavane_local.api.errors import NO_ROOM
from pavane_local.certs import write_private
from pavane_local.controllers.loop import expected, name_of
from pavane_local.kubelet import volumes
from pavane_local.kubelet.container import Container, Surroundings, now_text
from pavane_local.kubelet.spawn import CannotStart, expand
from pavane_local.store import Object

WRITE_AGAIN_SECONDS = 1.0  # after a volume could not be written
HOST_ADDRESS = "127.0.0.1"
GONE = (403, 404, 409)  # the namespace of a pod goes, the pod is gone, it has a namesake
_LABEL = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """Where pods live and what they run.

    `installation` is the virtual environment of every `pavane` image but those in `images`; `url` is that of the API
    server; `kubeconfig_of` makes the text of a pod's kubeconfig, `token_of` its token for an audience; `speed` divides
    the back-off of restarts.
    """

    folder: Path
    installation: Path
    url: Callable[[], str]
    kubeconfig_of: Callable[[Object], str]
    token_of: Callable[[Object, str], str]
    images: Mapping[str, Path] = field(default_factory=dict)
    speed: float = 1.0

    def environment_of(self, image: str) -> Path | None:
        """The virtual environment that an image means, or None for an unknown image."""
        repository = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
        return self.images.get(image, self.installation if repository == "pavane" else None)

    def pod_folder(self, pod: Object) -> Path:
        """The folder of one pod; it goes with the pod."""
        return self.folder.joinpath("pods", *name_of(pod), pod["metadata"]["uid"])

    def claim_folder(self, claim: Object) -> Path:
        """The folder that a claim is; it goes with the claim."""
        return self.folder.joinpath("volumes", *name_of(claim))


class PodRunner:
    """Runs one pod (by uid) until it is deleted or the kubelet stops."""

    def __init__(self, pod: Object, address: str, cluster: Cluster, settings: KubeletSettings) -> None:
        self.pod = pod
        self.address = address
        self.folder = settings.pod_folder(pod)
        self.refresh = asyncio.Event()  # set it when what the volumes show may have changed
        self._cluster = cluster
        self._settings = settings
        self._changed = asyncio.Event()  # the status may differ from the stored one
        self._ending = asyncio.Event()
        self._deleted = False
        status = pod.get("status", {})
        self._began = status.get("startTime") or now_text()
        self._once = pod["spec"].get("restartPolicy") == "Never"
        around = Surroundings(address, settings.speed, self._once, self._command, self._changed.set, self._record)
        former = {each["name"]: each for each in status.get("containerStatuses") or ()}
        self.containers = {
            spec["name"]: Container(spec, self.folder / spec["name"], former.get(spec["name"], {}), around)
            for spec in pod["spec"]["containers"]
        }

    def update(self, pod: Object, *, gone: bool = False) -> None:
        """Take a newer version of the pod; a deletion timestamp ends it, at once when nobody waits for its end."""
        self._deleted = gone or "deletionTimestamp" in pod["metadata"]
        self.pod = pod
        if self._deleted:
            self.end(0 if gone else pod["metadata"]["deletionGracePeriodSeconds"])

    def end(self, grace_seconds: float | None = None) -> None:
        """End the processes after this time at the latest (None: what the pod asks for); may be called again."""
        grace_seconds = self.pod["spec"]["terminationGracePeriodSeconds"] if grace_seconds is None else grace_seconds
        for container in self.containers.values():
            asyncio.get_running_loop().call_later(grace_seconds, container.kill)
        self._ending.set()

    async def run(self) -> None:
        """Run the pod to its end; afterwards no process of it is left, and a deleted pod is gone."""
        try:
            await self._live()
        except Exception as error:  # one pod that cannot be run must not end the others
            _log.exception("pod %s cannot be run", self.folder)
            text = f"{type(error).__name__}: {error}"
            await self._store({"phase": "Pending", "reason": "KubeletError", "message": text})
            await self._ending.wait()
        if self._deleted:
            shutil.rmtree(self.folder, ignore_errors=True)
            with expected(*GONE):
                options = DeleteOptions(uid=self.pod["metadata"]["uid"], grace_seconds=0)
                await self._cluster.delete("pods", *name_of(self.pod), options)

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in (self._report(), self._work())]
            await self._ending.wait()
            await asyncio.gather(*(each.stop() for each in self.containers.values()))
            for task in tasks:
                task.cancel()
        await self._store(self.status())

    async def _report(self) -> None:
        stored: Object | None = None
        while True:
            self._changed.clear()
            if (status := self.status()) != stored:
                await self._store(status)
                stored = status
            await self._changed.wait()

    async def _store(self, status: Object) -> None:
        # The last status waits for nothing: the next start of the cluster says that the pod has ended.
        options = WriteOptions(wait_for_room=not self._ending.is_set())
        with expected(*GONE, NO_ROOM):
            patch = {"metadata": {"uid": self.pod["metadata"]["uid"]}, "status": status}
            await self._cluster.patch("pods", *name_of(self.pod), patch, options=options, subresource="status")

    async def _record(self, reason: str, message: str) -> None:
        """Record a warning about the pod; equal ones are one event."""
        (namespace, name), uid = name_of(self.pod), self.pod["metadata"]["uid"]
        event = f"{name}.{hashlib.sha256(f'{uid}{reason}{message}'.encode()).hexdigest()[:16]}"
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid}
        body = {
            "metadata": {"name": event, "namespace": namespace}, "source": {"component": "pavane-local"},
            "involvedObject": about, "type": "Warning", "reason": reason, "message": message,
            "lastTimestamp": now_text(),
        }  # fmt: skip
        with expected(*GONE):
            await self._cluster.apply("events", body, WriteOptions())

    async def _work(self) -> None:
        """Keep the volumes up to date; run the containers once all is there. What goes missing later stays shown."""
        runs: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:
            while True:
                self.refresh.clear()
                try:
                    for volume in self.pod["spec"].get("volumes") or ():
                        self._materialize(volume)
                    runs = runs or [group.create_task(each.run()) for each in self.containers.values()]
                except CannotStart as error:
                    await self._record("FailedMount", str(error))
                except OSError as error:  # a full disk, for one
                    await self._record("FailedMount", f"{self.folder} cannot be written: {error}")
                    asyncio.get_running_loop().call_later(WRITE_AGAIN_SECONDS, self.refresh.set)
                await self.refresh.wait()

    def _materialize(self, volume: dict[str, Any]) -> None:
        folder = self._volume_folder(volume)
        folder.mkdir(parents=True, exist_ok=True)
        if source := volume.get("configMap"):
            volumes.publish(folder, self._content("configmaps", source["name"]), source["defaultMode"])
        elif source := volume.get("secret"):
            volumes.publish(folder, self._content("secrets", source["secretName"]), source["defaultMode"])
        elif source := volume.get("projected"):
            # A real API server adds volumes with the files of programs inside a cluster, which ours need not.
            wanted = [each["serviceAccountToken"] for each in source["sources"] if "serviceAccountToken" in each]
            tokens = {
                each["path"]: self._settings.token_of(self.pod, each["audience"]).encode()
                for each in wanted
                if each.get("audience")
            }
            volumes.publish(folder, tokens, source["defaultMode"])

    def _volume_folder(self, volume: dict[str, Any]) -> Path:
        if claim := volume.get("persistentVolumeClaim"):
            return self._settings.claim_folder(self._found("persistentvolumeclaims", claim["claimName"]))
        return self.folder.joinpath("volumes", volume["name"])

    def _found(self, resource: str, name: str) -> Object:
        found = self._cluster.find(resource, self.pod["metadata"]["namespace"], name)
        if found is None:
            raise CannotStart(f'{resource} "{name}" not found')
        return found

    def _content(self, resource: str, name: str) -> dict[str, bytes]:
        data: dict[str, str] = self._found(resource, name).get("data") or {}
        return {key: base64.b64decode(each) if resource == "secrets" else each.encode() for key, each in data.items()}

    def _command(self, container: Container) -> tuple[list[str], dict[str, str]]:
        """What to execute for the next run: mounts made, env and arguments expanded and rewritten."""
        spec, root = container.spec, container.folder / "root"
        installation = self._settings.environment_of(image := spec["image"])
        if installation is None:
            text = f'image "{image}" maps to no environment; start with `pavane up --image {image}=PATH`'
            raise CannotStart(text, "ErrImageNeverPull")
        folders = {each["name"]: self._volume_folder(each) for each in self.pod["spec"].get("volumes") or ()}
        paths = {each["mountPath"]: folders[each["name"]] for each in spec.get("volumeMounts") or ()}
        for path, folder in sorted(paths.items()):
            volumes.mount(root, path, folder)
        given = self._given_variables(installation, container.folder)
        wanted: dict[str, str] = {}
        for each in spec.get("env") or ():
            if (value := self._value(each)) is not None:
                wanted[each["name"]] = expand(value, given | wanted)
        environment = given | {name: volumes.rewritten(value, root, list(paths)) for name, value in wanted.items()}
        arguments = [*(spec.get("command") or ["pavane"]), *(spec.get("args") or ())]
        arguments = [volumes.rewritten(expand(each, environment), root, list(paths)) for each in arguments]
        return arguments, environment

    def _given_variables(self, installation: Path, folder: Path) -> dict[str, str]:
        """What every container finds: how to reach its installation, its root folder, names, the API server."""
        hosts = self._settings.folder / "hosts" / self.pod["metadata"]["namespace"]
        variables = {
            "PATH": f"{installation / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(folder / "root"),
            "LANG": "C.UTF-8",
            "HOSTNAME": self.pod["spec"].get("hostname") or self.pod["metadata"]["name"],
            "PYTHONUNBUFFERED": "1",
            "PAVANE_ROOT": str(folder / "root"),
            "PAVANE_HOSTS_FILE": str(hosts),
            "PAVANE_TERMINATION_LOG": str(folder / "termination-log"),
            "JAVA_TOOL_OPTIONS": f"-Djdk.net.hosts.file='{hosts}'",
        }
        if self.pod["spec"].get("automountServiceAccountToken", True):
            file = self.folder / "kubeconfig"
            write_private(file, self._settings.kubeconfig_of(self.pod).encode())
            server = urlsplit(self._settings.url())
            variables |= {"KUBERNETES_SERVICE_HOST": str(server.hostname), "KUBERNETES_SERVICE_PORT": str(server.port)}
            variables["KUBECONFIG"] = str(file)
        return variables

    def _value(self, variable: dict[str, Any]) -> str | None:
        """The value of one env entry; None where an optional reference is missing."""
        source = variable.get("valueFrom")
        if not source:
            return str(variable.get("value", ""))
        if "fieldRef" in source:
            return self._field(source["fieldRef"]["fieldPath"])
        resource = "configmaps" if "configMapKeyRef" in source else "secrets"
        reference = source.get("configMapKeyRef") or source["secretKeyRef"]
        try:
            return self._content(resource, reference["name"])[reference["key"]].decode()
        except (CannotStart, KeyError) as error:
            if reference.get("optional"):
                return None
            text = f'{resource} "{reference["name"]}" with the key "{reference["key"]}" not found'
            raise CannotStart(text) from error

    def _field(self, path: str) -> str:
        """The value of a downward API `fieldPath`, for instance `metadata.name` or `metadata.labels['app']`."""
        if match := _LABEL.fullmatch(path):
            return str(self.pod["metadata"].get(match[1], {}).get(match[2], ""))
        value: Any = {**self.pod, "status": {"podIP": self.address, "podIPs": self.address, "hostIP": HOST_ADDRESS}}
        for part in path.split("."):
            value = value.get(part, "") if isinstance(value, dict) else ""
        return str(value)

    def status(self) -> Object:
        """The pod's present status."""
        containers = self.containers.values()
        ready = not self._ending.is_set() and all(each.ready for each in containers)
        begun = all(each.last_state or "waiting" not in each.state for each in containers)
        codes = [each.state.get("terminated", {}).get("exitCode") for each in containers]
        phase = "Running" if begun else "Pending"
        phase = ("Failed" if any(codes) else "Succeeded") if self._once and None not in codes else phase
        states = {"PodScheduled": True, "Initialized": True, "ContainersReady": ready, "Ready": ready}
        former = {(each["type"], each["status"]): each for each in self.pod["status"].get("conditions") or ()}
        told = [
            {"type": name, "status": str(value), "lastTransitionTime": now_text()} for name, value in states.items()
        ]
        return {
            "phase": phase, "startTime": self._began, "qosClass": "BestEffort",
            "hostIP": HOST_ADDRESS, "podIP": self.address, "podIPs": [{"ip": self.address}],
            "conditions": [former.get((each["type"], each["status"]), each) for each in told],
            "containerStatuses": [each.status() for each in containers],
        }  # fmt: skip
