"""A write-ahead log for any protocol: segments, checksums, synced marks, one writing thread (docs/specs/raft.md 13).

``Log`` with ``Appender`` (or ``Writer``, the thread around it) on a ``DiskFolder``.
"""

from pavane.wal.files import DiskFolder, File, Folder, Lock
from pavane.wal.log import Appender, Batch, CorruptRecord, Log
from pavane.wal.record import ForeignLog, Record
from pavane.wal.scan import Examined, Fault, NewRecord, Scanned, examine, first_fault
from pavane.wal.synced import SyncedFile
from pavane.wal.writer import Writer

__all__ = [
    "Appender",
    "Batch",
    "CorruptRecord",
    "DiskFolder",
    "Examined",
    "Fault",
    "File",
    "Folder",
    "ForeignLog",
    "Lock",
    "Log",
    "NewRecord",
    "Record",
    "Scanned",
    "SyncedFile",
    "Writer",
    "examine",
    "first_fault",
]
