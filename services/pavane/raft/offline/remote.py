"""A backup in object storage: its files by their names below a URL, and the manifest last (docs/specs/raft.md 13.5)."""

from pavane.raft.offline.manifest import FILE, Manifest
from pavane.raft.storage import StoreError
from pavane.runtime.backups import Copies, surplus
from pavane.runtime.backups import Kept as _Kept

__all__ = ["Kept", "backups", "clear", "copies", "download", "remove", "surplus", "upload", "vacant"]

Kept = _Kept[Manifest]
copies = Copies(Manifest.decode, FILE, StoreError)
vacant, upload, download = copies.vacant, copies.upload, copies.download
backups, remove, clear = copies.backups, copies.remove, copies.clear
