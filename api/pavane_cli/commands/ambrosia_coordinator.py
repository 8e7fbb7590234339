"""``pavane ambrosia coordinator``: one coordinator beside one application (docs/specs/ambrosia.md 16.3)."""

import sys

import typer

from pavane.ambrosia.server import run_coordinator


def coordinator(context: typer.Context) -> None:
    """Serve one application with the options of ImmortalCoordinator; --help shows them."""
    sys.exit(run_coordinator(context.args))


# Its options are written as programs of this kind write them, -rp among them.
coordinator.context_settings = {  # type: ignore[attr-defined]
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
