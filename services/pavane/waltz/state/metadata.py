"""The metadata store as a cluster sees it, and the paths of its nodes (docs/specs/waltz.md 8.1, 8.2)."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol


class MetadataError(Exception):
    """The metadata store does not answer, or refuses. Whether a write took effect is unknown."""


class BadVersion(MetadataError):
    """Somebody else wrote first."""


class NodeExists(MetadataError):
    """There is such a node already."""


class NoNode(MetadataError):
    """There is no such node."""


class OtherCluster(MetadataError):
    """The tree at this root belongs to another cluster; nothing of it was changed."""


class Node(NamedTuple):
    """``version`` counts writes of the data from 0, ``cversion`` births and deaths of children."""

    data: bytes
    version: int
    cversion: int


class Lease(Protocol):
    """Keeps ephemeral nodes alive."""

    async def ended(self) -> None:
        """Return when the lease is lost, or may be by our own clock."""


class Metadata(Protocol):
    """A small consistent tree. Methods raise ``MetadataError``."""

    async def get(self, path: str, *, lease: Lease | None = None) -> Node | None:
        """Return a node, ``None`` if it is not there; old only without a ``lease``."""

    async def set(self, path: str, data: bytes, version: int) -> int:
        """Replace data of that version and return the new one; raises ``BadVersion``, ``NoNode``."""

    async def create(self, path: str, data: bytes, *, lease: Lease | None = None, sequential: bool = False) -> str:
        """Create a node, ephemeral with a ``lease``, and return its path; raises ``NodeExists``."""

    async def remove(self, path: str) -> None:
        """Remove a node; raises ``NoNode``."""

    async def children(self, path: str) -> list[str]:
        """Return the names of a node's children; raises ``NoNode``."""

    def changes(self, root: str, paths: Sequence[str]) -> AsyncGenerator[str, None]:
        """Yield whenever data or children of one of ``paths``, all below ``root``, may have changed; first at once.

        What is yielded is the changed node, or empty. Never ends.
        """

    def lease(self, ttl_s: float) -> AbstractAsyncContextManager[Lease]:
        """Hold a lease, renewed in the background, and give it back at the end."""


class Paths:
    """Paths of the cluster at ``root``."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.ids = f"{root}/ids"
        self.client_ids = f"{root}/ids/client"
        self.server_ids = f"{root}/ids/server"
        self.servers = f"{root}/serverDescriptors"
        self.store = f"{root}/store"
        self.assignment = f"{root}/store/assignment"
        self.groups = f"{root}/store/group"
        self.connections = f"{root}/store/connection"
        self.partitions = f"{root}/store/partition"
        self.readers = f"{root}/readers"
        self.rollout = f"{root}/rollout"

    def partition(self, number: int) -> str:
        """Return the path of a partition's metadata."""
        return f"{self.partitions}/{number}"
