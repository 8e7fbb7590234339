"""Options of the format `waltz`, with Spark's own names and meanings (docs/specs/compute.md 15.1)."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from pavane.dataflow.ports import Format, Mode
from pavane.spark.errors import OptionError

PARTITION_MAX = 65_535  # A list such as `0-999999999` must not fill memory before the log is asked.
E = TypeVar("E", bound=StrEnum)

NAME_CHARS_MAX = 200  # Names of chains and writers stand in every entry of a chain.
HEADER_MIN, HEADER_MAX = -(2**31), 2**31 - 1


class Delivery(StrEnum):
    """How rows reach the log: at least once, or exactly once by compare-and-append."""

    PLAIN = "plain"
    CHAIN = "chain"


COMMON = ("servers", "partition", "partitions", "format", "chain", "tls.ca", "tls.certificate", "tls.key")
STORE = "archive."  # begins the names of what the archive's store wants, such as archive.aws_region
READ = (*COMMON, "archive", "mode", "columnNameOfCorruptRecord", "corruptRecordColumn", "failOnDataLoss",
        "minPartitions", "maxRecordsPerPartition", "startingOffsets")  # fmt: skip
READ_BATCH = (*READ, "endingOffsets", "pushdown")
READ_STREAM = (*READ, "maxOffsetsPerTrigger")
WRITE = (*COMMON, "delivery", "header", "partitionBy", "writerId")
WRITE_BATCH = (*WRITE, "batchId")
WRITE_STREAM = (*WRITE, "checkpointLocation", "queryName")


@dataclass(frozen=True, slots=True)
class Tls:
    """Files (PEM) of a log that speaks TLS."""

    ca: str
    certificate: str | None
    key: str | None


@dataclass(frozen=True, slots=True)
class Store:
    """The folder of the log's archive, and options of the store that it is in."""

    url: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read. `partitions` None means all."""

    servers: tuple[str, ...]
    tls: Tls | None
    store: Store | None
    partitions: tuple[int, ...] | None
    format: Format
    chain: str | None
    mode: Mode
    corrupt_column: str
    fail_on_data_loss: bool
    min_partitions: int
    max_records_per_partition: int | None
    starting: str
    ending: str
    pushdown: bool
    max_offsets_per_trigger: int | None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How to write. `partitions` None means all; with a chain the first one is its home."""

    servers: tuple[str, ...]
    tls: Tls | None
    partitions: tuple[int, ...] | None
    format: Format
    header: int
    partition_by: tuple[str, ...]
    delivery: Delivery
    chain: str
    writer_id: str | None
    batch_id: int | None
    checkpoint: str | None


