"""``pavane pod``: picks the composition root by ``PAVANE_KIND`` and ``PAVANE_ROLE`` (docs/specs/operator.md 4.2)."""

import importlib
import os
import pkgutil
import re
import sys

import pavane.pods
from pavane.runtime.process import EXIT_USAGE

_KIND = re.compile(r"([A-Z][a-z]+)[A-Za-z]*")
"""The first word of a kind's name begins the names of its programs: a server of a RaftCluster is `raft_server`."""


def program_of(kind: str, role: str) -> str | None:
    """Return the module with ``run() -> int`` for a role of a kind, ``None`` where this release has none."""
    named = _KIND.fullmatch(kind)
    name = f"{named[1].lower()}_{role}" if named else ""
    return f"pavane.pods.{name}" if name in _programs() else None


def _programs() -> list[str]:
    """All modules of programs: each other one is a part of them."""
    parts = {"settings", "metadata"}
    names = [module.name for module in pkgutil.iter_modules(pavane.pods.__path__)]
    return [name for name in names if "_" in name and name.rpartition("_")[2] not in parts]


def run() -> int:
    """Run the pod that the environment describes and return its exit code."""
    # gRPC reads it when it is imported. Its fork handlers let one in seven children die before it starts its program,
    # for example Spark's JVM; a pod has no other use of forks.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    kind, role = os.environ.get("PAVANE_KIND", ""), os.environ.get("PAVANE_ROLE", "")
    module = program_of(kind, role)
    if module is None:
        sys.stderr.write(
            f"PAVANE_KIND={kind!r} and PAVANE_ROLE={role!r} name no program of this release; it has: "
            f"{', '.join(_programs())}. Pods are started by the operator: see `pavane apply --help`.\n"
        )
        return EXIT_USAGE
    code: int = importlib.import_module(module).run()
    return code
