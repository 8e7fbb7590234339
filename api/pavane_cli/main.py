"""The ``pavane`` program: one command for users and for what containers run; ``kubectl pavane`` is the same."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pavane_cli import lazy
from pavane_cli.failures import ExitCode, UserError

COMMANDS: dict[str, str] = {
    "up": "local:up",
    "down": "local:down",
    "ps": "local:ps",
    "logs": "local:logs",
    "kill": "local:kill",
    "pause": "local:pause",
    "unpause": "local:unpause",
    "demo": "demo:demo",
    "apply": "resources:apply",
    "delete": "resources:delete",
    "get": "resources:get",
    "describe": "resources:describe",
    "watch": "resources:watch",
    "dashboard": "dashboard:dashboard",
    "tree": "tree:tree",
    "rollout": "rollout:app",
    "scale": "scaling:scale",
    "suspend": "scaling:suspend",
    "resume-resource": "scaling:resume_resource",
    "why": "why:why",
    "connection": "connection:connection",
    "check": "check:check",
    "raft": "raft:app",
    "swim": "swim:app",
    "waltz": "waltz:app",
    "sql": "sql:app",
    "ambrosia": "ambrosia:app",
    "trace": "trace:app",
    "operator": "processes:operator",
    "api": "processes:api",
    "pod": "processes:pod",
    "helm": "helm:app",
}
"""Command → module below ``pavane_cli.commands`` and the function or sub-application in it."""


app = typer.Typer(
    cls=lazy.group(COMMANDS),
    help="Coordination services on Kubernetes, rolled out by fenced generations.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root(
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace of the resource.")] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
    kubeconfig: Annotated[Path | None, typer.Option(help="Kubeconfig.")] = None,
) -> None:
    """Coordination services on Kubernetes, rolled out by fenced generations.

    Options before a command work like options after it.
    """


def main() -> None:
    """Run the program; a known failure is one line on standard error and its exit code (docs/specs/operator.md 8.1)."""
    # kubectl calls a plugin by its file's name; its user typed two words.
    called = Path(sys.argv[0]).name
    try:
        app(prog_name="kubectl pavane" if called == "kubectl-pavane" else "pavane")
    except UserError as error:
        sys.stderr.write(f"pavane: {error}\n")
        sys.exit(error.code)
    except OSError as error:
        if error.filename is None:  # not about a file that the user named: a fault of ours, shown whole
            raise
        sys.stderr.write(f"pavane: {error.filename}: {error.strerror}\n")
        sys.exit(ExitCode.ERROR)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()
