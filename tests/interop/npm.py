"""The npm package ``zmq-raft``, installed once into the user's cache folder: ``make interop-tools``, or the first test.

Its binding to libzmq is compiled: the package's own build would fetch sources of libzmq, so the system's are linked.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from e2e.kubernetes import tools

PACKAGE = Path(__file__).parent / "zmq-raft"
PINS = ("package.json", "package-lock.json", ".npmrc")
INSTALL_S = 300  # a compiler on a busy machine
LOG_LINES = 15  # of npm's output, shown when it fails
NEEDED = (
    "it needs npm with a registry, a C++ compiler with make, Node's headers, and libzmq with its headers "
    "(Debian: libzmq3-dev g++ make)"
)


class InstallError(Exception):
    """The package cannot be installed here; the text says what to do."""


def installed(node: str) -> Path:
    """Return the folder that holds ``node_modules``, filled now if it is not yet. Raises InstallError."""
    version = subprocess.run([node, "--version"], check=True, capture_output=True, text=True).stdout
    digest = hashlib.sha256(version.encode())
    for name in PINS:
        digest.update((PACKAGE / name).read_bytes())
    folder = tools.cache().parent / "zmq-raft" / digest.hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test workers begin at once
        if not folder.exists():
            _install(node, folder)
    return folder


def _install(node: str, folder: Path) -> None:
    scratch = folder.with_name(f".{folder.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for name in PINS:
        shutil.copy(PACKAGE / name, scratch)
    npm = shutil.which("npm")
    if npm is None:
        raise InstallError(f"npm is missing: {NEEDED}")
    load = "require('zmq-raft'); require('zeromq')"
    for command in ([npm, "ci", "--no-audit", "--no-fund"], [node, "--no-deprecation", "-e", load]):
        said = subprocess.run(
            command,
            cwd=scratch,
            env=os.environ | {"npm_config_zmq_external": "true"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_S,
            check=False,
        )
        if said.returncode:
            log = "\n".join(said.stdout.splitlines()[-LOG_LINES:])
            raise InstallError(f"zmq-raft cannot be installed: {NEEDED}\n{log}")
    scratch.rename(folder)


def main() -> int:
    """Install the package if Node is there."""
    node = shutil.which("node")
    if node is None:
        sys.stderr.write("interop-tools: Node.js is missing (https://nodejs.org); 18 or newer is needed\n")
        return 1
    try:
        folder = installed(node)
    except InstallError as error:
        sys.stderr.write(f"interop-tools: {error}\n")
        return 1
    sys.stderr.write(f"interop-tools: zmq-raft is installed in {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
