"""``pavane raft kv``: the keys of a cluster (docs/specs/raft.md 12, 17)."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from pavane.raft.client import HeldLease, prefix_range
from pavane.raft.machines.commands import Compare, Delete, Op, Put, Range, Relation, Target
from pavane.raft.wire.frames import UINT_MAX
from pavane_api.raftkeys.schemas import REQUEST_ID_PATTERN, Key, result_of
from pavane_cli import output
from pavane_cli.archive import export_to, import_from
from pavane_cli.changes import Count, From, print_changes
from pavane_cli.data import DataFile, data_of, show
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.output import Format, Output
from pavane_cli.raft_reach import ClusterKeys, MinRevision, RaftReach, Stale, reaching
from pavane_cli.signals import stop_signal
from pavane_cli.target import run, run_with
from pavane_cli.transactions import parse_compare, parse_op

TTL_S = 10.0
UNFINISHED = ".unfinished"  # behind the name of a file until it is whole
SIGNALLED = 128  # and the number of the signal: how a shell tells what ended a program

KeyArgument = Annotated[str, typer.Argument(metavar="KEY")]
Prefix = Annotated[str, typer.Argument(metavar="PREFIX", help="Prefix of the keys; default: all.")]
LeaseOption = Annotated[
    int, typer.Option("--lease", metavar="ID", min=0, max=UINT_MAX, help="Delete the key when this lease ends.")
]
Ttl = Annotated[
    float,
    typer.Option(
        "--ttl", metavar="SECONDS", min=0.2, max=3600, help="Duration of the lease; it is renewed while held."
    ),
]
Archive = Annotated[Path | None, typer.Argument(metavar="FILE")]
Holder = Annotated[str, typer.Option(help="Name of the holder, for people.")]
RequestId = Annotated[
    str | None, typer.Option(help="Request id, 24 hexadecimal digits; repeated, it takes effect once.")
]


@reaching
def get(
    reach: RaftReach, key: KeyArgument, stale: Stale = False, min_revision: MinRevision = 0, form: Output = Format.TABLE
) -> None:
    """Print the value of a key; with -o json or yaml also its revisions. Exit code 3 if the key does not exist."""
    item = run_with(reach.store(stale=stale, since=min_revision), lambda store: store.kv.get(os.fsencode(key)))
    if item is None:
        raise UserError(f"there is no key {key}", ExitCode.NOT_FOUND)
    show(item.value, Key.of(item), form)


@reaching
def put(
    reach: RaftReach,
    key: KeyArgument,
    value: Annotated[str | None, typer.Argument(metavar="VALUE", help="Default: standard input.")] = None,
    file: DataFile = None,
    lease: LeaseOption = 0,
    if_revision: Annotated[
        int | None,
        typer.Option(metavar="REVISION", min=1, max=UINT_MAX, help="Only if the key's last write has this revision."),
    ] = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="Only if the key does not exist.")] = False,
    reqid: RequestId = None,
) -> None:
    """Write a key and print the revision. Exit code 4 if the condition does not hold."""
    name = os.fsencode(key)
    conditions = [Compare(Target.CREATE_REVISION, Relation.EQUAL, name, 0)] if if_absent else []
    if if_revision is not None:
        conditions.append(Compare(Target.MOD_REVISION, Relation.EQUAL, name, if_revision))
    data = data_of(value, file)
    present = [Range(name, flags=Range.KEYS_ONLY)] if conditions else []
    writes, once = [Put(name, data, lease)], request_id(reqid)
    result = run_with(reach.store(), lambda store: store.kv.txn(conditions, writes, present, reqid=once))
    if not result.succeeded:
        [[items, _]] = result.results
        state = f"is at revision {items[0][3]}" if items else "is not there"
        raise UserError(f"the key {key} {state}", ExitCode.REFUSED)
    output.say(str(result.revision))


@reaching
def delete(
    reach: RaftReach,
    key: KeyArgument,
    prefix: Annotated[bool, typer.Option("--prefix", help="All keys that begin with KEY.")] = False,
) -> None:
    """Delete a key and print how many were deleted."""
    name = os.fsencode(key)
    if prefix:
        count = run_with(reach.store(), lambda store: store.kv.delete_range(*prefix_range(name)))
    else:
        count = int(run_with(reach.store(), lambda store: store.kv.delete(name)))
    output.say(str(count))


@reaching
def list_keys(
    reach: RaftReach,
    prefix: Prefix = "",
    stale: Stale = False,
    min_revision: MinRevision = 0,
    form: Output = Format.TABLE,
) -> None:
    """List keys in order; with -o name only their names, with -o wide also their revisions."""
    wanted = prefix_range(os.fsencode(prefix))
    items = run_with(reach.store(stale=stale, since=min_revision), lambda store: store.kv.list(*wanted)).items
    if form.structured:
        output.structured([Key.of(item).model_dump(mode="json", by_alias=True) for item in items], form)
    elif form is Format.NAME:
        for item in items:
            output.say(output.printable(item.key))
    else:
        plain = [(output.printable(item.key), output.printable(item.value)) for item in items]
        numbers = [(item.create_revision, item.mod_revision, item.version, item.lease or "") for item in items]
        wide = ("CREATED", "REVISION", "VERSION", "LEASE") if form is Format.WIDE else ()
        rows = [(*pair, *more[: len(wide)]) for pair, more in zip(plain, numbers, strict=True)]
        output.table(("KEY", "VALUE", *wide), rows)


@reaching
def watch(
    reach: RaftReach, prefix: Prefix = "", first: From = 0, count: Count = 0, form: Output = Format.TABLE
) -> None:
    """Print each change once and in order, until Ctrl-C: revision, event, key, value."""
    wanted = prefix_range(os.fsencode(prefix))
    run_with(reach.store(), lambda store: print_changes(store.kv.watch(*wanted, from_=first), count, form))


@reaching
def txn(
    reach: RaftReach,
    conditions: Annotated[
        list[str] | None, typer.Option("--if", metavar="CONDITION", help="For example 'mod(KEY) = 7'; may be repeated.")
    ] = None,
    then: Annotated[
        list[str] | None, typer.Option("--then", metavar="OP", help="For example 'put KEY VALUE'; may be repeated.")
    ] = None,
    otherwise: Annotated[list[str] | None, typer.Option("--else", metavar="OP", help="If one does not.")] = None,
    reqid: RequestId = None,
    form: Output = Format.TABLE,
) -> None:
    """Run one of two branches atomically, and print which one and the results.

    Conditions: value, version, create, mod, lease, dataversion or cversion of (KEY), then = != < > and what to compare
    with; or alive(LEASE). Ops: put KEY VALUE [LEASE], get KEY, del KEY, list PREFIX, delprefix PREFIX; on a tree create
    PATH [DATA], set PATH DATA [VERSION], rm PATH [VERSION], check PATH [VERSION], node PATH, children PATH. Exit code 4
    if a condition does not hold and there is no --else.
    """
    compares = [parse_compare(text) for text in conditions or ()]
    branches = [[parse_op(text) for text in texts or ()] for texts in (then, otherwise)]
    once = request_id(reqid)
    result = run_with(reach.store(), lambda store: store.kv.txn(compares, *branches, reqid=once))
    ops: list[Op] = branches[0] if result.succeeded else branches[1]
    results = [
        result_of(op, fields).model_dump(mode="json", by_alias=True, exclude_none=True)
        for op, fields in zip(ops, result.results, strict=True)
    ]
    if form.structured:
        told = {"succeeded": result.succeeded, "revision": result.revision, "results": results}
        output.structured(told, form)
    else:
        output.say(f"{'then' if result.succeeded else 'else'} at revision {result.revision}")
        for op, fields in zip(ops, result.results, strict=True):
            output.say("  ".join(shown(op, fields)))
    if not result.succeeded and otherwise is None:
        raise UserError("a condition does not hold", ExitCode.REFUSED)


@reaching
def lease_command(reach: RaftReach, ttl: Ttl = TTL_S, holder: Holder = "") -> None:
    """Hold a lease until Ctrl-C or SIGTERM, and print its id first. Keys bound to it are deleted when it ends."""

    async def hold() -> None:
        async with _held(reach, ttl, holder) as (_, lease):
            stop = stop_signal()
            output.say(str(lease.id))
            await _until_stopped(stop, lease)

    run(hold())


@reaching
def lock(
    reach: RaftReach,
    key: KeyArgument,
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- PROGRAM…", help="Program to run; default: hold the lock until Ctrl-C."),
    ] = None,
    ttl: Ttl = TTL_S,
    holder: Holder = "",
) -> None:
    """Wait for a lock, hold it while PROGRAM runs, and exit with its code; default: print the fencing token and hold.

    PROGRAM finds the token in PAVANE_TOKEN and the lease in PAVANE_LEASE. It gets SIGTERM when the lease is lost; then
    the exit code is 1.
    """

    async def hold() -> int:
        async with _held(reach, ttl, holder) as (store, lease):
            stop = stop_signal()
            locking = asyncio.ensure_future(store.kv.lock(os.fsencode(key), lease.id, holder.encode()))
            match await _first(locking, stop.wait(), lease.lost.wait()):
                case 1:
                    return ExitCode.INTERRUPTED
                case 2:
                    raise _lost(lease)
            token = locking.result()
            # The lock is given back by the end of the lease, which deletes it.
            if program:
                variables = {**os.environ, "PAVANE_TOKEN": str(token), "PAVANE_LEASE": str(lease.id)}
                return await _program(program, variables, lease)
            output.say(str(token))
            await _until_stopped(stop, lease)
            return ExitCode.DONE

    raise typer.Exit(run(hold()))


@reaching
def export(reach: RaftReach, file: Archive = None) -> None:
    """Write all keys and nodes as lines of JSON to FILE, default standard output, without keys bound to leases.

    FILE is replaced at the end. Concurrent writes may or may not be included.
    """
    with nullcontext(sys.stdout) if file is None else _replacing(file) as target:
        count = run_with(reach.store(), lambda store: export_to(store, target))
    output.note(f"keys and nodes: {count}")


@reaching
def import_keys(reach: RaftReach, file: Archive = None) -> None:
    """Write what `export` wrote, from FILE or standard input, overwriting existing keys. Versions start again."""
    with nullcontext(sys.stdin) if file is None else file.open(encoding="ascii") as source:
        count = run_with(reach.store(), lambda store: import_from(store, source))
    output.note(f"keys and nodes: {count}")


@contextmanager
def _replacing(file: Path) -> Iterator[TextIO]:
    """Lend a file to write, which takes the place of ``file`` at the end; a device or a link is written itself."""
    if file.is_symlink() or (file.exists() and not file.is_file()):
        with file.open("w", encoding="ascii") as target:
            yield target
        return
    unfinished = file.with_name(file.name + UNFINISHED)
    try:
        with unfinished.open("w", encoding="ascii") as target:
            yield target
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def request_id(text: str | None) -> bytes | None:
    """Return the bytes of a request id that a user gave."""
    if text is None:
        return None
    if not re.fullmatch(REQUEST_ID_PATTERN, text):
        raise UserError(f"--reqid: {text} is not 24 hexadecimal digits in lower case", ExitCode.USAGE)
    return bytes.fromhex(text)


def shown(op: Op, fields: Sequence[Any]) -> list[str]:
    """Return the cells of a line about the result of an op."""
    told = result_of(op, fields)
    name = type(op).__name__.lower()
    if told.items is not None:
        return [name, *(f"{output.printable(item.key)}={output.printable(item.value)}" for item in told.items)]
    if isinstance(op, Delete) or told.deleted is not None:
        return [name, str(told.deleted)]
    cells = (
        told.version,
        None if told.path is None else output.printable(told.path),
        None if told.node is None else f"{output.printable(told.node.data)}  version {told.node.version}",
        None if told.children is None else " ".join(map(output.printable, told.children)),
    )
    return [name, *(str(cell) for cell in cells if cell is not None)]


@asynccontextmanager
async def _held(reach: RaftReach, ttl_s: float, holder: str) -> AsyncIterator[tuple[ClusterKeys, HeldLease]]:
    async with reach.store() as store, store.kv.lease(ttl_s, holder.encode()) as lease:
        yield store, lease


async def _until_stopped(stop: asyncio.Event, lease: HeldLease) -> None:
    """Wait until we are told to stop; raises ``UserError`` if the lease is lost before."""
    if await _first(stop.wait(), lease.lost.wait()) == 1:
        raise _lost(lease)


def _lost(lease: HeldLease) -> UserError:
    return UserError(f"lease {lease.id} is lost; what was bound to it is gone")


async def _program(program: Sequence[str], variables: dict[str, str], lease: HeldLease) -> int:
    """Run a program to its end and return its exit code, which after a signal is that of a shell.

    If the lease is lost the program is told to end; raises ``UserError`` when it has.
    """
    try:
        process = await asyncio.create_subprocess_exec(*program, env=variables)
    except OSError as error:
        raise UserError(f"{program[0]} cannot be run: {error}", ExitCode.USAGE) from error

    def pass_on(number: int) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            process.send_signal(number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, pass_on, number)
    if await _first(process.wait(), lease.lost.wait()) == 1:
        output.note(f"lease {lease.id} is lost: stopping {program[0]}")
        pass_on(signal.SIGTERM)
        await process.wait()
        raise _lost(lease)
    code = await process.wait()
    return code if code >= 0 else SIGNALLED - code


async def _first(*waits: Awaitable[object]) -> int:
    """Return which of the waits ends first."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(position for position, task in enumerate(tasks) if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
