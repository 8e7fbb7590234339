"""The files of an immortal on a partition: what the log refuses, and where a reader begins (spec 14.8)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from pavane.ambrosia.effects import Append, BeginCheckpoint, CheckpointBytes, CreateLog, EndCheckpoint, Step, StoreMeta
from pavane.ambrosia.effects import Storage as Effect
from pavane.ambrosia.errors import FatalError, Superseded
from pavane.ambrosia.server import Server
from pavane.ambrosia.state import Meta, Progress
from pavane.ambrosia.storage import CheckpointReader, FileStore, Registry, Replay
from pavane.pods.immortal_log import PIECE_BYTES, PartitionFolder, place
from pavane.waltz.client import Rejected, Waltz, WaltzError, waltz
from tests.services.ambrosia.test_tenure import HEAD, record
from tests.services.waltz.running import ANSWER_S, Log, running_log


class Watched(Waltz):
    """Says when an append was answered, whatever the answer."""

    answered: asyncio.Event

    async def append(self, *arguments: Any, **named: Any) -> int:
        try:
            return await super().append(*arguments, **named)
        finally:
            self.answered.set()


class Held(PartitionFolder):
    """Sees what is in the partition when it is told to."""

    gate: asyncio.Event

    async def _apply(self, transaction: Any) -> None:  # type: ignore[override]
        await self.gate.wait()
        super()._apply(transaction)


@contextlib.asynccontextmanager
async def files(log: Log, folder: Path, owner: str = "alice-1") -> AsyncIterator[Held]:
    client = Watched([f"127.0.0.1:{log.servers[0].port}"])
    client.answered = asyncio.Event()
    found = Held(client, 0, folder, owner)
    found.gate = asyncio.Event()
    found.gate.set()
    async with found:
        yield found


async def writer(folder: PartitionFolder, generation: int = 1) -> FileStore:
    store = FileStore(folder, Registry(folder), "alice", generation, place(folder).tenure)
    await asyncio.to_thread(store.tenure.fence)
    await asyncio.to_thread(store.lock, "process", "host:1")
    return store


async def carry_out(store: FileStore, *effects: Effect) -> None:
    for effect in effects:
        await asyncio.to_thread(store.carry_out, effect)


def begun(number: int, blob: bytes = b"state") -> tuple[Effect, ...]:
    """A log file and the checkpoint at its beginning."""
    return (
        CreateLog(number),
        StoreMeta(Meta(0, number - 1, number), Step.LOG),
        BeginCheckpoint(number, replace(HEAD, size=len(blob))),
        CheckpointBytes(blob),
        EndCheckpoint(number),
        StoreMeta(Meta(0, number, number), Step.CHECKPOINT),
    )


def replayed(folder: PartitionFolder, number: int = 1) -> list[bytes]:
    found = []
    replay = Replay(folder, number, number, Progress(7))
    while (each := replay.next()) is not None:
        found.append(each.encode())
    replay.finish()
    replay.close()
    return found


def append(number: int, body: bytes = b"") -> Append:
    found = record(number, body) if body else record(number)
    assert isinstance(found, Append)
    return found


@pytest.mark.parametrize(("generation", "error"), [(1, FatalError), (2, Superseded)])
async def test_the_log_refuses_what_a_writer_sends_who_does_not_know_that_it_was_overtaken(
    tmp_path: Path, generation: int, error: type[Exception]
) -> None:
    async with (
        running_log(tmp_path / "waltz") as log,
        files(log, tmp_path / "a") as one,
        files(log, tmp_path / "b") as two,
    ):
        old = await writer(one)
        await carry_out(old, *begun(1), append(0))
        one.gate.clear()
        await writer(two, generation)
        end = await one._log.hwm(0)
        client = one._log
        assert isinstance(client, Watched)
        client.answered.clear()
        late = asyncio.create_task(carry_out(old, append(1, b"late")))
        async with asyncio.timeout(ANSWER_S):
            await client.answered.wait()
        assert await one._log.hwm(0) == end
        one.gate.set()
        with pytest.raises(error):
            await late
        assert await one._log.hwm(0) == end
        assert replayed(two) == [b"".join(append(0).parts)]


async def test_a_reader_begins_with_the_last_checkpoint_and_finds_what_the_writer_wrote(tmp_path: Path) -> None:
    blob = bytes(range(256)) * (PIECE_BYTES // 100)
    async with running_log(tmp_path / "waltz") as log:
        async with files(log, tmp_path / "a") as one:
            store = await writer(one, 3)
            await carry_out(store, *begun(1), append(0), *begun(2, blob), append(0, b"second"))
            row = store.row
        async with files(log, tmp_path / "b") as two:
            assert "serverlog1" not in two.names()
            assert Registry(two).load("alice") == row
            reader = CheckpointReader(two, 2)
            assert b"".join(reader.blob()) == blob
            reader.close()
            assert replayed(two, 2) == [b"".join(append(0, b"second").parts)]
            with pytest.raises(Superseded):
                await writer_without_fence(two, 2)


async def test_what_is_before_the_last_checkpoint_is_given_up_and_nothing_behind_it(tmp_path: Path) -> None:
    """The partition of an immortal does not grow for ever, whoever reads or takes over."""
    async with running_log(tmp_path / "waltz") as log:
        async with files(log, tmp_path / "a") as one, files(log, tmp_path / "b") as two:
            client = one._log
            store = await writer(one)
            await carry_out(store, *begun(1), append(0))
            two.gate.clear()  # it does not see what follows
            first = await client.hwm(0) + 1
            await carry_out(store, *begun(2), append(0, b"second"))
            async with asyncio.timeout(ANSWER_S):
                while await client.first(0) < first:
                    await asyncio.sleep(0)
            assert [(one.name, one.position) for one in await client.consumers(0)] == [("coordinator.alice-1", first)]
            with pytest.raises(Rejected, match=r"coordinator\.alice-1"):
                await client.trim(0, first + 1)
            row = store.row
        async with files(log, tmp_path / "c") as three:
            assert three.names() == sorted({"serverlog2", "serverchkpt2", *three.names()})
            assert "serverlog1" not in three.names()
            assert Registry(three).load("alice") == row
            assert replayed(three, 2) == [b"".join(append(0, b"second").parts)]
            # As one that had not seen the checkpoint, which says where it would begin.
            three._from = 0
            await writer(three, 2)
        async with files(log, tmp_path / "d") as four:
            assert replayed(four, 2) == [b"".join(append(0, b"second").parts)]


async def test_a_checkpoint_that_comes_while_the_one_before_is_trimmed_for_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_log(tmp_path / "waltz") as log, files(log, tmp_path / "a") as one:
        gate, trim = asyncio.Event(), one._log.trim

        async def late(*arguments: Any) -> object:
            await gate.wait()
            return await trim(*arguments)

        monkeypatch.setattr(one._log, "trim", late)
        store = await writer(one)
        await carry_out(store, *begun(1), append(0))
        first = await one._log.hwm(0) + 1
        await carry_out(store, *begun(2), append(0, b"the last for long"))
        gate.set()
        async with asyncio.timeout(ANSWER_S):
            while await one._log.first(0) < first:
                await asyncio.sleep(0)


async def test_a_follower_that_has_not_read_what_was_trimmed_says_so_and_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it seems to follow, and cannot take over when its turn has come."""
    monkeypatch.setattr(waltz, "CREDIT_ITEMS", 1)
    async with running_log(tmp_path / "waltz") as log, files(log, tmp_path / "a") as one:
        store = await writer(one)
        await carry_out(store, *begun(1), append(0))
        with contextlib.suppress(WaltzError):  # of the view
            async with files(log, tmp_path / "b") as two:
                two.gate.clear()
                await carry_out(store, *begun(2), append(0, b"second"))
                behind = await one._log.hwm(0)
                await carry_out(store, *begun(3), append(0, b"third"))
                async with asyncio.timeout(ANSWER_S):
                    while await one._log.first(0) <= behind:
                        await asyncio.sleep(0)
                two.gate.set()
                follower = FileStore(two, Registry(two), "alice", 2, place(two).tenure)
                async with asyncio.timeout(ANSWER_S):
                    with pytest.raises(OSError, match="older ones were trimmed"):
                        await Server._tend(cast("Server", None), follower)
        async with files(log, tmp_path / "b") as again:
            assert replayed(again, 3) == [b"".join(append(0, b"third").parts)]


async def writer_without_fence(folder: PartitionFolder, generation: int) -> None:
    store = FileStore(folder, Registry(folder), "alice", generation, place(folder).tenure)
    await asyncio.to_thread(store.lock, "process", "host:1")


async def test_a_partition_of_another_one_is_refused_by_name(tmp_path: Path) -> None:
    async with running_log(tmp_path / "waltz") as log:
        async with files(log, tmp_path / "a") as one:
            await writer(one)
        with pytest.raises(FatalError, match="is of alice-1, not of bob-1: give it a partition of its own"):
            async with files(log, tmp_path / "b", "bob-1"):
                pass
