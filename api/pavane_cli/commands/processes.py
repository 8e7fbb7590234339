"""What containers run: ``pavane operator``, ``pavane api``, ``pavane pod``; not for the shell."""

import importlib
import sys

from pavane_cli.failures import lacks


def operator() -> None:
    """Run the operator (in a container)."""
    _run("pavane_operator.runtime.main", "operator")  # kopf is loaded by this process alone


def api() -> None:
    """Run the control plane (in a container)."""
    _run("pavane_api.main", "api")  # FastAPI is loaded by this process alone


def pod() -> None:
    """Run a pod of a resource (in a container); PAVANE_KIND and PAVANE_ROLE say which."""
    _run("pavane.pods.main", "services")  # the protocols are loaded by this process alone


def _run(module: str, extra: str) -> None:
    try:
        main = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise lacks(error, extra) from error
    sys.exit(main.run())
