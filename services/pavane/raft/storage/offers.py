"""The folder in which an application puts what stands for the log (docs/specs/raft.md 9.1)."""

from pavane.raft.storage.js_files import JsSnapshot, decode_snapshot
from pavane.wal import Folder

FOLDER = "compact"
NEW = "snap.new"
CLAIMED = "snap.claimed"  # so that the application may leave the next one meanwhile
REFUSED = "snap.refused"


class Offers:
    """Takes files ``snap.new``, snapshots in the form of the original program; any thread, one call at a time."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._claimed: JsSnapshot | None = None

    def newest(self) -> JsSnapshot | None:
        """Return what was left last and is neither taken nor refused; raises ``JsFileError`` and ``OSError``."""
        names = self._folder.names()
        if NEW in names:
            self._folder.rename(NEW, CLAIMED)
            self._claimed = None
        elif CLAIMED not in names:
            return None
        if self._claimed is None:
            file = self._folder.open(CLAIMED)
            try:
                self._claimed = decode_snapshot(NEW, file.read(0, file.size))
            finally:
                file.close()
        return self._claimed

    def taken(self) -> None:
        """Remove the file, whose contents are in a snapshot of ours now."""
        self._claimed = None
        self._folder.remove(CLAIMED)

    def refused(self) -> None:
        """Put the file aside; it is not looked at again."""
        self._claimed = None
        self._folder.rename(CLAIMED, REFUSED)
