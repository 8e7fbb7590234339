"""Entries of chains and of the tick log: a line of JSON, and rows behind it (docs/specs/compute.md 12.1, 13.2)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CHAIN_HEADER = 0x50564348
"""Transaction header of all entries: "PVCH". Applications number their own records from 0."""


Token = tuple[int, ...]
"""Of a writer: generation, epoch, and `back` if it is not 0 (`Rank`)."""


class EntryError(Exception):
    """A transaction that claims to be an entry and is none; the chain cannot be trusted from there on."""


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """Who writes, compared left to right: it never falls. `generation` is the greatest that ever wrote; the one that
    writes is `back` below it, because it took the right to write back."""

    generation: int = 0
    epoch: int = 0
    back: int = 0
    version: int = 0

    @property
    def writer(self) -> int:
        """The generation that has the right to write; 0 = none ever had."""
        return self.generation - self.back

    @property
    def token(self) -> Token:
        """Without the version."""
        return self.generation, self.epoch, self.back

    def has_passed(self, generation: int) -> bool:
        """Whether the right to write went from this generation to another one."""
        return generation <= self.generation and generation != self.writer

    def successor(self, generation: int, leaves: int = 0) -> Rank | None:
        """Return the rank with which a generation writes next, None where it may not: it was superseded, and not by
        the one from which it may take the right to write back, `leaves`."""
        if generation > self.generation:
            return Rank(generation, 1)
        if generation == self.writer or self.writer == self.generation == leaves:
            return Rank(self.generation, self.epoch + 1, self.generation - generation)
        return None


@dataclass(frozen=True, slots=True)
class Create:
    """The first entry of a view's chain: its columns, whose ticks it counts, and the one at which it begins."""

    chain: str
    rank: Rank
    columns: tuple[tuple[str, str], ...]
    ticks: int
    """The partition that holds them."""
    as_of: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The chain's step from `lower` to `upper`. `chunks` data entries with its id were appended before it."""

    chain: str
    rank: Rank
    id: str
    lower: int
    upper: int
    chunks: int
    rows: bytes
    """Arrow stream; empty where the batch has data entries, or no rows."""


@dataclass(frozen=True, slots=True)
class Data:
    """Rows of a large batch, which count when the batch names them: chunk `number` of batch `id`."""

    chain: str
    id: str
    number: int
    rows: bytes


@dataclass(frozen=True, slots=True)
class Fence:
    """From here on nobody with a smaller rank writes."""

    chain: str
    rank: Rank


@dataclass(frozen=True, slots=True)
class Minted:
    """A tick: for each bound partition the transaction behind the last one that is at or before it."""

    chain: str
    rank: Rank
    tick: int
    next: Mapping[int, int]
    wall_ms: int


Entry = Create | Batch | Data | Fence | Minted


def encode(entry: Entry) -> bytes:
    """Return the data of an entry's transaction."""
    match entry:
        case Create():
            head: dict[str, Any] = {
                "kind": "create",
                "columns": entry.columns,
                "ticks": entry.ticks,
                "as_of": entry.as_of,
            }
        case Batch():
            head = {"kind": "batch", "id": entry.id, "lower": entry.lower, "upper": entry.upper, "chunks": entry.chunks}
        case Data():
            head = {"kind": "data", "id": entry.id, "chunk": entry.number}
        case Fence():
            head = {"kind": "fence"}
        case Minted():
            following = {str(partition): txid for partition, txid in entry.next.items()}
            head = {"kind": "binding", "tick": entry.tick, "next": following, "wall_ms": entry.wall_ms}
    head["chain"] = entry.chain
    if not isinstance(entry, Data):
        head["token"] = [entry.rank.generation, entry.rank.epoch]
        if entry.rank.back:
            head["back"] = entry.rank.back
        head["version"] = entry.rank.version
    rows = entry.rows if isinstance(entry, Batch | Data) else b""
    return json.dumps(head, sort_keys=True, separators=(",", ":")).encode() + b"\n" + rows


def decode(header: int, data: bytes) -> Entry | None:
    """Return the entry of a transaction, None if it is none of ours. Raises `EntryError`."""
    if header != CHAIN_HEADER:
        return None
    line, _, rows = data.partition(b"\n")
    try:
        head = json.loads(line)
        chain = str(head["chain"])
        if head["kind"] == "data":
            return Data(chain, str(head["id"]), int(head["chunk"]), rows)
        back, version = int(head.get("back", 0)), int(head.get("version", 0))
        rank = Rank(int(head["token"][0]), int(head["token"][1]), back, version)
        match head["kind"]:
            case "create":
                columns = tuple((str(n), str(t)) for n, t in head["columns"])
                return Create(chain, rank, columns, int(head["ticks"]), int(head["as_of"]))
            case "batch":
                ends = int(head["lower"]), int(head["upper"])
                return Batch(chain, rank, str(head["id"]), *ends, int(head["chunks"]), rows)
            case "fence":
                return Fence(chain, rank)
            case "binding":
                following = {int(partition): int(txid) for partition, txid in head["next"].items()}
                return Minted(chain, rank, int(head["tick"]), following, int(head["wall_ms"]))
            case kind:
                raise EntryError(f"an entry of an unknown kind, {kind!r}: use a newer version")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise EntryError(f"the header says that it is an entry of a chain, but it is none: {error!r}") from None
