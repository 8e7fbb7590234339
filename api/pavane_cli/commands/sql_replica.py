"""``pavane sql replica``: a process that computes views for a controller of the compute protocol."""

import asyncio
from typing import Annotated, Any

import typer

from pavane.compute.core.replica import EXIT_FENCED, ReplicaCore
from pavane.dataflow.keeping import Place
from pavane.dataflow.replica import ReplicaEngine
from pavane_cli import output
from pavane_cli.commands.sql_views import EngineName, TicksPartition, address_of, engine_of, make_clocks
from pavane_cli.failures import UserError
from pavane_cli.signals import stop_signal
from pavane_cli.target import run
from pavane_cli.waltz_reach import WaltzReach, reaching


@reaching
def replica(
    reach: WaltzReach,
    ticks: TicksPartition,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where a controller dials, without TLS.")] = (
        "127.0.0.1:7070"
    ),
    generation: Annotated[int, typer.Option(min=1, help="That of the controller.")] = 1,
    engine: Annotated[EngineName, typer.Option(help="plain: DuckDB; spark: Spark on this machine.")] = EngineName.PLAIN,
    interval: Annotated[float, typer.Option(min=0.01, max=10.0, help="Seconds between two looks at the ticks.")] = 0.2,
) -> None:
    """Compute views for a controller that speaks the compute protocol, until Ctrl-C.

    The controller says what to compute, and when this process may write, to the partition that --partition names.
    Whoever reaches the port can do both: leave it on this machine, or on a network of your own.
    """
    host, port = address_of("--listen", listen)
    run(_served(reach, Place(ticks, reach.partition), engine, interval, generation, host, port))


async def _served(
    reach: WaltzReach, place: Place, engine: EngineName, interval_s: float, generation: int, host: str, port: int
) -> None:
    ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    def exit_process(code: int, reason: str) -> None:
        if not ended.done():
            ended.set_result((code, reason))

    def listening(bound: int) -> None:
        output.say(f"waiting for a controller at {host}:{bound}")

    async with reach.log() as log:
        made = engine_of(engine, reach)
        serving = ReplicaEngine(ReplicaCore(generation), log, place, made, interval_s, make_clocks())
        tasks: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(serving.serve(exit_process, host=host, port=port, listening=listening)),
            asyncio.ensure_future(stop_signal().wait()),
        ]
        await asyncio.wait({ended, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    if isinstance(results[0], OSError):
        raise UserError(f"{results[0]}; --listen names another address") from results[0]
    if isinstance(results[0], Exception):
        raise results[0]
    if ended.done():
        code, reason = ended.result()
        if code == EXIT_FENCED:
            output.note(reason)
            return
        output.note(f"the replica ends: {reason}")
        raise typer.Exit(code)
