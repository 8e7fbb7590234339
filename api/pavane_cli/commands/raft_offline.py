"""``pavane raft dump|verify|compact|import-js|export-js|repair|recover``: the folder of a peer that is down.

docs/specs/raft.md 13.6 and 17.
"""

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pavane.raft.config import BROADCAST
from pavane.raft.machine import UnknownMachine
from pavane.raft.offline.compacting import compact as compacting
from pavane.raft.offline.compacting import digest_at
from pavane.raft.offline.js_folder import JsFolder
from pavane.raft.offline.manifest import PEER as BACKUP_PEER
from pavane.raft.offline.manifest import checked, manifest_of, rebuilt
from pavane.raft.offline.mend import carry_out
from pavane.raft.offline.mend import recover as recovering
from pavane.raft.offline.mend import repair as repairing
from pavane.raft.offline.moving import Moved
from pavane.raft.offline.moving import export_js as export_folder
from pavane.raft.offline.moving import import_js as import_folder
from pavane.raft.offline.remote import copies
from pavane.raft.offline.store import StoredLog
from pavane.raft.offline.writing import mapped
from pavane.raft.state.commands import RECOVERING_FLOOR
from pavane.raft.state.configuration import Configuration
from pavane.raft.storage import Identity, StoreError, StoreLocked
from pavane.raft.storage.js_files import JsFileError
from pavane.raft.wire.entry import EntryType, entry_data, entry_reqid, entry_term, entry_type
from pavane.wire import RemoteProtocolError
from pavane_cli import output
from pavane_cli.backups import Meter, Option, Place, Yes, confirm, folder_at, store_of
from pavane_cli.commands.raft_peer import ClusterId, members_of
from pavane_cli.entries import words
from pavane_cli.failures import ExitCode, UserError

if TYPE_CHECKING:
    from pavane.runtime.objects import ObjectStore

Folder = Annotated[Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="Data folder of the peer.")]
JsSource = Annotated[
    Path, typer.Argument(metavar="JS", exists=True, file_okay=False, help="Data folder of a zmq-raft peer.")
]


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """Turn the errors of the offline tools into ``UserError``."""
    try:
        yield
    except BrokenPipeError:  # who reads the output has seen enough
        raise
    except StoreLocked as error:
        raise UserError(str(error), ExitCode.REFUSED) from error
    except (StoreError, JsFileError, UnknownMachine, OSError) as error:
        raise UserError(str(error)) from error


def store_at(url: str, option: list[str] | None, *, make: bool = False) -> "ObjectStore":
    """Return the store; options that are secret come from the environment. Raises ``StoreError``, ``UserError``."""
    return store_of(url, option, StoreError, make=make)


def dump(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="Data folder, ours or zmq-raft's.")
    ],
    as_hex: Annotated[bool, typer.Option("--hex", help="Print index and complete entry in hexadecimal.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Only entries after this index.")] = 0,
) -> None:
    """Print every entry of a log: index, term, type, request id and data, commands of keys in words."""

    def show(index: int, entry: memoryview, *, commands: bool = False) -> None:
        # A log has millions of lines: they are not flushed one by one.
        if as_hex:
            sys.stdout.write(f"{index} {entry.hex()}\n")
            return
        number = entry_type(entry)
        kind = EntryType(number).name.title() if number in set(EntryType) else str(number)
        data = output.printable(bytes(entry_data(entry)))
        if number == EntryType.CONFIG:
            data = configuration_text(entry_data(entry))
        elif commands:
            data = words(kind, bytes(entry_data(entry)))
        sys.stdout.write(f"{index}  {entry_term(entry)}  {kind}  {entry_reqid(entry).hex()}  {data}\n")

    with failures():
        if StoredLog.is_one(folder):
            with StoredLog(folder, Meter("reading")) as stored:
                for index, entry in stored.entries(after + 1):
                    show(index, entry, commands=stored.identity.machine != BROADCAST)
                if stored.damage is not None and not stored.damage.torn:
                    raise UserError("; ".join(stored.faults()))
        elif JsFolder.is_one(folder):
            for index, entry in JsFolder(folder).entries():
                if index > after:
                    show(index, entry)
        else:
            raise UserError(f"{folder} is neither our data folder of a peer nor one of zmq-raft", ExitCode.NOT_FOUND)


def verify(
    place: Place,
    at: Annotated[
        int | None, typer.Option("--at", metavar="INDEX", help="Entry for the digest; default: the last committed.")
    ] = None,
    all_configurations: Annotated[
        bool, typer.Option("--all", help="Show every configuration in the log, not only the one that counts.")
    ] = False,
    option: Option = None,
) -> None:
    """Check checksums, order, terms and configurations of a store; exit code 1 if something is wrong.

    Of a machine with a state the digest is printed; members that hold the same print the same at one index. A backup
    is compared with its manifest, too. One at a URL is fetched whole and its state built up.
    """
    with failures(), folder_at(copies, place, option) as folder:
        _verify(folder, at, all_configurations)


