"""The store: nothing acknowledged is lost, nothing is seen twice (docs/specs/operator.md 6.2, 6.9)."""

import asyncio
import os
import random
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from pavane_local import store as store_module
from pavane_local.api.errors import ApiError
from pavane_local.store import Change, Event, Key, Object, ObjectStore, StoreVersionError, Watch
from tests.services.disks import no_file_beyond

WRITER = """
import asyncio, sys
from pathlib import Path
from pavane_local.store import Change, Key, ObjectStore

async def write(store, task):
    for number in range(10**9):
        name = f"{task}-{number}"
        body = {"metadata": {"name": name}, "data": "x" * 2000}
        await store.transact(Key("things", "", name), lambda _: Change(body))
        print(name, flush=True)

async def main():
    with ObjectStore(Path(sys.argv[1])) as store:
        await asyncio.gather(*(write(store, task) for task in range(4)))

asyncio.run(main())
"""


def key(name: str = "a") -> Key:
    return Key("things", "", name)


async def put(store: ObjectStore, name: str = "a", **content: object) -> Object:
    body = {"metadata": {"name": name}, **content}
    written = await store.transact(key(name), lambda _: Change(body))
    assert written is not None
    return written


def watch(store: ObjectStore, since: int | None = None) -> Watch:
    return store.watch("things", since, lambda event, _before: event)


async def remove(store: ObjectStore, name: str = "a") -> None:
    await store.transact(key(name), lambda current: Change(current or {}, removed=True))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


async def test_objects_and_the_counter_survive_a_restart(path: Path) -> None:
    with ObjectStore(path) as store:
        await put(store, "a")
        last = await put(store, "b", data=1)
        await remove(store, "b")
        assert store.resource_version == int(last["metadata"]["resourceVersion"]) + 1
        version = store.resource_version
    with ObjectStore(path) as store:
        assert [each["metadata"]["name"] for each in store.all("things")] == ["a"]
        again = await put(store, "b")
        assert int(again["metadata"]["resourceVersion"]) == version + 1


async def test_a_kill_at_any_moment_keeps_every_acknowledged_write(path: Path) -> None:
    for attempt in range(3):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, str(path), stdout=asyncio.subprocess.PIPE
        )  # fmt: skip
        assert process.stdout is not None
        acknowledged: list[str] = []
        wanted = random.Random(attempt).randrange(20, 400)
        acknowledged += [(await process.stdout.readline()).decode().strip() for _ in range(wanted)]
        os.kill(process.pid, signal.SIGKILL)
        acknowledged += (await process.stdout.read()).decode().split("\n")[:-1]
        await process.wait()
        with ObjectStore(path) as store:
            assert [name for name in acknowledged if store.get(key(name)) is None] == []
            versions = [int(each["metadata"]["resourceVersion"]) for each in store.all("things")]
            assert len(set(versions)) == len(versions)
            assert store.resource_version >= max(versions)


async def test_a_reader_sees_every_change_once_and_in_order_also_over_a_restart(path: Path) -> None:
    with ObjectStore(path) as store:
        first = await put(store, "a")
        await put(store, "a", data=2)
        await asyncio.gather(*(put(store, f"n{number}") for number in range(20)))
    with ObjectStore(path) as store:
        events = watch(store, int(first["metadata"]["resourceVersion"]))
        writes = [asyncio.ensure_future(put(store, f"m{number}")) for number in range(20)]
        seen: list[Event] = [await anext(events) for _ in range(41)]
        await asyncio.gather(*writes)
        versions = [int(event.object["metadata"]["resourceVersion"]) for event in seen]
        assert versions == list(range(versions[0], versions[0] + 41))
        assert seen[0].type == "MODIFIED"
        assert seen[0].object["data"] == 2
        names = {event.object["metadata"]["name"] for event in seen[1:]}
        assert names == {f"{kind}{number}" for kind in "nm" for number in range(20)}


async def test_a_resourceversion_before_the_history_is_expired(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "HISTORY_EVENTS", 5)
    with ObjectStore(path) as store:
        for number in range(10):
            await put(store, "a", data=number)
        assert (await anext(watch(store, 5))).object["metadata"]["resourceVersion"] == "6"
        for version in (4, 11):
            with pytest.raises(ApiError) as refusal:
                watch(store, version)
            assert refusal.value.code == 410


async def test_a_slow_reader_gets_what_was_queued_and_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PENDING_EVENTS", 3)
    with ObjectStore(path) as store:
        slow = watch(store)
        for number in range(5):
            await put(store, "a", data=number)
        assert [(await anext(slow)).object["data"] for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ApiError) as refusal:
            await anext(slow)
        assert refusal.value.code == 410


async def test_decisions_see_the_latest_object_so_no_update_is_lost(path: Path) -> None:
    with ObjectStore(path) as store:
        await put(store, "a", data=0)

        def increment(current: Any) -> Change:
            return Change({**current, "data": current["data"] + 1})

        await asyncio.gather(*(store.transact(key(), increment) for _ in range(50)))
        found = store.get(key())
        assert found is not None
        assert found["data"] == 50


async def test_a_cancelled_writer_leaves_memory_and_file_alike(path: Path) -> None:
    with ObjectStore(path) as store:
        for number in range(20):
            task = asyncio.ensure_future(put(store, f"n{number}"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
        await put(store, "last")
        before = store.all("things")
    with ObjectStore(path) as store:
        assert store.all("things") == before


async def test_a_full_disk_refuses_changes_in_words_and_those_who_may_wait_go_on_when_there_is_room(path: Path) -> None:
    with ObjectStore(path) as store:
        await put(store, "a", data=1)
        wal = path.with_name(path.name + "-wal")
        with no_file_beyond(wal.stat().st_size + 1000):
            for _ in range(3):
                with pytest.raises(ApiError, match="make room on its disk") as refusal:
                    await put(store, "b", data="x" * 100_000)
                assert (refusal.value.code, refusal.value.reason) == (507, "InsufficientStorage")
            body = {"metadata": {"name": "c"}, "data": "x" * 100_000}
            waiting = asyncio.ensure_future(store.transact(key("c"), lambda _: Change(body), wait_for_room=True))
            with pytest.raises(ApiError, match="make room on its disk"):  # it does not keep others from being told
                await put(store, "b", data="x" * 100_000)
            assert [each["metadata"]["name"] for each in store.all("things")] == ["a"]
            assert not waiting.done()
        assert await waiting is not None
        await put(store, "b", data=2)
        before = store.all("things")
    with ObjectStore(path) as store:
        assert store.all("things") == before
        assert [each["metadata"]["name"] for each in before] == ["a", "b", "c"]


async def test_a_refused_write_changes_nothing(path: Path) -> None:
    def refuse(_current: Object | None) -> Change:
        raise ValueError("no")

    with ObjectStore(path) as store:
        await put(store, "a", data=1)
        with pytest.raises(ValueError, match="no"):
            await store.transact(key(), refuse)
        version = store.resource_version
        await store.transact(key(), lambda _: None)
        assert store.resource_version == version


async def test_a_file_that_cannot_be_written_refuses_and_stays_usable(path: Path) -> None:
    with ObjectStore(path) as store:
        await put(store, "a", data=1)
        with pytest.raises(TypeError):
            await put(store, "a", data=object())
        assert (await put(store, "a", data=3))["metadata"]["resourceVersion"] == "2"


def test_a_file_of_another_version_is_refused(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreVersionError, match="version 99"):
        ObjectStore(path)
