"""What containers run: ``pavane operator``, ``pavane api``, ``pavane pod``; not for the shell."""

import sys


def operator() -> None:
    """Run the operator (in a container)."""
    from pavane_operator.runtime.main import run  # noqa: PLC0415 - kopf is loaded by this process alone

    sys.exit(run())


def api() -> None:
    """Run the control plane (in a container)."""
    from pavane_api.main import run  # noqa: PLC0415 - FastAPI is loaded by this process alone

    sys.exit(run())


def pod() -> None:
    """Run a pod of a resource (in a container); PAVANE_KIND and PAVANE_ROLE say which."""
    from pavane.pods.main import run  # noqa: PLC0415 - the protocols are loaded by this process alone

    sys.exit(run())
