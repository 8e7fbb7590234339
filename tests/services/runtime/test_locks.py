"""A lock counts only while the process that it names holds it."""

import fcntl
import os
from pathlib import Path

from pavane.runtime.locks import holder


def test_a_lock_names_its_holder_and_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    assert holder(file) is None
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        for said, found in ((str(os.getpid()), os.getpid()), ("1", None), ("999999999", None), ("", None), ("x", None)):
            opened.seek(0)
            opened.truncate()
            opened.write(said)
            opened.flush()
            assert holder(file) == found, said
    file.write_text(str(os.getpid()))
    assert holder(file) is None
