"""Files of a storage node, in the original's format (docs/specs/waltz.md 12)."""

from pavane.waltz.storage.directory import Directory, ForeignDirectory
from pavane.waltz.storage.lock import FolderLock

__all__ = ["Directory", "FolderLock", "ForeignDirectory"]
