"""``pavane sql check|explain|run|query|follow``: a script's views, kept in the log and read from it."""

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from pavane.dataflow.confined import Confined
from pavane.dataflow.controlling import Controller
from pavane.dataflow.entries import EntryError
from pavane.dataflow.evaluating import QueryError
from pavane.dataflow.explaining import explained
from pavane.dataflow.keeping import Clocks, Keeper, Place
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import Engine, EngineError, Fenced, Script, SqlError
from pavane.dataflow.rows import plain
from pavane.dataflow.runner import ViewRunner
from pavane.dataflow.sql import parse
from pavane.dataflow.ticks import Ticks
from pavane.dataflow.views import Views
from pavane.waltz.client import Waltz
from pavane.waltz.client.link import parse_address
from pavane_cli import output
from pavane_cli.failures import ExitCode, UserError, as_user_error, lacks
from pavane_cli.output import Format, Output
from pavane_cli.signals import stop_signal
from pavane_cli.target import KINDS, cluster, run
from pavane_cli.waltz_reach import WaltzReach, reaching

ScriptFile = Annotated[
    Path,
    typer.Argument(metavar="SCRIPT", exists=True, dir_okay=False, help="CREATE TABLE, CREATE MATERIALIZED VIEW."),
]
TicksPartition = Annotated[int, typer.Option("--ticks", min=0, help="The partition for the ticks only.")]


CLEARED = "\x1b[2J\x1b[H"
"""What makes a terminal empty."""


class EngineName(StrEnum):
    """What evaluates the SQL."""

    PLAIN = "plain"
    SPARK = "spark"


def check(script: ScriptFile) -> None:
    """Check a script without running it, and print its views and their columns."""
    for view in _parsed(script).views:
        output.say(f"{view.name}: {', '.join(f'{column.name} {column.type}' for column in view.columns)}")


def explain(script: ScriptFile) -> None:
    """Print how each view of a script is kept up to date: its steps, and what each of them remembers."""
    for view in _parsed(script).views:
        output.say("\n".join(explained(view)))


@reaching
def run_script(
    reach: WaltzReach,
    script: ScriptFile,
    ticks: TicksPartition,
    engine: Annotated[EngineName, typer.Option(help="plain: DuckDB; spark: Spark on this machine.")] = EngineName.PLAIN,
    interval: Annotated[float, typer.Option(min=0.01, max=10.0, help="Seconds between two ticks.")] = 0.2,
    replica: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Let this `pavane sql replica` compute; may be repeated."),
    ] = None,
    generation: Annotated[
        int | None, typer.Option(min=1, help="With --replica: that of the replicas; default: 1.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="With --engine spark: keep state there; also a URL.")
    ] = None,
) -> None:
    """Keep the views of a script up to date until Ctrl-C, in the partition that --partition names.

    Kill it and start it again, here or elsewhere: nothing is lost or counted twice. Who starts last writes, the others
    end.

    With --replica this process is the controller: it mints ticks, and each replica computes all views. Replicas may
    die and come back one by one. Those of a greater --generation build their views first and write from one moment on.
    """
    place, clocks = Place(ticks, reach.partition), make_clocks()
    parsed = _parsed(script)

    if replica and engine is not EngineName.PLAIN:
        raise UserError("the replicas compute: give --engine to `pavane sql replica`", ExitCode.USAGE)
    if checkpoint is not None and engine is not EngineName.SPARK:
        raise UserError("--checkpoint is for --engine spark", ExitCode.USAGE)
    if not replica and generation is not None:
        raise UserError("--generation is that of replicas: name them with --replica", ExitCode.USAGE)
    for each in replica or ():
        address_of("--replica", each)

    def keeper(log: Waltz) -> Keeper | Controller:
        if replica:
            return Controller(log, [parsed], place, {each: each for each in replica}, interval, clocks, generation or 1)
        return Keeper(log, [parsed], place, engine_of(engine, reach, checkpoint), interval, clocks)

    run(_kept(reach, parsed, place, keeper))


