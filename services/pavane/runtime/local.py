"""Where the local cluster of a user is (``pavane up``)."""

import os
from collections.abc import Callable
from pathlib import Path

LOCAL = Path(".pavane", "kubeconfig")


def nearest_local(start: Path | None = None, *, ignored: Callable[[Path], None] = lambda _: None) -> Path | None:
    """Return the nearest ``.pavane/kubeconfig`` from ``start`` (the working folder) upwards that is ours.

    A kubeconfig can name programs to run, and any user may leave one in a folder above that others write to: such a
    file is told to ``ignored``.
    """
    folder = (start or Path.cwd()).resolve()
    for candidate in (folder, *folder.parents):
        found = candidate / LOCAL
        if found.is_file():
            if {found.stat().st_uid, found.parent.stat().st_uid} == {os.geteuid()}:
                return found
            ignored(found)
    return None
