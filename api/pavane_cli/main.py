"""The ``pavane`` program: one command for users and for what containers run; ``kubectl pavane`` is the same."""

import errno
import os
import select
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pavane_cli.failures import ExitCode, UserError, is_ours, lacks
from pavane_cli.lazy import Commands, Group
from pavane_cli.table import COMMANDS, CONTAINERS


class _Program(Group):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": Commands(COMMANDS)})

    def invoke(self, ctx: Any) -> Any:
        """Run the command. A pipe that breaks is for `main` to judge; typer would end with exit code 1 at once."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ConnectionError(str(error)) from error


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
    """Run the program; a failure is one line on standard error and its exit code (docs/specs/operator.md 8.1)."""
    # kubectl calls a plugin by its file's name; its user typed two words.
    called = Path(sys.argv[0]).name
    try:
        try:
            app(prog_name="kubectl pavane" if called == "kubectl-pavane" else "pavane")
        except SystemExit as ended:
            if not ended.code and sys.stdout is not None:
                sys.stdout.flush()
            raise
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        sys.exit(_told(error))
    finally:
        if sys.stdout is not None:
            try:
                sys.stdout.flush()
            except OSError:  # it is told, or nobody reads what is left; Python would complain once more
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told(error: Exception) -> ExitCode:
    """Say on standard error what went wrong; returns the exit code."""
    if isinstance(error, ModuleNotFoundError) and not is_ours(error):
        error = lacks(error, "local")
    if _is_broken_pipe(error) and _nobody_reads():
        return ExitCode.DONE
    if isinstance(error, UserError):
        sys.stderr.write(f"pavane: {error}\n")
        return error.code
    if isinstance(error, UnicodeEncodeError) and error.encoding == "utf-8":  # others are of the terminal
        sys.stderr.write(f"pavane: {error.object!r} is no text in UTF-8\n")
        return ExitCode.USAGE
    if isinstance(error, OSError) and (error.filename is not None or error.errno == errno.ENOSPC):
        # About a file that the user named, or the output.
        sys.stderr.write(f"pavane: {error.filename or 'output'}: {error.strerror}\n")
        return ExitCode.ERROR
    if COMMANDS[CONTAINERS].keys() & set(sys.argv[1:2]):
        # Their log keeps the trace; a file would go with the container.
        raise error
    from pavane_cli import faults  # noqa: PLC0415 - no other end needs it

    return faults.tell(error)


def _is_broken_pipe(error: BaseException) -> bool:
    """Whether a pipe or connection broke, and this came of it."""
    found: list[BaseException] = [error]
    for each in found:  # which grows
        causes = each.exceptions if isinstance(each, BaseExceptionGroup) else (each.__cause__ or each.__context__,)
        found += [cause for cause in causes if cause is not None and cause not in found]
    return any(isinstance(each, BrokenPipeError) for each in found)


def _nobody_reads() -> bool:
    """Whether who read our output has seen enough, as `head` has."""
    outputs = select.poll()
    for stream in (sys.stdout, sys.stderr):
        outputs.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in outputs.poll(0))


if __name__ == "__main__":
    main()
