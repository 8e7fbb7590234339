"""A WaltzCluster's storage pod: the node and its ops port; it belongs to the resource, so it has no stages.

Specified in docs/specs/operator.md 4.2, docs/specs/waltz.md 10.
"""

import os

from pavane.pods.common import certificates_of, run_pod
from pavane.pods.waltz_settings import ADMIN_PORT, STORAGE_PORT, WaltzConfig, WaltzStorageSettings, load
from pavane.runtime.ops import OpsServer
from pavane.runtime.process import EXIT_FAILED, Process
from pavane.waltz.server import StorageNode
from pavane.waltz.storage import ForeignDirectory

EXIT_DISK, EXIT_FOREIGN = 4, 5


class StoragePod:
    """One pod, between ``start`` and ``stop``."""

    def __init__(self, settings: WaltzStorageSettings, config: WaltzConfig, process: Process) -> None:
        self._settings = settings
        self._process = process
        self._node = StorageNode(settings.waltz_data, config.key, config.partitions, cluster=config.cluster_name)
        self._ops = OpsServer(
            host=settings.pod_ip,
            live=self._live_fault,
            ready=self._ready_fault,
            metrics=self._node.metrics,
            documents={"/storage": self._told},
        )

    async def start(self) -> None:
        """Open the ops port, then the folder, then the ports for servers and for tools."""
        await self._ops.start(self._process)
        certificates = certificates_of(self._settings, self._process)
        tls = certificates.mutual_port if certificates is not None else None
        await self._node.start(self._settings.pod_ip, STORAGE_PORT, tls, ADMIN_PORT)
        self._process.spawn(self._node.run(), name="storage node")

    async def stop(self) -> None:
        """Close the storage port and the files, then the ops port."""
        await self._node.stop()
        await self._ops.stop()

    def _live_fault(self) -> str | None:
        if self._node.port and not os.access(self._settings.waltz_data, os.W_OK):
            return f"{self._settings.waltz_data} is not writable"
        return None

    def _told(self) -> dict[str, object]:
        faults = {str(number): text for number, text in self._node.faults().items()}
        mended = {str(number): text for number, text in self._node.mended().items()}
        return {"faults": faults, "mended": mended, "full": self._node.full}

    def _ready_fault(self) -> str | None:
        if self._process.ending or not self._node.port:
            return "the storage node is not running"
        faults = self._node.faults()
        return "; ".join(f"partition {number}: {fault}" for number, fault in faults.items()) or None


def run() -> int:
    """Run this pod and return its exit code: 0 stopped, 1 failed, 2 usage, 4 disk, 5 somebody else's folder."""
    failures: dict[type[Exception], int] = {ForeignDirectory: EXIT_FOREIGN, OSError: EXIT_DISK}
    return run_pod("waltz-storage", WaltzStorageSettings, load, StoragePod, {**failures, ValueError: EXIT_FAILED})
