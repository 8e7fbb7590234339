"""The programs: a server, a storage node, and TLS for both."""

from pavane.waltz.server.node import StorageNode
from pavane.waltz.server.server import WaltzServer

__all__ = ["StorageNode", "WaltzServer"]
