"""``pavane waltz adopt|validate|bench``."""

from typing import Annotated

import typer

from pavane.waltz.client.tools import measure
from pavane.waltz.client.tools import validate as validate_log
from pavane_api.waltzlog.schemas import AdoptedLog
from pavane_cli import output
from pavane_cli.failures import UserError
from pavane_cli.output import Format, Output
from pavane_cli.reach import ControlPlane, through_plane
from pavane_cli.target import run, run_with
from pavane_cli.waltz_reach import Name, WaltzReach, reaching

CLIENTS_MAX = 1000
SIZE_MAX_BYTES = 16 * 1024 * 1024


@reaching
def validate(
    reach: WaltzReach,
    clients: Annotated[int, typer.Option(min=1, max=CLIENTS_MAX, help="Writers at once.")] = 4,
    count: Annotated[int, typer.Option(min=1, help="Transactions to append.")] = 1000,
    form: Output = Format.TABLE,
) -> None:
    """Append to a partition that nobody else writes to, and check that the log is serializable. Exit code 1 if not.

    Each writer appends the number that its transaction has to get, under one lock that all of them write. The
    transactions stay in the log.
    """

    found = run_with(reach.log(), lambda log: validate_log(log, reach.partition, clients, count))
    if form.structured:
        values = {name: getattr(found, name) for name in ("partition", "first", "appended", "conflicts", "unknown")}
        output.structured({**values, "seconds": round(found.seconds, 3), "faults": found.faults}, form)
    else:
        output.say(
            f"partition {found.partition}: {found.appended} appended from transaction {found.first} on, "
            f"{found.conflicts} conflicts, {found.unknown} with unknown outcome, in {found.seconds:.1f} s"
        )
    if found.faults:
        raise UserError("\n  ".join(["the log is not in order:", *found.faults]))
    if not form.structured:
        output.say("every transaction holds its own number: nothing lost, doubled or out of order")


@reaching
def bench(
    reach: WaltzReach,
    size: Annotated[int, typer.Option(min=0, max=SIZE_MAX_BYTES, help="Bytes of each transaction.")] = 100,
    count: Annotated[int, typer.Option(min=1, help="Transactions to append.")] = 10_000,
    under_way: Annotated[int, typer.Option(min=1, max=1000, help="Appends that wait at once.")] = 100,
    form: Output = Format.TABLE,
) -> None:
    """Measure appends to a partition by one client, without locks. The transactions stay in the log."""

    found = run_with(reach.log(), lambda log: measure(log, [reach.partition], bytes(size), count, under_way))
    values = {
        "appends": found.appends,
        "bytes": size,
        "underWay": under_way,
        "perSecond": round(found.per_second),
        "p50Ms": round(found.p50_ms, 2),
        "p99Ms": round(found.p99_ms, 2),
    }
    if form.structured:
        output.structured(values, form)
    else:
        output.say(
            f"{found.appends} appends of {size} bytes, {under_way} under way: {found.per_second:,.0f} a second; "
            f"each took {found.p50_ms:.2f} ms (median), {found.p99_ms:.2f} ms (99 %)"
        )


@through_plane
def adopt(
    plane: ControlPlane,
    name: Name,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only look at the storage nodes.")] = False,
) -> None:
    """Make the registry of a log again that its RaftCluster has lost, from what a majority of storage nodes holds."""

    async def ask() -> AdoptedLog:
        async with plane.rest() as rest:
            path = f"{plane.path_of('waltz', name)}/partitions/adopt?dryRun={dry_run}"
            return AdoptedLog.model_validate(await rest.post(path, b""))

    output.say(run(ask()).sentence(dry_run=dry_run))
