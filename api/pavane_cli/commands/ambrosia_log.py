"""``pavane ambrosia log``: what an instance was asked to do, out of its files (docs/specs/ambrosia.md 12.3)."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from pavane.ambrosia.client.beside import CLOCK, FIRED, INGRESS, RAN
from pavane.ambrosia.client.definition import Definition
from pavane.ambrosia.client.immortal import definition
from pavane.ambrosia.client.values import MARKER, unpack
from pavane.ambrosia.errors import FatalError
from pavane.ambrosia.storage import LOG, LogReader
from pavane.ambrosia.wire.messages import BATCH_TYPES, RPC_TYPES, Call, Frame, Type, read_batch, read_frames, read_rpc
from pavane.ambrosia.wire.records import LogRecord
from pavane.wal.files import DiskFolder
from pavane_cli import output
from pavane_cli.commands.ambrosia_run import DEFAULT_LOG, Log, instance_folder, load
from pavane_cli.failures import UserError, as_user_error
from pavane_cli.output import Format, Output

SHOWN_CHARACTERS = 60  # of the arguments on a line
_OURS = {RAN: "result of run", FIRED: "timer", CLOCK: "clock"}


def log(
    name: Annotated[str, typer.Argument(help="Name of the instance.")],
    log: Log = DEFAULT_LOG,
    application: Annotated[
        str | None, typer.Option(metavar="MODULE:CLASS", help="The application: methods are shown by name.")
    ] = None,
    from_: Annotated[int, typer.Option("--from", min=0, help="The first record.")] = 0,
    form: Output = Format.TABLE,
) -> None:
    """Print each message of an immortal's log on a line: record, kind, sender, method, arguments.

    With -o json each is an object with file and offset. A damaged record that others follow ends it with exit code 1.
    """
    folder = instance_folder(log, name)
    known = definition(load(application)) if application is not None else None
    files = DiskFolder(folder)
    numbers = sorted(int(each[len(LOG) :]) for each in files.names() if each[len(LOG) :].isdigit())
    for number in numbers:
        with as_user_error(FatalError):
            reader = LogReader(files, number)
        try:
            _print(reader, known, from_, form)
        finally:
            reader.close()


def _print(reader: LogReader, known: Definition | None, first: int, form: Format) -> None:
    """Print a file; raises ``UserError`` where records are damaged that others follow."""
    file, last, offset = f"{LOG}{reader.number}", None, 0
    while (record := reader.read()) is not None:
        for index, message in enumerate(_messages(record) if record.seq >= first else ()):
            row = {"record": record.seq, "index": index, **_row(message, known)}
            if form.structured:
                output.say(json.dumps({**row, "file": file, "offset": offset}, ensure_ascii=False))
            else:
                output.say(_line(row))
        last, offset = record, reader.offset
    left = reader.size - offset
    if not left:
        return
    later = reader.later(last.committer, last.seq + 1) if last is not None else None
    if later is not None:
        text = f"{file}: what stands at offset {offset} is damaged, and a whole record follows at {later}"
        raise UserError(f"{text}; restore the file from a copy")
    output.note(f"{file}: {left} bytes at offset {offset} are no whole record: a crash tore it, nobody was told of it")


def _messages(record: LogRecord) -> Iterator[Frame]:
    for message in read_frames(record.body):
        if message.type in BATCH_TYPES:
            yield from read_batch(message)
        else:
            yield message


def _row(message: Frame, known: Definition | None) -> dict[str, Any]:
    """Return the fields of a message for a line or an object."""
    if message.type == Type.INITIAL_MESSAGE:
        return {"kind": "first start", "bytes": len(message.data)}
    if message.type not in RPC_TYPES:
        return {"kind": f"type {message.type}", "bytes": len(message.data)}
    rpc = read_rpc(message.data)
    if not isinstance(rpc, Call):
        row = {"kind": f"answer ({rpc.kind.name.lower()})", "sender": rpc.sender, "call": rpc.number}
        return {**row, "arguments": _readable(rpc.value)}
    row = {"kind": rpc.rpc.name.lower()}
    if rpc.sender:
        row |= {"sender": rpc.sender, "call": rpc.number}
    if rpc.method == INGRESS:
        try:
            _, key, number, data = unpack(rpc.arguments)
            row |= {"kind": "request", "method": _method(int(number), known), "arguments": _readable(bytes(data))}
        except (ValueError, TypeError):
            return {**row, "method": str(INGRESS), "arguments": _readable(rpc.arguments)}
        return {**row, "key": key} if key else row
    title = _OURS.get(rpc.method) or _method(rpc.method, known)
    return {**row, "method": title, "arguments": _readable(rpc.arguments)}


def _method(number: int, known: Definition | None) -> str:
    found = known.methods.get(number) if known is not None else None
    return found.name if found is not None else str(number)


def _readable(data: bytes) -> str:
    """Return arguments as text: those of our binding and JSON as they are, others as hexadecimal digits."""
    try:
        if data[:1] == b"{":
            return data.decode()
        return str(unpack(data[1:] if data[:1] == MARKER else data)) if data else ""
    except ValueError:
        return data.hex()


def _line(row: dict[str, Any]) -> str:
    arguments = str(row.get("arguments", ""))
    shown = arguments if len(arguments) <= SHOWN_CHARACTERS else f"{arguments[:SHOWN_CHARACTERS]}…"
    sender = f"from {row['sender']}, call {row['call']}" if "sender" in row else ""
    key = f"key {row['key']}" if row.get("key") else ""
    parts = (f"{row['record']}.{row['index']}", row["kind"], row.get("method", ""), shown, sender, key)
    return "  ".join(str(part) for part in parts if part)
