"""A real control plane with one node that runs pods as processes.

    python -m e2e.kubernetes.cluster FOLDER

The kubeconfig of its administrator is FOLDER/kubeconfig, written when the control plane answers.
"""

import asyncio
import signal
import sys
from pathlib import Path

from e2e.kubernetes.control_plane import ControlPlane, ControlPlaneError, control_plane
from e2e.kubernetes.kubelet import node
from e2e.kubernetes.tools import ToolError


async def _run(plane: ControlPlane, folder: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with node(plane, folder):
        sys.stdout.write(f"export KUBECONFIG={plane.kubeconfig}\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> int:
    """Run the cluster until SIGINT or SIGTERM; its processes end with it."""
    if len(sys.argv) != 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    folder = Path(sys.argv[1]).absolute()
    try:
        with control_plane(folder, endpoints=False) as plane:
            asyncio.run(_run(plane, folder))
    except (ToolError, ControlPlaneError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
