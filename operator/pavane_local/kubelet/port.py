"""What the kubelet needs of a cluster (docs/specs/operator.md 6.8), the embedded one or any other."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Object = dict[str, Any]


class KubeletApi(Protocol):
    """Objects are plain dicts, resources are `plural` or `plural.group`; what is returned must not be modified."""

    async def get(self, resource: str, namespace: str, name: str) -> Object | None:
        """An object, or None."""

    def watch(self, resource: str) -> AsyncIterator[tuple[str, Object]]:
        """All objects as ADDED, then every change as (ADDED | MODIFIED | DELETED, object), for ever."""

    async def patch_status(self, pod: Object, status: Object) -> None:
        """Replace a pod's status, if this very pod (uid) still exists."""

    async def confirm_deletion(self, pod: Object) -> None:
        """Delete a pod at last: no process of it is left."""

    async def event(self, pod: Object, kind: str, reason: str, message: str) -> None:
        """Record an event (`Normal` or `Warning`) about a pod."""

    async def kubeconfig(self, pod: Object) -> str:
        """The text of a kubeconfig with a service-account token that ends with the pod."""


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """Where pods live and what they run.

    `folder` holds `pods/`, `volumes/`, `hosts/`; `images` maps references to virtual environments, `installation` is
    the one of every other `pavane` image; `speed` divides the back-off of restarts.
    """

    folder: Path
    installation: Path
    images: dict[str, Path] = field(default_factory=dict)
    speed: float = 1.0

    def environment_of(self, image: str) -> Path | None:
        """The virtual environment that an image means, or None for an unknown image."""
        if image in self.images:
            return self.images[image]
        repository = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
        return self.installation if repository == "pavane" else None

    def pod_folder(self, pod: Object) -> Path:
        """The folder of one pod; it goes with the pod."""
        meta = pod["metadata"]
        return self.folder.joinpath("pods", meta["namespace"], meta["name"], meta["uid"])

    def hosts_file(self, namespace: str) -> Path:
        """The hosts file of a namespace."""
        return self.folder / "hosts" / namespace
