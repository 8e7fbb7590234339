"""Backups in object storage: files by their names below a URL, and a manifest last (docs/specs/operator.md 1.10).

One way for all kinds. What a manifest states is the kind's business; here only its files count.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from pavane.runtime.objects import ObjectStore  # its library is installed with `pavane[services]` alone

NAME = "backup.json"
DIGEST_BYTES = 32
READ_BYTES = 8 << 20  # of an object or a file, in one call; the whole may be greater than memory
DELETED_MAX = 100  # in one call, which has a time to end
MANIFEST_BYTES_MAX = 64 << 20  # 400 000 files

Progress = Callable[[int, int], None]
"""Told how many bytes are done, of how many."""
Files = Mapping[str, tuple[int, str]]
"""Bytes and BLAKE2b-256 of each file by its name."""


class Stated(Protocol):
    """A manifest."""

    @property
    def files(self) -> Files:
        """What belongs to the backup."""
        ...

    def encode(self) -> bytes:
        """Return the file's text."""
        ...


M = TypeVar("M", bound=Stated)


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""


def check_of(found: object) -> str:
    """Return a digest of all that a manifest states, however its text is laid out."""
    return blake2b(json.dumps(found, sort_keys=True).encode(), digest_size=DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup of a ``kind`` holds: ``about`` says of what and until where, ``files`` in which files."""

    kind: str
    about: dict[str, Any]
    files: dict[str, tuple[int, str]]

    def encode(self) -> bytes:
        """Return the file's text; ``check`` in it is a digest of the rest."""
        found = {"version": 1, **asdict(self)}
        return json.dumps({**found, "check": check_of(found)}, indent=1).encode() + b"\n"

    @classmethod
    def decode(
        cls,
        data: bytes,
        kind: str,
        file: re.Pattern[str],
        error: type[Exception],
        about: Callable[[dict[str, Any]], object],
    ) -> Self:
        """Read that of a ``kind``, the files of which match ``file``; raises ``error``.

        ``about`` reads what it says; a ``ValueError``, ``KeyError``, ``TypeError`` or ``AttributeError`` of that means
        that it is damaged.
        """
        try:
            found = json.loads(data)
            if found.pop("check") != check_of(found):
                raise ValueError("it does not match the digest in it")
            version, stated = found.pop("version"), found.get("kind")
            if version != 1:
                raise error(f"{NAME} has format version {version}, this program reads 1; use the one that wrote it")
            if stated != kind:
                raise error(f"this is a backup of a {stated}, not of a {kind}")
            files = {name: (size, check) for name, (size, check) in found.pop("files").items()}
            if not all(map(file.fullmatch, files)):  # they become paths
                raise ValueError("it names what is no file of a backup")
            about(found["about"])
            return cls(**found, files=files)
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise error(f"{NAME} is damaged; make the backup again, or take another copy of it") from fault


def files_in(path: Path, names: Iterable[str], *, sync: bool = False) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield name, bytes and digest of those files of a folder that are there; ``sync`` first makes them durable."""
    for name in names:
        if not (path / name).is_file():
            continue
        hasher, size = blake2b(digest_size=DIGEST_BYTES), 0
        with (path / name).open("rb") as file:
            if sync:
                os.fsync(file.fileno())
            while piece := file.read(READ_BYTES):
                hasher.update(piece)
                size += len(piece)
        yield name, (size, hasher.hexdigest())


def faults_of(stated: Files, found: Files) -> list[str]:
    """Say what is not as a manifest states it."""
    faults = [
        f"{name} is missing"
        if name not in found
        else f"{name} has {found[name][0]} bytes, not the {size} written"
        if found[name][0] != size
        else f"{name} is damaged"
        for name, (size, check) in stated.items()
        if found.get(name) != (size, check)
    ]
    return faults + [f"{name} does not belong to it" for name in found if name not in stated]


@dataclass(frozen=True)  # slots and a generic class do not go together
class Kept(Generic[M]):
    """A backup below a URL, and its objects.

    ``fault`` says why it cannot be restored, as far as names and sizes tell; ``manifest`` is None if it is damaged.
    """

    name: str
    written: datetime
    objects: dict[str, int]
    manifest: M | None
    fault: str


def surplus(found: Sequence[Kept[M]], keep: int) -> Sequence[Kept[M]]:
    """Return those that are older than the ``keep`` newest without a fault; ``found`` begins with the newest."""
    whole = 0
    for number, each in enumerate(found):
        if whole == keep:
            return found[number:]
        whole += not each.fault
    return ()


class Copies(Generic[M]):
    """Backups of a kind in object storage.

    ``decode`` reads a manifest and ``file`` matches the names of the files; all methods raise ``error``, and so must
    ``decode``.
    """

    def __init__(self, decode: Callable[[bytes], M], file: re.Pattern[str], error: type[Exception]) -> None:
        self.error = error
        self._decode = decode
        self._file = file

    async def vacant(self, store: ObjectStore) -> set[str]:
        """Return the objects that an interrupted run left at the URL; raises ``error`` if a backup is there."""
        there = await store.sizes()
        if NAME in there:
            raise self.error(f"{store.url} holds a backup: give each a URL of its own")
        return set(there)

    async def upload(self, folder: Path, store: ObjectStore, progress: Progress = no_progress) -> M:
        """Write the backup in ``folder``, the manifest last: until then there is none. Raises ``error``.

        What an interrupted run left of the same files is written over.
        """
        path = folder / NAME
        if not path.exists():
            raise self.error(f"{folder} has no {NAME}: it is no backup; make it again")
        manifest = self._decode(path.read_bytes())
        foreign = sorted(await self.vacant(store) - manifest.files.keys())
        if foreign:
            raise self.error(
                f"{store.url} holds {foreign[0]}, which is not of this backup: give a URL that holds nothing"
            )
        done, total = 0, sum(size for size, _ in manifest.files.values())
        for name, (size, _) in manifest.files.items():
            progress(done, total)
            await store.write(name, folder / name)
            done += size
        self._compare(store.url, manifest, await store.sizes())
        await store.write(NAME, manifest.encode())
        return manifest

    async def download(self, store: ObjectStore, folder: Path, progress: Progress = no_progress) -> M:
        """Copy the backup to ``folder``, which is empty; each file is as it was written. Raises ``error``."""
        there = await store.sizes()
        size = there.pop(NAME, None)
        if size is None:
            raise self.error(
                f"{store.url} has no {NAME}, which a backup gets last: the copy was interrupted, or it is no backup"
            )
        if size > MANIFEST_BYTES_MAX:
            raise self.error(f"{store.url}/{NAME} is damaged: it has {size} bytes")
        manifest = self._decode(await _manifest(store, NAME) or b"")
        self._compare(store.url, manifest, there)
        done, total = 0, sum(there.values())
        for name, (size, check) in manifest.files.items():
            progress(done, total)
            (folder / name).parent.mkdir(exist_ok=True)
            if await _fetch(store, name, size, folder / name) != check:
                raise self.error(_changed(store.url, f"{name} is damaged"))
            done += size
        (folder / NAME).write_bytes(manifest.encode())
        return manifest

    async def backups(self, store: ObjectStore) -> list[Kept[M]]:
        """Return the backups whose URLs are a name behind that of ``store``, the newest first. Raises ``error``."""
        listed = await store.ask(
            "listing", "", lambda held: {each["path"]: each for some in held.list() for each in some}
        )
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
                manifest = self._decode(data)
                self._compare(
                    f"{store.url}/{name}", manifest, {each: size for each, size in sizes.items() if each != NAME}
                )
            except self.error as error:
                fault = str(error)
            found.append(Kept(name, listed[path]["last_modified"], sizes, manifest, fault))
        return sorted(found, key=lambda each: (each.written, each.name), reverse=True)

    async def remove(self, store: ObjectStore, backup: Kept[M]) -> None:
        """Delete a backup below the URL, the manifest last: one that is half gone is found again. Raises ``error``."""
        known = backup.manifest.files if backup.manifest is not None else {}
        own = [
            name for name in backup.objects if name in known or self._file.fullmatch(name)
        ]  # not what lies deeper, or beside
        names = [f"{backup.name}/{name}" for name in (*own, NAME)]
        for start in range(0, len(names), DELETED_MAX):
            await store.ask("deleting", backup.name, partial(_delete, names[start : start + DELETED_MAX]))

    async def clear(self, store: ObjectStore) -> None:
        """Delete what there is of a backup at the URL itself, for another one there. Raises ``error``.

        The manifest goes first: what an interrupted run leaves is no backup, and not taken for one.
        """
        there = await store.sizes()
        names = [NAME] * (NAME in there) + [name for name in there if self._file.fullmatch(name)]
        for start in range(0, len(names), DELETED_MAX):
            await store.ask("deleting", "", partial(_delete, names[start : start + DELETED_MAX]))

    def _compare(self, url: str, manifest: Stated, there: dict[str, int]) -> None:
        for name in sorted(manifest.files.keys() | there.keys()):
            wanted = manifest.files.get(name, (None,))[0]
            if name not in there:
                raise self.error(_changed(url, f"{name} is missing"))
            if wanted is None:
                raise self.error(_changed(url, f"{name} does not belong to it"))
            if wanted != there[name]:
                raise self.error(_changed(url, f"{name} has {there[name]} bytes, not the {wanted} written"))


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


def _changed(url: str, what: str) -> str:
    return f"{url} is not as it was written: {what}; take another backup"
