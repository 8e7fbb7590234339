"""Transactions and partitions as the REST API and the command line show them."""

import base64
from typing import Self

from pavane.waltz.client import ConsumerInfo, PartitionInfo, Transaction
from pavane.waltz.core.retention import STUCK_S
from pavane_api.documents import Document


class AppendedTransaction(Document):
    """An append that was committed."""

    partition: int
    """Where."""
    transaction: int
    """Its place in the partition, from 0."""


class LogTransaction(Document):
    """One committed transaction."""

    transaction: int
    """Its place in the partition, from 0."""
    header: int
    """The number that the application gave it."""
    data: str
    """The data in base64."""

    @classmethod
    def of(cls, transaction: Transaction) -> Self:
        """Show a transaction."""
        data = base64.b64encode(transaction.data).decode()
        return cls(transaction=transaction.id, header=transaction.header, data=data)


class Partition(Document):
    """One partition of the log."""

    partition: int
    """Its number, from 0."""
    server: str | None
    """Who may write to it: host:port; null while nobody may."""
    generation: int
    """How often it changed its server."""
    stage: str | None
    """Stage of that server's pod."""
    high_water_mark: int | None
    """Its last transaction, -1 while it has none; null while nobody answers for it."""

    @classmethod
    def of(cls, info: PartitionInfo, hwm: int | None) -> Self:
        """Show a partition."""
        stage = info.stage.title if info.stage else None
        return cls(
            partition=info.partition,
            server=info.server,
            generation=info.generation,
            stage=stage,
            high_water_mark=hwm,
        )


class LogPartitions(Document):
    """All partitions."""

    items: list[Partition]
    """In the order of their numbers."""


class LogTransactions(Document):
    """Transactions in order."""

    items: list[LogTransaction]
    """In the order of their numbers."""
    next_from: int
    """Where the next page begins."""


class FoundTransactions(Document):
    """What a search has found so far, and how far it has looked."""

    items: list[LogTransaction]
    """Those that were found, in the order of their numbers."""
    looked_from: int
    """The first transaction that this answer has looked at."""
    next_from: int
    """The first transaction that it has not looked at: where the next request goes on."""
    end: int
    """Behind the last transaction that belongs to the search: it is over when `nextFrom` is there."""


class TrimmedPartition(Document):
    """What a trim has left of a partition, or would."""

    partition: int
    """Its number."""
    former_first: int
    """The first transaction before."""
    first: int
    """The first transaction now."""
    high_water_mark: int
    """The last transaction, -1 if there is none."""
    passed: list[str]
    """Consumers that need something before the first transaction."""


class MovedConsumer(Document):
    """Where a consumer begins from now on, or would."""

    partition: int
    """Of which partition."""
    name: str
    """Its name."""
    former: int
    """The first transaction that it had not applied before."""
    position: int
    """The first transaction that it reads now."""
    high_water_mark: int
    """The last transaction, -1 if there is none."""

    def sentence(self, *, dry_run: bool) -> str:
        """Return it for people, with what it means for who runs under that name."""
        count = abs(self.position - self.former)
        some = f"{count} transaction{'' if count == 1 else 's'}"
        would = "would " if dry_run else ""
        if self.position < self.former:
            does = f"{would}read{'' if dry_run else 's'} {some} again, from {self.position} to {self.former - 1}"
        elif self.position > self.former:
            does = f"{would}never read{'' if dry_run else 's'} {some}, from {self.former} to {self.position - 1}"
        else:
            does = f"{would}begin{'' if dry_run else 's'} where it was, at {self.position}"
        return f"consumer {self.name} of partition {self.partition} {does}"


class AdoptedLog(Document):
    """What the adoption of a log found at its storage nodes, and did or would do."""

    partitions: int
    """How many there are."""
    transactions: int
    """How many are acknowledged or may be, in all partitions together."""
    copied_anew: dict[str, int]
    """Storage nodes whose copies are given up and made again from the others: in how many partitions."""

    def sentence(self, *, dry_run: bool) -> str:
        """Return it for people."""
        done = "would be adopted" if dry_run else "are adopted: servers open them now"
        anew = "".join(f"; {node} is copied anew in {count} of them" for node, count in self.copied_anew.items())
        return f"{self.partitions} partitions with {self.transactions} transactions {done}{anew}"


class LogConsumer(Document):
    """Somebody who reads a partition."""

    partition: int
    """Which."""
    name: str
    """Its name."""
    position: int
    """The first transaction that it has not applied."""
    lag: int
    """How many it has not applied."""
    lag_seconds: float
    """For how long there has been one, at most since the partition has its server."""
    idle_seconds: float
    """Since it last committed."""
    held_seconds: float | None
    """For how long retention waits for it; null: it does not."""
    stuck: bool
    """Whether that is an hour or more."""
    who: str
    """What it says of itself: host and process."""

    @classmethod
    def of(cls, info: ConsumerInfo) -> Self:
        """Show a consumer."""
        return cls(**info._asdict(), stuck=(info.held_seconds or 0) >= STUCK_S)


class LogConsumers(Document):
    """Consumers of all partitions."""

    items: list[LogConsumer]
    """By partition and name."""
    unanswered: list[int]
    """Partitions for which nobody answers, so that it is not known who reads them."""
