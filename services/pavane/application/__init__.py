"""What an application needs of a RaftCluster, in one line: ``pavane.connect`` (docs/connect.md)."""

from pavane.application.blocking import BlockingCluster, connect_sync
from pavane.application.cluster import (
    Cluster,
    Counter,
    EventType,
    Lock,
    LockLost,
    NotALock,
    Watch,
    WatchEvent,
    connect,
)
from pavane.application.finding import CannotConnect, Connection

__all__ = [
    "BlockingCluster",
    "CannotConnect",
    "Cluster",
    "Connection",
    "Counter",
    "EventType",
    "Lock",
    "LockLost",
    "NotALock",
    "Watch",
    "WatchEvent",
    "connect",
    "connect_sync",
]
