"""``store.json``: whose store a data folder is (docs/specs/raft.md 13.2). Written once, when the store is made."""

import json
from dataclasses import asdict, dataclass

from pavane.raft.storage.records import ForeignStore, StoreError
from pavane.wal import Folder
from pavane.wal.files import replace_file

NAME = "store.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """What a store and its configuration must agree on; an empty ``cluster_id`` agrees with any."""

    peer: str
    machine: str
    cluster_id: str = ""


def write_identity(folder: Folder, identity: Identity, store_id: bytes) -> None:
    """Write ``store.json`` durably."""
    text = json.dumps({"version": VERSION, "store_id": store_id.hex(), **asdict(identity)}, indent=1)
    replace_file(folder, NAME, text.encode() + b"\n")


def read_identity(folder: Folder, wanted: Identity) -> bytes | None:
    """Return the store id, None for a folder without a store.

    Raises ``ForeignStore`` with both values when the store is another's, ``StoreError`` when the file is unreadable.
    """
    stored = stored_identity(folder)
    if stored is None:
        return None
    identity, store_id = stored
    found = asdict(identity)
    for key, value in asdict(wanted).items():
        if value != found[key] and not (key == "cluster_id" and "" in (value, found[key])):
            raise ForeignStore(
                f"{folder} belongs to {key} {found[key]!r}, the configuration says {value!r}; "
                "correct the configuration or use another data folder"
            )
    return store_id


def stored_identity(folder: Folder) -> tuple[Identity, bytes] | None:
    """Return whose store the folder holds, and the store id; None for a folder without a store.

    Raises ``StoreError`` when the file is unreadable or of another version.
    """
    if NAME not in folder.names():
        return None
    file = folder.open(NAME)
    try:
        found = json.loads(file.read(0, file.size))
        version = found["version"]
        if version != VERSION:
            raise StoreError(
                f"{folder} has format version {version}, this program reads {VERSION}; use the program's version"
            )
        identity = Identity(*(str(found[key]) for key in ("peer", "machine", "cluster_id")))
        return identity, bytes.fromhex(found["store_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{folder}/{NAME} is damaged; restore it from a copy, or start with an empty folder"
        ) from error
    finally:
        file.close()
