"""``pavane raft probe``: write until SIGTERM, then prove what became of it (docs/specs/operator.md 7.5)."""

import asyncio
import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pavane.raft.client import RaftClient
from pavane.raft.keys import RaftKeys
from pavane.runtime.process import Process, run
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.probe import SteadyWriter

PROGRESS_S = 0.2
"""Between two lines of progress: often enough to wait for one, rare enough for a log."""


def probe(
    seed: Annotated[list[str], typer.Option("--seed", metavar="URL", help="A peer or Service; may be repeated.")],
    keys: Annotated[
        Path, typer.Option("--keys", metavar="DIR", help="Folder with the cluster's keys, such as a mounted Secret.")
    ],
    secret_file: Annotated[
        Path | None,
        typer.Option("--secret-file", metavar="FILE", help="The cluster's secret, if DIR has no such file."),
    ] = None,
    label: Annotated[str, typer.Option("--label", help="Prefix of every entry.")] = "probe",
    writers: Annotated[int, typer.Option("--writers", min=1, max=64, help="Number of concurrent writes.")] = 2,
) -> None:
    """Write without a pause until SIGTERM, then compare the log with what was acknowledged.

    Prints JSON lines: {"acknowledged": N} while it writes, {"proof": {…}} at the end.
    """
    try:
        known = RaftKeys.read(keys, secret_file)
    except (OSError, ValueError) as error:
        raise UserError(f"the keys cannot be read: {error}", ExitCode.USAGE) from error

    async def body(process: Process) -> None:
        async with RaftClient(seed, known.ident, curve=known.curve) as client:
            writer = SteadyWriter(client, label, writers=writers)
            writer.start()
            process.spawn(_report(writer), name="progress")
            await process.ended()
            await writer.stop()
            proof = await writer.proof()
        _line({"proof": dataclasses.asdict(proof)})

    raise typer.Exit(run(body, service="pavane-raft-probe"))


async def _report(writer: SteadyWriter) -> None:
    shown = -1
    while True:
        if writer.acknowledged != shown:
            shown = writer.acknowledged
            _line({"acknowledged": shown})
        await asyncio.sleep(PROGRESS_S)


def _line(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()