@reaching
def query(
    reach: WaltzReach,
    sql: Annotated[str, typer.Argument(help="One SELECT over views.")],
    as_of: Annotated[int | None, typer.Option(min=0, help="Read at this tick instead of the last one.")] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="PARTITION:TRANSACTION", help="Wait until this transaction is included; needs --ticks."),
    ] = None,
    ticks: Annotated[int | None, typer.Option("--ticks", min=0, help="The partition of the ticks.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Print the rows again whenever they change, until Ctrl-C.")
    ] = False,
    form: Output = Format.TABLE,
) -> None:
    """Answer a SELECT over the views in the partition that --partition names, all at one tick.

    As compute/NAME a ComputeCluster says itself where its log and its partitions are.
    """
    if watch and as_of is not None:
        raise UserError("give --watch or --as-of: what was at a tick does not change", ExitCode.USAGE)

    async def ask() -> None:
        place, ticks_in = await _place_of(reach, ticks)
        async with place.log() as log, Confined() as confined:
            confined.warm()

            async def answer(as_of: int | None = None) -> tuple[int, Any]:
                asked, tick, contents = views.asked(sql, as_of)
                return tick, await confined.answer(asked, views.tables(contents))

            views = Views(log, place.partition)
            await views.read_on()
            if after is not None:
                tick = await _including(log, after, ticks_in)
                await views.read_on({name: tick + 1 for name in views.names(sql)})
            tick, found = await answer(as_of)
            _print(tick, found, form)
            while watch:
                await views.read_on({name: tick + 2 for name in views.names(sql)})
                before = found
                tick, found = await answer()
                if not found.equals(before):
                    if sys.stdout.isatty() and not form.structured:
                        sys.stdout.write(CLEARED)
                    _print(tick, found, form)

    with as_user_error(QueryError, EntryError, code=ExitCode.REFUSED):
        run(ask())


def _print(tick: int, found: Any, form: Format) -> None:
    if form.structured:
        rows = [{name: plain(value) for name, value in row.items()} for row in found.to_pylist()]
        output.structured({"tick": tick, "rows": rows}, form)
    else:
        cells = [[_shown(value) for value in row.values()] for row in found.to_pylist()]
        output.table([name.upper() for name in found.column_names], cells)


@reaching
def follow(
    reach: WaltzReach,
    view: Annotated[str, typer.Argument(help="Name of the view.")],
    count: Annotated[int, typer.Option(min=0, help="Stop after this many ticks with changes; 0: never.")] = 0,
) -> None:
    """Print a view's rows, and then each change of it, as JSON on a line: tick, how many more or fewer, row."""

    async def print_changes() -> None:
        left = count
        place, _ = await _place_of(reach, None)
        async with place.log() as log, aclosing(Views(log, place.partition).follow(view)) as steps:
            async for columns, changes in steps:
                for row, tick, diff in changes:
                    shown = {name: plain(value) for name, value in zip(columns, row, strict=True)}
                    output.say(json.dumps({"tick": tick, "diff": diff, "row": shown}, ensure_ascii=False))
                left -= bool(changes)
                if count and left <= 0:
                    return

    with as_user_error(EntryError):
        run(print_changes())


def _parsed(script: Path) -> Script:
    try:
        return parse(script.read_text(encoding="utf-8"))
    except SqlError as error:
        raise UserError(f"{script}: {error}", ExitCode.USAGE) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{script} is no text in UTF-8: {error}", ExitCode.USAGE) from error


def engine_of(name: EngineName, reach: WaltzReach, checkpoint: str | None = None) -> Callable[[], Engine]:
    """Return what makes this engine. Spark's executors read the log where its servers are named."""
    if name is EngineName.PLAIN:
        return PlainEngine
    try:
        from pavane.spark.engine import SparkEngine  # noqa: PLC0415 - Spark is an extra of its own
        from pavane.spark.kept import Keeping  # noqa: PLC0415
        from pavane.spark.session import prepare  # noqa: PLC0415
        from pavane.spark.tables import Place as LogPlace  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise lacks(error, "spark") from error
    with as_user_error(RuntimeError):
        prepare()
    tls = "" if reach.authority is None else str(reach.authority.absolute())
    log = LogPlace(reach.servers, tls) if reach.servers and (reach.plain or tls) else None
    own = TemporaryDirectory(prefix="pavane-views-")

    def made() -> Engine:
        if checkpoint is None:
            return SparkEngine(keeping=Keeping(own.name, durable=False), place=log)
        folder = checkpoint if "://" in checkpoint else str(Path(checkpoint).absolute())
        return SparkEngine(keeping=Keeping(folder), place=log)

    return made


