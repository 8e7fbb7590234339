"""What the pipeline asks of a client of the log; `pavane.waltz.client.Waltz` is one."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol


class Transaction(Protocol):
    """One committed record of a partition."""

    @property
    def id(self) -> int:
        """Its number in its partition, from 0."""

    @property
    def header(self) -> int:
        """The application's number."""

    @property
    def data(self) -> bytes:
        """The application's bytes."""


class Log(Protocol):
    """A log in partitions."""

    async def append(
        self,
        partition: int,
        data: bytes,
        *,
        header: int = 0,
        write: Sequence[tuple[str, int]] = (),
        seen: int | None = None,
    ) -> int:
        """Append and return the transaction once it is durable. Raises `Conflict`, `OutcomeUnknown`, `Unavailable`."""
        ...

    def read(self, partition: int, start: int, stop: int) -> AsyncIterator[Transaction]:
        """Yield what there is of `start` up to but not `stop`."""
        ...

    async def get(self, partition: int, txid: int) -> Transaction:
        """Return one transaction."""
        ...

    async def hwm(self, partition: int) -> int:
        """Return the last transaction, -1 if there is none."""
        ...
