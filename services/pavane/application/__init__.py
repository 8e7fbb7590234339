"""What an application needs of a RaftCluster or a log, in one line: ``pavane.connect`` and ``pavane.connect_log``
(docs/connect.md, docs/waltz.md)."""

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
from pavane.application.finding import CannotConnect, Connection, LogConnection
from pavane.application.log import BlockingLog, Log, connect_log, connect_log_sync

__all__ = [
    "BlockingCluster",
    "BlockingLog",
    "CannotConnect",
    "Cluster",
    "Connection",
    "Counter",
    "EventType",
    "Lock",
    "LockLost",
    "Log",
    "LogConnection",
    "NotALock",
    "Watch",
    "WatchEvent",
    "connect",
    "connect_log",
    "connect_log_sync",
    "connect_sync",
]
