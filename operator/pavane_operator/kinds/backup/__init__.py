"""Backup: copies of RaftClusters in object storage, made once (docs/specs/operator.md 1.10)."""

from pavane_operator.kinds.backup.keeping import Backups

keeper = Backups

__all__ = ["keeper"]
