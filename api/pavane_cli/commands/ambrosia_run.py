"""``pavane ambrosia run`` and ``replay``: an immortal of a class that the user wrote."""

import asyncio
import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pavane.ambrosia.client import (
    CoordinatorLost,
    DefinitionError,
    DeterminismError,
    Handle,
    Immortal,
    ImmortalError,
    serve,
)
from pavane.ambrosia.client.connection import ENVIRONMENT
from pavane.ambrosia.client.recorded import replay_folder
from pavane.ambrosia.client.upgrading import versions
from pavane.ambrosia.errors import FatalError
from pavane_cli import output
from pavane_cli.failures import ExitCode, UserError, as_user_error
from pavane_cli.signals import stop_signal

DEFAULT_LOG = Path(".pavane/ambrosia")
EXIT_DIVERGED = 9

Class = Annotated[str, typer.Argument(metavar="MODULE:CLASS", help="The application, as in accounts:Account.")]
Upgrade = Annotated[
    str | None,
    typer.Option(metavar="MODULE:CLASS", help="The class from this version on, where its state has another shape."),
]
Begin = Callable[[], contextlib.AbstractAsyncContextManager[Handle[Any]]]
Log = Annotated[Path, typer.Option("--log", help="Folder of logs, shared by the immortals of this machine.")]


def address_file(log: Path, name: str) -> Path:
    """Return the file that says where a running immortal listens."""
    return log / f"{name}.http"


def run(
    application: Class,
    name: Annotated[
        str, typer.Option("--name", envvar="PAVANE_INSTANCE", help="Name of the instance: its address for others.")
    ],
    log: Log = DEFAULT_LOG,
    http: Annotated[
        str, typer.Option(envvar="PAVANE_HTTP", help="HOST:PORT for calls over HTTP; port 0 picks a free port.")
    ] = "127.0.0.1:0",
    version: Annotated[int, typer.Option(envvar="PAVANE_VERSION", min=0, help="Version of the application.")] = 0,
    upgrade: Upgrade = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Follow another process of this name; lead when it ends.")
    ] = False,
    any_code: Annotated[
        bool, typer.Option("--any-code", envvar="PAVANE_ANY_CODE", help="For development: run changed handlers.")
    ] = False,
) -> None:
    """Run an immortal until Ctrl-C. After a restart it continues where it was.

    What was logged with a lower version is replayed as that version; then the instance changes over, once.

    The coordinator is the one that PAVANE_AMBROSIA names (HOST:RECEIVEPORT,SENDPORT), as beside a pod; else its own.
    """
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets must be the same in every life, and Python decides it at its start.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606
    kind = load(application)
    changed = load(upgrade) if upgrade is not None else None
    begin = partial(
        serve, kind, name=name, log=log, http=http, version=version, upgrade=changed, standby=standby, any_code=any_code
    )
    with as_user_error(ImmortalError, FatalError):
        asyncio.run(_run(begin, name, log))


def load(path: str) -> type[Immortal]:
    """Return the class that ``module:class`` names, from the current folder or what is installed."""
    module, _, name = path.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{path}: {error}; write MODULE:CLASS as in accounts:Account") from error
    except DefinitionError as error:
        raise UserError(str(error)) from error
    except Exception as error:  # of the application's own code
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if isinstance(error, SyntaxError) else f" ({at.filename}:{at.lineno})"  # whose text has it
        raise UserError(f"{module} cannot be loaded: {type(error).__name__}: {error}{where}") from error
    if not (isinstance(found, type) and issubclass(found, Immortal)):
        raise UserError(f"{path} is not a class derived from pavane.ambrosia.Immortal")
    return found


async def _run(begin: Begin, name: str, log: Path) -> None:
    stopped = stop_signal()
    stopping = asyncio.create_task(stopped.wait())
    living = asyncio.create_task(_live(begin, name, log, stopped))
    await asyncio.wait({stopping, living}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not living.done() and not _entered.is_set():
        living.cancel()
    try:
        await living
    except asyncio.CancelledError:
        return


_entered = asyncio.Event()


async def _live(begin: Begin, name: str, log: Path, stopped: asyncio.Event) -> None:
    async with begin() as immortal:
        _entered.set()
        if immortal.http is None:
            raise CoordinatorLost("no HTTP server")
        host, port = immortal.http
        if ENVIRONMENT in os.environ:  # its log is the coordinator's business, so nobody looks for the address there
            output.say(f"{name} is live at http://{host}:{port}")
            sys.stdout.flush()
            await stopped.wait()
            return
        file = address_file(log, name)
        temporary = file.with_suffix(".http.tmp")
        temporary.write_text(f"{host}:{port}\n")
        temporary.rename(file)
        output.say(
            f"{name} is live; try: pavane ambrosia call {name} METHOD ARGUMENTS, or POST http://{host}:{port}/call/METHOD"
        )
        sys.stdout.flush()
        await stopped.wait()
        file.unlink(missing_ok=True)


def replay(
    application: Class,
    name: Annotated[str, typer.Argument(help="Name of the instance.")],
    log: Log = DEFAULT_LOG,
    version: Annotated[int | None, typer.Option(min=1, help="Try the upgrade to this version at the end.")] = None,
    upgrade: Upgrade = None,
) -> None:
    """Replay an immortal's log beside its class: exit code 9 if a handler behaves differently."""
    kind = load(application)
    folder = instance_folder(log, name)
    kinds = versions(kind, version, load(upgrade) if upgrade is not None else None)
    try:
        report = replay_folder(kinds, folder, version)
    except DeterminismError as error:  # also of a flow whose code does not fit its history
        sys.stderr.write(f"pavane: {error}\n")
        raise typer.Exit(EXIT_DIVERGED) from error
    except (ImmortalError, FatalError) as error:
        raise UserError(str(error)) from error
    found = f"{report.records} records replayed, state and outputs are those of {report.compared} later checkpoints"
    tried = f", and version {report.version} takes over" if version is not None else ""
    output.say(f"{report.name}: {found}; {report.uncompared} records stand behind the last one{tried}")


def instance_folder(log: Path, name: str) -> Path:
    """Return the folder of an instance: the first of its versions, to which the names of all others lead.

    Raises ``UserError`` for an instance without files.
    """
    found = [path for path in log.glob(f"{name}_[0-9]*") if path.is_dir() and not path.is_symlink()]
    folder = min(found, default=log / f"{name}_0")
    if not folder.is_dir():
        raise UserError(f"{folder} is not there; name the folder of the logs with --log", ExitCode.NOT_FOUND)
    return folder
