"""``pavane pod``: picks the composition root by ``PAVANE_KIND`` and ``PAVANE_ROLE`` (docs/specs/operator.md 4.2)."""

import importlib
import os
import sys
from collections.abc import Mapping

from pavane.runtime.process import EXIT_USAGE

ROOTS: Mapping[tuple[str, str], str] = {
    ("RaftCluster", "server"): "pavane.pods.raft_server",
    ("SwimGroup", "member"): "pavane.pods.swim_member",
}
"""Kind and role → module with ``run() -> int``; imported only when it is the one."""


def run() -> int:
    """Run the pod that the environment describes and return its exit code."""
    kind, role = os.environ.get("PAVANE_KIND", ""), os.environ.get("PAVANE_ROLE", "")
    module = ROOTS.get((kind, role))
    if module is None:
        known = ", ".join(f"{kind}/{role}" for kind, role in ROOTS)
        sys.stderr.write(
            f"PAVANE_KIND={kind!r} and PAVANE_ROLE={role!r} name no program of this release; it has: {known}. "
            "Pods are started by the operator: see `pavane apply --help`.\n"
        )
        return EXIT_USAGE
    code: int = importlib.import_module(module).run()
    return code
