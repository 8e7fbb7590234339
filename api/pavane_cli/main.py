"""The ``pavane`` program: one command for users and for what containers run; ``kubectl pavane`` is the same."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pavane_cli.failures import ExitCode, UserError
from pavane_cli.lazy import Commands, Group
from pavane_cli.table import COMMANDS


class _Program(Group):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": Commands(COMMANDS)})


app = typer.Typer(
    cls=_Program,
    help="Coordination services on Kubernetes, rolled out by fenced generations.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool | None) -> None:
    if wanted:
        from importlib import metadata  # noqa: PLC0415 - no other command needs it

        sys.stdout.write(f"pavane {metadata.version('pavane')}\n")
        raise typer.Exit


@app.callback()
def _root(
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace of the resource.")] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
    kubeconfig: Annotated[Path | None, typer.Option(help="Kubeconfig.")] = None,
    version: Annotated[
        bool | None, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = None,
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
    except UnicodeEncodeError as error:
        if error.encoding != "utf-8":  # of the terminal
            raise
        sys.stderr.write(f"pavane: {error.object!r} is no text in UTF-8\n")
        sys.exit(ExitCode.USAGE)
    except OSError as error:
        if error.filename is None:  # not about a file that the user named: a fault of ours, shown whole
            raise
        sys.stderr.write(f"pavane: {error.filename}: {error.strerror}\n")
        sys.exit(ExitCode.ERROR)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()
