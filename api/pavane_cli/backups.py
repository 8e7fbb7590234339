"""What the commands for backups of all kinds share: a place, its store, how far it is, what is below a URL."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pavane.runtime.backups import Copies, Kept, Stated, surplus
from pavane_cli import output
from pavane_cli.failures import ExitCode, UserError, lacks
from pavane_cli.output import Format

if TYPE_CHECKING:
    from pavane.runtime.objects import ObjectStore

PROGRESS_S = 2.0
"""Between two lines of progress: what is done sooner says nothing."""

Place = Annotated[str, typer.Argument(metavar="DIR", help="Folder, or URL of a backup: s3://, gs://, az://, file://.")]
Option = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="An option of the URL's store, such as aws_endpoint=http://10.0.0.1:7070. More than once.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; default: dry run.")]
Keep = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Delete those older than the N newest whole ones, of each instance or log."),
]
Url = Annotated[str, typer.Argument(metavar="URL", help="What the URLs of the backups have before their names.")]
M = TypeVar("M", bound=Stated)


class Meter:
    """Prints on standard error how far a long piece of work is."""

    def __init__(self, doing: str, clock: Callable[[], float] = time.monotonic, unit: str = "bytes") -> None:
        self._doing = doing
        self._unit = unit
        self._clock = clock
        self._next = clock() + PROGRESS_S

    def __call__(self, done: int, total: int) -> None:
        """Print the progress, at most every PROGRESS_S."""
        now = self._clock()
        if now >= self._next:
            self._next = now + PROGRESS_S
            output.note(f"{self._doing}: {done:,} of {total:,} {self._unit} ({100 * done // max(1, total)} %)")


def is_url(place: str) -> bool:
    """Whether it is the URL of a store, not a folder."""
    return "://" in place


def store_of(url: str, option: list[str] | None, error: type[Exception], *, make: bool = False) -> "ObjectStore":
    """Return the store; options that are secret come from the environment. Raises ``error``, ``UserError``."""
    try:
        from pavane.runtime.objects import ObjectStore  # noqa: PLC0415 - a folder needs no library
    except ModuleNotFoundError as absent:
        raise lacks(absent, "services") from absent
    return ObjectStore(url, dict(text.partition("=")[::2] for text in option or ()), error, make=make)


@contextmanager
def folder_at(copies: Copies[M], place: str, option: list[str] | None) -> Iterator[Path]:
    """Give the folder, or a copy of the backup at a URL, checked, for as long. Raises its error and ``UserError``."""
    if not is_url(place):
        if not Path(place).is_dir():
            raise UserError(f"{place} is no folder", ExitCode.USAGE)
        yield Path(place)
        return
    with TemporaryDirectory(prefix="pavane-backup-") as copy:
        asyncio.run(copies.download(store_of(place, option, copies.error), Path(copy), Meter("fetching")))
        yield Path(copy)


def confirm(yes: bool) -> None:
    """Raise ``UserError`` unless the user says yes."""
    if not yes:
        raise UserError("nothing was changed; add --yes to do it", ExitCode.REFUSED)


async def listed(
    copies: Copies[M],
    store: "ObjectStore",
    position: tuple[str, Callable[[M], object]],
    keep: int | None,
    *,
    yes: bool,
    form: Format,
    whose: Callable[[M], object] = lambda _: None,
) -> None:
    """Print the backups below the URL of ``store``, the newest first, and delete those that ``keep`` does not count.

    ``position`` is a column: its name, and what it says of a manifest. ``keep`` counts those of each one that ``whose``
    tells apart. What cannot be read is never old: it may be of another kind or version.
    """
    found = await copies.backups(store)
    owners = [whose(each.manifest) for each in found if each.manifest is not None]
    old: list[Kept[M]] = []
    for owner in dict.fromkeys(owners if keep is not None else ()):
        own = [each for each in found if each.manifest is not None and whose(each.manifest) == owner]
        old += surplus(own, keep or 0)
    column, says = position
    rows: Sequence[dict[str, Any]] = [
        {
            "name": each.name,
            "written": each.written.isoformat(),
            column: None if each.manifest is None else says(each.manifest),
            "bytes": sum(each.objects.values()),
            "state": each.fault or "whole",
            "old": each in old,
        }
        for each in found
    ]
    if form.structured:
        output.structured(rows, form)
    else:
        heads = ("NAME", "WRITTEN", column.upper(), "BYTES", "STATE")
        output.table(heads, [[*row.values()][:-1] for row in rows])
    if old:
        output.note(f"old: {', '.join(each.name for each in old)}")
        confirm(yes)
    for each in reversed(old):
        await copies.remove(store, each)