def _verify(folder: Path, at: int | None, all_configurations: bool) -> None:
    # First of all, for a backup is wrong wherever one bit is, even where a peer would start.
    manifest = None if manifest_of(folder) is None else checked(folder)
    with StoredLog(folder, Meter("checking")) as stored:
        recovered, identity = stored.recovered, stored.identity
        cluster = f" of cluster {identity.cluster_id}" if identity.cluster_id else ""
        output.say(f"store of peer {identity.peer}{cluster}, machine {identity.machine}")
        if manifest is not None:
            output.say(
                f"backup of everything up to entry {manifest.index} of term {manifest.term}, "
                f"{len(manifest.files)} files as they were written"
            )
        output.say(f"segments of the log: {stored.segments}, {stored.log_bytes:,} bytes")
        if recovered.snapshot is not None:
            snapshot = recovered.snapshot
            output.say(
                f"snapshot up to entry {snapshot.index} of term {snapshot.term}, {snapshot.data_bytes:,} bytes of data"
            )
        output.say(
            f"{_range(recovered.first_index, recovered.last_index)}, term {recovered.term}, "
            f"known committed {recovered.commit}"
        )
        for index, data in recovered.configurations[0 if all_configurations else -1 :]:
            output.say(f"entry {index}: members {configuration_text(data)}")
        if recovered.vote_floor == RECOVERING_FLOOR:
            output.say("the peer has lost entries; it does not vote until the others have brought it up to date")
        for name, size in stored.set_aside:
            output.say(f"set aside as damaged by an earlier start: {name}, {size:,} bytes")
        if stored.damage is not None and stored.damage.torn:
            output.say("the last write is incomplete and was never acknowledged; the next start drops it")
        faults = stored.faults()
        if identity.peer == BACKUP_PEER and manifest is None:
            checked(folder)
        if faults:
            raise UserError("; ".join(faults))
        meter = Meter("replaying")
        try:
            if manifest is not None and at is None:
                digest = rebuilt(stored, manifest, meter)
                state = (manifest.index, digest) if digest else None
            else:
                state = digest_at(stored, at, meter)
        except UnknownMachine as error:
            state = None
            output.note(f"note: no digest of the state: {error}")
        if state is not None:
            output.say(f"digest of the state at entry {state[0]}: {state[1].hex()}")
        output.say("good")


def import_js(
    source: JsSource,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Data folder to create.")],
    peer: Annotated[str, typer.Option("--id", metavar="ID", help="Id of the peer, unchanged.")],
    cluster_id: ClusterId = "",
) -> None:
    """Convert the data folder of a stopped zmq-raft peer to ours."""
    with failures():
        moved = import_folder(
            source, folder, Identity(peer, BROADCAST, cluster_id), int(time.time()), Meter("importing")
        )
    tell(moved, folder)


def export_js(
    folder: Folder, target: Annotated[Path, typer.Argument(metavar="JS", help="zmq-raft data folder to create.")]
) -> None:
    """Create a data folder for a zmq-raft peer. Never start the peer of DIR again."""
    with failures():
        moved = export_folder(folder, target, Meter("reading"))
    tell(moved, target)


def compact(
    folder: Folder,
    index: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Last entry in the snapshot; default: the last known committed one."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="Machine Broadcast: the application's state at that entry.",
        ),
    ] = None,
) -> None:
    """Take a snapshot and truncate the log before it. zmq-raft peers can no longer join such a cluster."""
    with failures():
        taken = compacting(folder, index, None if data is None else mapped(data), Meter("reading"))
    output.say(f"{folder}: snapshot up to entry {taken}")


def repair(
    folder: Folder,
    truncate_after: Annotated[int, typer.Option(min=0, metavar="N", help="Last index to keep.")],
    yes: Yes = False,
) -> None:
    """Drop the end of a log that differs from the cluster's; the peer does not vote until it has caught up."""
    with failures():
        with StoredLog(folder, Meter("reading")) as stored:
            identity, commands = stored.identity, repairing(stored, truncate_after)
            last, commit = stored.recovered.last_index, stored.recovered.commit
        output.say(f"drops: entries {truncate_after + 1} to {last}")
        if commit > truncate_after:
            output.say(f"of these, entries up to {commit} are committed: they must be on other members")
        confirm(yes)
        carry_out(folder, identity, commands)


def recover(
    folder: Folder,
    members: Annotated[str, typer.Option("--members", metavar="ID=URL", help="The peer itself, as the only member.")],
    yes: Yes = False,
) -> None:
    """After a majority is lost, make a survivor the only member of its cluster."""
    with failures():
        with StoredLog(folder, Meter("reading")) as stored:
            identity, commands = stored.identity, recovering(stored, members_of("--members", members))
            recovered, former = stored.recovered, stored.configuration
        if former is not None:
            output.say(f"members until now: {members_text(former[1])}")
        output.say(
            f"kept: entries {recovered.first_index} to {recovered.last_index}, known committed {recovered.commit}"
        )
        output.say(f"lost: whatever was acknowledged with an index above {recovered.last_index}")
        if recovered.last_index > recovered.commit:
            output.say(
                f"perhaps never acknowledged, and committed by this: entries {recovered.commit + 1} "
                f"to {recovered.last_index}"
            )
        output.say("the former members must never run again with their data")
        confirm(yes)
        carry_out(folder, identity, commands)


def _range(first: int, last: int) -> str:
    return f"entries {first} to {last}" if first <= last else f"no entries behind {last}"


def tell(moved: Moved, target: Path) -> None:
    """Print what was moved."""
    output.say(f"{target}: {_range(moved.first, moved.last)}, term {moved.term}")
    if moved.configuration is not None:
        output.say(f"members {members_text(moved.configuration)}")
    for remark in moved.remarks:
        output.note(f"note: {remark}")


def members_text(configuration: Configuration) -> str:
    """Return a configuration as ``ID=URL,…``; a change under way as old and new."""
    texts = [",".join(f"{peer}={url}" for peer, url in group) for group in (configuration.old or (), configuration.new)]
    return " to ".join(text for text in texts if text)


def configuration_text(data: bytes | memoryview) -> str:
    """Return the data of a CONFIG entry as text, whatever it holds."""
    try:
        return members_text(Configuration.decode(data))
    except RemoteProtocolError:
        return output.printable(bytes(data))
