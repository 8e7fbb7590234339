"""The ledger of the examples: a booking that is repeated after a crash stands in the log once."""

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from pavane.waltz.client import Waltz
from tests.services.waltz.running import Log, running_log

EXAMPLES = Path(__file__).parents[3] / "examples"
EVERYTHING = 2**40


def process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module as a process of its own has it: with a client of its own."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "bank"))
    spec = importlib.util.spec_from_file_location("ledger", EXAMPLES / "bank" / "ledger.py")
    assert spec is not None
    assert spec.loader is not None
    made: ModuleType = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "ledger", made)
    spec.loader.exec_module(made)
    return made


@asynccontextmanager
async def lives(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> AsyncIterator[tuple[Log, list[Any]]]:
    """A log, and so many lives of an application that books in it."""
    async with running_log(folder, partitions=1) as log:
        await log.settled()
        monkeypatch.setenv("LEDGER_SERVERS", f"127.0.0.1:{log.servers[0].port}")
        found = [process(monkeypatch) for _ in range(count)]
        try:
            yield log, found
        finally:
            for each in found:
                for client in each._ledger:
                    await client.__aexit__(None, None, None)


async def booked(life: Any) -> list[bytes]:
    client: Waltz = await life.ledger()
    return [transaction.data async for transaction in client.read(0, 0, EVERYTHING)]


def rows(life: Any, number: int, *accounts: str) -> list[dict[str, object]]:
    return [life.entry(number, account, 5, "") for account in accounts]


async def test_a_booking_that_got_through_before_a_crash_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lives(tmp_path, monkeypatch, 2) as (_, (before, after)):
        seen = await before.end_of_ledger()
        transfer = rows(before, 1, "alice", "bob")
        first = await before.book(transfer, seen)
        await before.book(rows(before, 2, "bob", "carol"), first)
        await before.book(rows(before, 3, "dora"), first)
        assert await after.book(transfer, seen) == first
        assert len(await booked(after)) == 3


async def test_a_booking_that_is_still_on_its_way_is_not_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lives(tmp_path, monkeypatch, 4) as (_, found):
        seen = await found[0].end_of_ledger()
        for number in range(20):
            places = await asyncio.gather(*(life.book(rows(life, number, "alice", "bob"), seen) for life in found))
            assert places == [number] * len(found)
        assert len(await booked(found[0])) == 20


async def test_two_bookings_of_the_same_words_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with lives(tmp_path, monkeypatch, 1) as (_, (life,)):
        seen = await life.end_of_ledger()
        for number in (1, 2):
            await life.book(rows(life, number, "alice"), seen)
        assert len(await booked(life)) == 2


async def test_a_booking_is_found_by_whoever_owns_the_log_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with lives(tmp_path, monkeypatch, 2) as (log, (before, after)):
        seen = await before.end_of_ledger()
        transfer = rows(before, 1, "alice", "bob")
        first = await before.book(transfer, seen)
        await log.start_server()
        await log.servers[0].stop()
        monkeypatch.setenv("LEDGER_SERVERS", f"127.0.0.1:{log.servers[1].port}")
        assert await after.book(transfer, seen) == first
        assert len(await booked(after)) == 1


@pytest.mark.parametrize("file", ["bank.yaml", "platform.yaml"])
def test_the_files_of_an_example_are_those_of_its_config_map(file: str) -> None:
    (files,) = [
        each for each in yaml.safe_load_all((EXAMPLES / file).read_text("utf-8")) if each["kind"] == "ConfigMap"
    ]
    for name, text in files["data"].items():
        assert text == (EXAMPLES / "bank" / name).read_text("utf-8")