def address_of(option: str, text: str) -> tuple[str, int]:
    """Return host and port. Raises `UserError` that names the option."""
    try:
        return parse_address(text)
    except ValueError:
        raise UserError(f"{option} {text}: write HOST:PORT, as 127.0.0.1:7070", ExitCode.USAGE) from None


def make_clocks() -> Clocks:
    """Return those of this machine."""
    return Clocks(lambda: time.time_ns() // 1_000_000, time.monotonic, lambda: uuid.uuid4().hex)


async def _kept(reach: WaltzReach, script: Script, place: Place, make: Callable[[Waltz], Keeper | Controller]) -> None:
    said: dict[str, str] = {}

    def moved(progress: ViewRunner | Controller) -> None:
        for each in progress.views:
            if not each.upper and not each.failure:
                continue  # nothing is written yet
            words = f"failed: {each.failure}" if each.failure else "up to date"
            if said.get(each.view.name) != words:
                said[each.view.name] = words
                output.say(f"{each.view.name}: {words} at tick {each.upper - 1}, in partition {reach.partition}")

    def trouble(what: str) -> None:
        said.clear()
        output.note(f"trying again: {what}")

    stopped = stop_signal()
    async with reach.log() as log:
        await _checked(log, script, place)
        keeper = make(log)
        keeper.allowed.set()
        keeping = asyncio.create_task(keeper.run(moved, trouble))
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait({keeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (keeping, stopping):
            task.cancel()
        await asyncio.wait({keeping, stopping})
        error = None if keeping.cancelled() else keeping.exception()
        if isinstance(error, Fenced):
            raise UserError(f"another process took over: {error}", ExitCode.CONFLICT) from error
        if error is not None:
            with as_user_error(EngineError, EntryError):
                raise error


async def _checked(log: Waltz, script: Script, place: Place) -> None:
    """Refuse partitions that the log has not, or that have two uses."""
    used = {"--ticks": place.ticks, "--partition": place.views}
    read = {partition for table in script.tables for partition in table.partitions}
    for partition in (*used.values(), *read):
        if partition >= log.partition_count:
            raise UserError(f"the log has partitions 0 to {log.partition_count - 1}, not {partition}", ExitCode.USAGE)
    for option, partition in used.items():
        if partition in read or place.ticks == place.views:
            raise UserError(f"{option} {partition} must be a partition that nothing else uses", ExitCode.USAGE)


async def _place_of(reach: WaltzReach, ticks: int | None) -> tuple[WaltzReach, int | None]:
    """Return where the views are, and their ticks; a ComputeCluster knows both."""
    kind, slash, name = reach.name.partition("/")
    if not slash or KINDS.get(kind.lower()) != KINDS["computecluster"]:
        return reach, ticks
    async with cluster(reach.plane) as client:
        spec = (await client.get(KINDS["computecluster"], name, reach.plane.namespace))["spec"]
    place = replace(reach, name=spec["waltzClusterRef"]["name"], partition=spec["partitions"]["views"])
    return place, spec["partitions"]["ticks"]


async def _including(log: Waltz, after: str, ticks: int | None) -> int:
    partition, separator, txid = after.partition(":")
    if not separator or not partition.isdecimal() or not txid.isdecimal() or ticks is None:
        raise UserError("--after takes PARTITION:TRANSACTION, and needs --ticks", ExitCode.USAGE)
    return await Ticks(log, ticks, [int(partition)], lambda: 0).including(int(partition), int(txid))


def _shown(value: Any) -> str:
    return "NULL" if value is None else str(plain(value))