class _Reader:
    """Takes options by name, whatever their case, and says what is wrong with one."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], purpose: str) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in known}
        self._of_store = {
            name: value for name, value in self._values.items() if "archive" in names and name.startswith(STORE)
        }
        for name in sorted(self._values.keys() - names.keys() - self._of_store.keys()):
            near = difflib.get_close_matches(name, names, n=1)
            hint = f" Did you mean {names[near[0]]!r}?" if near else f" It knows: {', '.join(sorted(known))}."
            raise OptionError(f'format("waltz") has no option {name!r} for {purpose}.{hint}')

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        return value.strip() if value is not None else None

    def word(self, name: str, kind: type[E], default: E) -> E:
        value = self.text(name)
        if value is None:
            return default
        for member in kind:
            if member.value.lower() == value.lower():
                return member
        raise OptionError(f"option {name!r} is {value!r}; it must be one of: {', '.join(kind)}.")

    def number(self, name: str, least: int, most: int = 2**63 - 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            raise OptionError(f"option {name!r} is {value!r}; it must be a whole number.") from None
        if not least <= number <= most:
            raise OptionError(f"option {name!r} is {number}; it must lie between {least} and {most}.")
        return number

    def yes(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in {"true", "false"}:
            raise OptionError(f"option {name!r} is {value!r}; it must be true or false.")
        return value.lower() == "true"

    def servers(self) -> tuple[str, ...]:
        value = self.text("servers")
        found = tuple(part.strip() for part in (value or "").split(",") if part.strip())
        if not found:
            raise OptionError(
                'format("waltz") needs the addresses of servers: .option("servers", "host:port,host:port"). '
                "Any of them will do."
            )
        for server in found:
            host, _, port = server.rpartition(":")
            if not host or not port.isdecimal():
                raise OptionError(f"option 'servers' holds {server!r}; an address is host:port.")
        return found

    def tls(self) -> Tls | None:
        ca, certificate, key = (self.text(f"tls.{name}") for name in ("ca", "certificate", "key"))
        if ca is None:
            if certificate or key:
                raise OptionError("option 'tls.ca' is missing: it names the file with the log's authority.")
            return None
        if (certificate is None) != (key is None):
            raise OptionError("options 'tls.certificate' and 'tls.key' belong together.")
        return Tls(ca, certificate, key)

    def store(self) -> Store | None:
        url = self.text("archive")
        if url is None:
            if self._of_store:
                raise OptionError("option 'archive' is missing: it names the folder of the log's archive.")
            return None
        return Store(url, {name.removeprefix(STORE): value for name, value in self._of_store.items()})

    def partitions(self) -> tuple[int, ...] | None:
        one, many = self.text("partition"), self.text("partitions")
        if one is not None and many is not None:
            raise OptionError("options 'partition' and 'partitions' exclude each other.")
        if one is not None:
            return (self.number("partition", 0, PARTITION_MAX) or 0,)
        return None if many is None else parse_partitions(many)

    def name(self, name: str) -> str | None:
        value = self.text(name)
        if value is not None and not 0 < len(value) <= NAME_CHARS_MAX:
            raise OptionError(f"option {name!r} must have between 1 and {NAME_CHARS_MAX} characters.")
        return value


def parse_partitions(text: str) -> tuple[int, ...]:
    """Return the partitions that a list such as `0,2-4` names, in ascending order, each once."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise OptionError(f"option 'partitions' is {text!r}; it must be a list of numbers and ranges: '0,2-4'.")
        low, high = int(first), int(last or first)
        if low > high or high > PARTITION_MAX:
            raise OptionError(f"option 'partitions' holds {part.strip()!r}: not a range between 0 and {PARTITION_MAX}.")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Return the options of a read. Raise OptionError for one that is unknown or wrong."""
    reader = _Reader(
        options, READ_STREAM if streaming else READ_BATCH, "reading as a stream" if streaming else "reading"
    )
    corrupt, same = reader.text("columnNameOfCorruptRecord"), reader.text("corruptRecordColumn")
    if corrupt and same and corrupt != same:
        raise OptionError("options 'columnNameOfCorruptRecord' and 'corruptRecordColumn' mean the same: give one.")
    partitions, chain = reader.partitions(), reader.name("chain")
    if chain is not None and partitions is not None and len(partitions) != 1:
        raise OptionError("with option 'chain' option 'partition' names the chain's home partition, which is one.")
    if chain is not None and reader.text("format") is not None:
        raise OptionError("option 'format' is not needed with 'chain': each entry of a chain says what it holds.")
    pushdown = reader.yes("pushdown", False)
    if chain is not None and pushdown:
        raise OptionError("option 'pushdown' is of no use with 'chain': only reading it shows what belongs to it.")
    return ReadOptions(
        servers=reader.servers(),
        tls=reader.tls(),
        store=reader.store(),
        partitions=(0,) if chain is not None and partitions is None else partitions,
        format=reader.word("format", Format, Format.RAW),
        chain=chain,
        mode=reader.word("mode", Mode, Mode.PERMISSIVE),
        corrupt_column=corrupt or same or "_corrupt_record",
        fail_on_data_loss=reader.yes("failOnDataLoss", True),
        min_partitions=reader.number("minPartitions", 1, 100_000) or 1,
        max_records_per_partition=reader.number("maxRecordsPerPartition", 1),
        starting=reader.text("startingOffsets") or ("latest" if streaming else "earliest"),
        ending=reader.text("endingOffsets") or "latest",
        pushdown=pushdown,
        max_offsets_per_trigger=reader.number("maxOffsetsPerTrigger", 1),
    )


def write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Return the options of a write. Raise OptionError for one that is unknown or wrong."""
    reader = _Reader(
        options, WRITE_STREAM if streaming else WRITE_BATCH, "writing a stream" if streaming else "writing"
    )
    chain = reader.name("chain")
    default = Delivery.CHAIN if streaming or chain is not None else Delivery.PLAIN
    delivery = reader.word("delivery", Delivery, default)
    if delivery is Delivery.CHAIN and chain is None:
        raise OptionError(
            "a stream is written exactly once, as a chain: name it with option 'chain' (readers give the same "
            "name), or accept rows twice after a failure with option 'delivery' = 'plain'."
        )
    if delivery is Delivery.PLAIN and chain is not None:
        raise OptionError("option 'chain' needs option 'delivery' = 'chain'.")
    header, writer, batch = (
        reader.number("header", HEADER_MIN, HEADER_MAX),
        reader.name("writerId"),
        reader.number("batchId", 0),
    )
    if delivery is Delivery.PLAIN and (writer is not None or batch is not None):
        raise OptionError("options 'writerId' and 'batchId' belong to option 'chain'.")
    if delivery is Delivery.CHAIN and header is not None:
        raise OptionError("option 'header' belongs to delivery 'plain': entries of a chain have their own header.")
    if delivery is Delivery.CHAIN and not streaming and (writer is None or batch is None):
        raise OptionError(
            "a batch is written exactly once under a name: give options 'writerId' and 'batchId' (a number that "
            "grows with each write of this writer), and repeat a failed write with the same ones."
        )
    by = tuple(part.strip() for part in (reader.text("partitionBy") or "").split(",") if part.strip())
    partitions = reader.partitions()
    if partitions is None and not by:
        partitions = (0,)
    return WriteOptions(
        servers=reader.servers(),
        tls=reader.tls(),
        partitions=partitions,
        format=reader.word("format", Format, Format.RAW),
        header=header or 0,
        partition_by=by,
        delivery=delivery,
        chain=chain or "",
        writer_id=writer,
        batch_id=batch,
        checkpoint=reader.text("checkpointLocation"),
    )
