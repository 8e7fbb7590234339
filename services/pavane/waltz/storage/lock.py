"""The lock that keeps two storage nodes out of one folder, also the original's: bytes 0-127 of the control file."""

import fcntl
import os
from pathlib import Path

from pavane.waltz.storage.layout import CONTROL_FILE, HEADER_BYTES


class FolderLock:
    """Taken before the folder is opened. Raises ``BlockingIOError`` while another process has it.

    The system drops the lock when this process closes the control file, so whoever opens that keeps it open.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptor = os.open(folder / CONTROL_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, HEADER_BYTES, 0)
        except OSError:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        """Give the lock up."""
        os.close(self._descriptor)
