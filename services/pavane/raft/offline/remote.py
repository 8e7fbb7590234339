"""A backup in object storage: its files by their names below a URL, and the manifest last (docs/specs/raft.md 13.5)."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pavane.raft.offline.manifest import AGAIN, DIGEST_BYTES, NAME, Manifest, manifest_of
from pavane.raft.offline.store import Progress, no_progress
from pavane.raft.storage import StoreError

if TYPE_CHECKING:
    from pavane.runtime.objects import ObjectStore  # its library is installed with `pavane[services]` alone

READ_BYTES = 8 << 20  # of an object, in one call; the whole may be greater than memory
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
    manifest = Manifest.decode(await store.ask("reading", NAME, lambda held: bytes(held.get(NAME).buffer())))
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
