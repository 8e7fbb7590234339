"""A backup in object storage: its files by their names below a URL, and the manifest last (docs/specs/raft.md 13.5)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pavane.raft.offline.manifest import AGAIN, DIGEST_BYTES, FILE, NAME, Manifest, manifest_of
from pavane.raft.offline.store import Progress, no_progress
from pavane.raft.storage import StoreError

if TYPE_CHECKING:
    from pavane.runtime.objects import ObjectStore  # its library is installed with `pavane[services]` alone

READ_BYTES = 8 << 20  # of an object, in one call; the whole may be greater than memory
DELETED_MAX = 100  # in one call, which has a time to end
MANIFEST_BYTES_MAX = 64 << 20  # 400 000 files


async def vacant(store: ObjectStore) -> set[str]:
    """Return the objects that an interrupted run left at the URL; raises ``StoreError`` if a backup is there."""
    there = await store.sizes()
    if NAME in there:
        raise StoreError(f"{store.url} holds a backup: give each a URL of its own")
    return set(there)


async def upload(folder: Path, store: ObjectStore, progress: Progress = no_progress) -> Manifest:
    """Write the backup in ``folder``, the manifest last: until then there is none. Raises ``StoreError``.

    What an interrupted run left of the same files is written over.
    """
    manifest = manifest_of(folder)
    if manifest is None:
        raise StoreError(f"{folder} has no {NAME}: it is no backup; {AGAIN}")
    foreign = sorted(await vacant(store) - manifest.files.keys())
    if foreign:
        raise StoreError(f"{store.url} holds {foreign[0]}, which is not of this backup: give a URL that holds nothing")
    done, total = 0, sum(size for size, _ in manifest.files.values())
    for name, (size, _) in manifest.files.items():
        progress(done, total)
        await store.write(name, folder / name)
        done += size
    _compare(store.url, manifest, await store.sizes())
    await store.write(NAME, manifest.encode())
    return manifest


async def download(store: ObjectStore, folder: Path, progress: Progress = no_progress) -> Manifest:
    """Copy the backup to ``folder``, which is empty; each file is as it was written. Raises ``StoreError``."""
    there = await store.sizes()
    size = there.pop(NAME, None)
    if size is None:
        raise StoreError(
            f"{store.url} has no {NAME}, which a backup gets last: the copy was interrupted, or it is no backup"
        )
    if size > MANIFEST_BYTES_MAX:
        raise StoreError(f"{store.url}/{NAME} is damaged: it has {size} bytes")
    manifest = Manifest.decode(await _manifest(store, NAME) or b"")
    _compare(store.url, manifest, there)
    done, total = 0, sum(there.values())
    for name, (size, check) in manifest.files.items():
        progress(done, total)
        (folder / name).parent.mkdir(exist_ok=True)
        if await _fetch(store, name, size, folder / name) != check:
            raise StoreError(_changed(store.url, f"{name} is damaged"))
        done += size
    (folder / NAME).write_bytes(manifest.encode())
    return manifest


@dataclass(frozen=True, slots=True)
class Kept:
    """A backup below a URL, and its objects.

    ``fault`` says why it cannot be restored, as far as names and sizes tell; ``manifest`` is None if it is damaged.
    """

    name: str
    written: datetime
    objects: dict[str, int]
    manifest: Manifest | None
    fault: str


async def backups(store: ObjectStore) -> list[Kept]:
    """Return the backups whose URLs are a name behind that of ``store``, the newest first. Raises ``StoreError``."""
    listed = await store.ask("listing", "", lambda held: {each["path"]: each for some in held.list() for each in some})
    objects: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for path, each in listed.items():
        name, _, inside = path.partition("/")
        objects[name][inside] = each["size"]
    found = []
    for name, sizes in objects.items():
        if NAME not in sizes or store.is_link(name):
            continue
        path, manifest, fault = f"{name}/{NAME}", None, ""
        data = await _manifest(store, path) if sizes[NAME] <= MANIFEST_BYTES_MAX else b""
        if data is None:
            continue  # another run has just deleted it
        try:
            manifest = Manifest.decode(data)
            _compare(f"{store.url}/{name}", manifest, {each: size for each, size in sizes.items() if each != NAME})
        except StoreError as error:
            fault = str(error)
        found.append(Kept(name, listed[path]["last_modified"], sizes, manifest, fault))
    return sorted(found, key=lambda each: (each.written, each.name), reverse=True)


def surplus(found: Sequence[Kept], keep: int) -> Sequence[Kept]:
    """Return those that are older than the ``keep`` newest without a fault; ``found`` begins with the newest."""
    whole = 0
    for number, each in enumerate(found):
        if whole == keep:
            return found[number:]
        whole += not each.fault
    return ()


async def remove(store: ObjectStore, backup: Kept) -> None:
    """Delete a backup below the URL, the manifest last: one that is half gone is found again. Raises ``StoreError``."""
    known = backup.manifest.files if backup.manifest is not None else {}
    own = [name for name in backup.objects if name in known or FILE.fullmatch(name)]  # not what lies deeper, or beside
    names = [f"{backup.name}/{name}" for name in (*own, NAME)]
    for start in range(0, len(names), DELETED_MAX):
        await store.ask("deleting", backup.name, partial(_delete, names[start : start + DELETED_MAX]))


async def clear(store: ObjectStore) -> None:
    """Delete what there is of a backup at the URL itself, for another one there. Raises ``StoreError``.

    The manifest goes first: what an interrupted run leaves is no backup, and not taken for one.
    """
    there = await store.sizes()
    names = [NAME] * (NAME in there) + [name for name in there if FILE.fullmatch(name)]
    for start in range(0, len(names), DELETED_MAX):
        await store.ask("deleting", "", partial(_delete, names[start : start + DELETED_MAX]))


def _delete(names: list[str], held: Any) -> None:
    for name in names:  # one by one, as each store can: the place of the manifest among them matters
        with suppress(FileNotFoundError):  # another run, or this one before an answer was lost
            held.delete(name)


async def _manifest(store: ObjectStore, path: str) -> bytes | None:
    """Return its bytes, None where it is gone."""

    def read(held: Any) -> bytes | None:
        with suppress(FileNotFoundError):
            return bytes(held.get(path).buffer())
        return None

    return await store.ask("reading", path, read)


async def _fetch(store: ObjectStore, name: str, size: int, path: Path) -> str:
    """Copy an object to a file piece by piece; return its digest."""
    hasher = blake2b(digest_size=DIGEST_BYTES)

    def piece(held: Any) -> int:
        data = held.get_range(name, start=at, length=min(READ_BYTES, size - at))
        hasher.update(data)
        return file.write(data)

    with path.open("wb") as file:
        at = 0
        while at < size:
            at += await store.ask("reading", name, piece)
    return hasher.hexdigest()


def _compare(url: str, manifest: Manifest, there: dict[str, int]) -> None:
    for name in sorted(manifest.files.keys() | there.keys()):
        wanted = manifest.files.get(name, (None,))[0]
        if name not in there:
            raise StoreError(_changed(url, f"{name} is missing"))
        if wanted is None:
            raise StoreError(_changed(url, f"{name} does not belong to it"))
        if wanted != there[name]:
            raise StoreError(_changed(url, f"{name} has {there[name]} bytes, not the {wanted} written"))


def _changed(url: str, what: str) -> str:
    return f"{url} is not as it was written: {what}; take another backup"
