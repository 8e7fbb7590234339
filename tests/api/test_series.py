"""Numbers of a resource over time: read from its pods, kept within bounds, and told over REST."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pavane.runtime.metrics import Metric
from pavane.runtime.ops import OpsServer
from pavane.runtime.process import Process
from pavane_api import database
from pavane_api.problems import Unavailable
from pavane_api.series import collector
from pavane_api.series.catalogue import CATALOGUE, Fold, How, Series, growth, numbers, parse
from pavane_api.series.endpoints import STEPS_MAX
from pavane_api.series.store import MARKS_MAX, RESOURCES_MAX, Place, Point, SeriesStore
from pavane_operator.crds.definitions import KINDS
from pavane_operator.kube import NotFound
from pavane_operator.kube.resources import PODS
from tests.api.plane import BASE, Plane, created, plane

LONGEST_S = 40
OFTEN_S = 0.05
TEXT = """# TYPE pavane_raft_commit_index gauge
pavane_raft_commit_index 12
pavane_waltz_appended_total{partition="0"} 3
pavane_waltz_appended_total{partition="1"} 4.5
pavane_waltz_appended_total{partition="2"} none
pavane_raft_commit_index_more 9
"""
Q = Place("raftclusters", "default", "q")


def test_only_what_is_wanted_is_read_of_a_pods_text() -> None:
    found = parse(TEXT, frozenset({"pavane_raft_commit_index", "pavane_waltz_appended_total"}))
    assert found == {"pavane_raft_commit_index": (12, 12, 12), "pavane_waltz_appended_total": (7.5, 3, 4.5)}


def test_a_counter_that_fell_began_again_from_zero() -> None:
    before, after = (parse(f"a {a}\nb {b}\n", frozenset("ab")) for a, b in ((10, 10), (14, 3)))
    assert growth(before, after) == {"a": 4, "b": 3}
    assert growth({}, after) == {}  # what a pod had counted before it was read for the first time is no growth


@pytest.mark.parametrize(
    ("how", "metrics", "value"),
    [
        (How.TOTAL, ("a",), 9),
        (How.MOST, ("a",), 5),
        (How.RATE, ("c",), 8),
        (How.PACE, ("c",), 6),
        (How.MEAN, ("s", "c"), 0.5),
        (How.BEHIND, ("a", "b"), 4),
        (How.TOTAL, ("absent",), None),
        (How.RATE, ("absent",), None),
        (How.MEAN, ("s", "absent"), None),
    ],
)
def test_a_number_follows_from_all_pods(how: How, metrics: tuple[str, ...], value: float | None) -> None:
    pods = [parse(text, frozenset("ab")) for text in ("a 5\nb 3\n", "a 4\nb 1\n")]
    rates = [{"c": 6.0, "s": 3.0}, {"c": 2.0, "s": 1.0}]
    assert numbers([Series("x", "", "", how, metrics)], pods, rates) == (value,)


def test_every_kind_with_pods_has_series() -> None:
    assert set(CATALOGUE) == {kind.plural for kind in KINDS}
    for series in CATALOGUE.values():
        assert len({one.name for one in series}) == len(series)


@contextlib.asynccontextmanager
async def stored(folder: Path, **bounds: Any) -> AsyncIterator[SeriesStore]:
    store = SeriesStore(folder / "series.sqlite", **{"retention_s": 1000, "rows_max": 1000, "every_s": 10, **bounds})
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def point(place: Place, value: float | None, *marks: str) -> Point:
    return Point(place, (value,) * len(CATALOGUE[place.plural]), marks)


async def test_readings_are_folded_into_steps_and_survive_a_restart(tmp_path: Path) -> None:
    mean, most = (next(one for one in CATALOGUE[Q.plural] if one.fold is fold) for fold in Fold)
    async with stored(tmp_path) as store:
        for at_s, value in ((100, 1.0), (110, 3.0), (119, None), (130, 1e300)):
            await store.add([point(Q, value, f"at {at_s}")], at_s)
    async with stored(tmp_path) as store:
        assert await store.folded(Q, (most, mean), 100, 20, 3) == [[3, None, None], [2, None, None]]
        assert await store.folded(Q, (most,), 100, 10, 1) == [[1]]
        assert await store.folded(Place("raftclusters", "default", "other"), (most,), 100, 10, 2) == [[None, None]]
        assert [mark.text for mark in await store.marks(Q, 110)] == ["at 110", "at 119", "at 130"]


async def test_what_is_too_old_or_too_much_goes_and_all_resources_are_cut_alike(tmp_path: Path) -> None:
    other = Place("waltzclusters", "default", "q")
    first = CATALOGUE[Q.plural][:1], CATALOGUE[other.plural][:1]
    async with stored(tmp_path, rows_max=100) as store:  # 50 rows each: 500 s
        for at_s in range(0, 1000, 10):
            await store.add([point(Q, 1), point(other, 1, *["again"] * 20)], at_s)
        kept = [
            [value is not None for (value,) in zip(*await store.folded(place, one, 0, 10, 100), strict=True)]
            for place, one in zip((Q, other), first, strict=True)
        ]
        assert kept[0] == kept[1]
        assert 50 <= sum(kept[0]) <= 50 + 20  # looked at every so many rounds
        assert kept[0][-1]
        assert len(await store.marks(other, 0)) <= MARKS_MAX
        # One that is gone leaves nothing behind.
        for at_s in range(10_000, 10_400, 10):
            await store.add([point(other, 1)], at_s)
        assert await store.folded(Q, first[0], 0, 100, 100) == [[None] * 100]


async def test_resources_beyond_the_limit_have_no_series(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        places = [Place("raftclusters", "default", f"r{number}") for number in range(RESOURCES_MAX + 1)]
        await store.add([point(place, 1) for place in places], 10)
        series = CATALOGUE["raftclusters"][:1]
        assert await store.folded(places[-2], series, 10, 10, 1) == [[1]]
        assert await store.folded(places[-1], series, 10, 10, 1) == [[None]]


async def test_a_write_that_failed_leaves_no_resource_with_the_numbers_of_another(tmp_path: Path) -> None:
    failed, later = (Place("raftclusters", "default", name) for name in ("failed", "later"))
    series = CATALOGUE[Q.plural][:1]
    async with stored(tmp_path) as store:
        with contextlib.closing(sqlite3.connect(tmp_path / "series.sqlite")) as other:
            other.execute("CREATE TRIGGER t BEFORE INSERT ON mark BEGIN SELECT RAISE(ABORT, 'no'); END")
            with pytest.raises(sqlite3.IntegrityError):
                await store.add([point(failed, 1, "a mark")], 10)
            other.execute("DROP TRIGGER t")
        await store.add([point(later, 2)], 20)
        await store.add([point(failed, 3)], 20)
        assert await store.folded(later, series, 20, 10, 1) == [[2]]
        assert await store.folded(failed, series, 20, 10, 1) == [[3]]


async def test_a_file_that_another_program_has_locked_leaves_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCKED_S", 0.0)
    async with stored(tmp_path) as store:
        with contextlib.closing(sqlite3.connect(tmp_path / "series.sqlite")) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable, match="locked"):
                await store.add([point(Q, 1)], 10)
        await store.add([point(Q, 2)], 20)
        assert await store.folded(Q, CATALOGUE[Q.plural][:1], 10, 10, 2) == [[None, 2]]


async def test_collecting_goes_on_after_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = asyncio.Event()

    async def fails(_store: SeriesStore, _points: Sequence[Point], _at_s: int) -> None:
        monkeypatch.setattr(SeriesStore, "add", goes_on)
        raise RuntimeError("as the test asked")

    async def goes_on(_store: SeriesStore, _points: Sequence[Point], _at_s: int) -> None:
        again.set()

    monkeypatch.setattr(collector, "AGAIN_S", OFTEN_S)
    monkeypatch.setattr(SeriesStore, "add", fails)
    async with plane(tmp_path, series_every_s=OFTEN_S), asyncio.timeout(LONGEST_S):
        await again.wait()


class Numbers:
    """The ops port of a pod, in this process."""

    def __init__(self) -> None:
        self.process = Process()
        self.writes = 0

    def metrics(self) -> list[Metric]:
        self.writes += 100
        return [
            Metric("pavane_raft_update_seconds_count", {}, self.writes),
            Metric("pavane_raft_update_seconds_sum", {}, self.writes / 50),
            Metric("pavane_raft_commit_index", {}, 30),
            Metric("pavane_raft_applied_index", {}, 23),
        ]

    @contextlib.asynccontextmanager
    async def at(self, address: str) -> AsyncIterator["Numbers"]:
        ops = OpsServer(host=address, live=lambda: None, ready=lambda: None, metrics=self.metrics)
        await ops.start(self.process)
        try:
            yield self
        finally:
            await ops.stop()
            await self.process.cancel_tasks()


async def pod(api: Plane, name: str) -> str:
    """Create a pod whose image is nowhere, and return the address that it has nevertheless."""
    labels = {"name": "raftcluster", "instance": "q", "managed-by": "pavane-operator"}
    metadata = {"name": name, "labels": {f"app.kubernetes.io/{key}": value for key, value in labels.items()}}
    spec = {"containers": [{"name": "main", "image": "nowhere"}]}
    await api.kube.create(PODS, {"metadata": metadata, "spec": spec}, "default")
    async for change in api.kube.watch(PODS, "default", fields=f"metadata.name={name}"):
        if (change.object.get("status") or {}).get("podIP"):
            return str(change.object["status"]["podIP"])
    raise AssertionError("the watch ended")


async def told(api: Plane, query: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Ask until the answer is what was wanted."""
    async with asyncio.timeout(LONGEST_S):
        while True:
            answer = await api.http.get(f"{BASE}/q/series{query}")
            assert answer.status_code == 200, answer.text
            if wanted(answer.json()):
                return dict(answer.json())
            await asyncio.sleep(0.05)


def values(answer: dict[str, Any], name: str) -> list[float]:
    (found,) = [one["values"] for one in answer["series"] if one["name"] == name]
    return [value for value in found if value is not None]


async def test_pods_are_read_again_and_again_and_a_new_one_in_a_pods_place_is_marked(tmp_path: Path) -> None:
    async with plane(tmp_path, series_every_s=OFTEN_S) as api:
        await created(api)
        async with Numbers().at(await pod(api, "q-server-g1-0")):
            answer = await told(api, "?step=1", lambda each: bool(values(each, "writes")))
            assert {round(one, 6) for one in values(answer, "write_time")} == {0.02}  # of a second, or of two
            assert values(answer, "lag")[-1] == 7
            assert values(answer, "memory")[-1] > 1e6
            assert answer["marks"] == []
        await api.kube.delete(PODS, "q-server-g1-0", "default")
        with contextlib.suppress(NotFound):
            async with asyncio.timeout(LONGEST_S):
                while await api.kube.get(PODS, "q-server-g1-0", "default"):
                    await asyncio.sleep(0.05)
        await pod(api, "q-server-g1-0")
        answer = await told(api, "?names=lag", lambda each: bool(each["marks"]))
        assert [one["name"] for one in answer["series"]] == ["lag"]
        assert [mark["text"] for mark in answer["marks"]] == ["q-server-g1-0 was replaced"]
        assert answer["from"] <= answer["marks"][0]["at"] <= time.time()


async def test_an_answer_is_bounded_and_says_so(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        assert (await api.http.get(f"{BASE}/q/series")).status_code == 404
        await created(api)
        day = (await api.http.get(f"{BASE}/q/series?from=0&step=1")).json()
        assert day["step"] == 58  # a day in STEPS_MAX
        assert all(STEPS_MAX - 20 < len(one["values"]) <= STEPS_MAX + 1 for one in day["series"])
        later = (await api.http.get(f"{BASE}/q/series?from={1 << 40}")).json()
        assert all(len(one["values"]) <= 1 for one in later["series"])
        refused = await api.http.get(f"{BASE}/q/series?names=writes,memroy")
        assert (refused.status_code, refused.json()["errors"][0]["detail"]) == (
            422,
            "raftclusters have no series memroy; did you mean memory?",
        )


async def test_series_are_for_those_who_may_see_the_resource(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        headers = {"Authorization": f"Bearer {await api.service_account_token('stranger')}"}
        answer = await api.http.get(f"{BASE}/q/series", headers=headers)
        assert (answer.status_code, "may not get raftclusters" in answer.text) == (403, True)


async def test_lists_have_a_line_per_resource_of_the_kinds_that_may_be_listed(tmp_path: Path) -> None:
    other = Place("waltzclusters", "elsewhere", "w")
    async with plane(tmp_path, series_every_s=3600) as api:
        await created(api)
        await api.app.state.control.series.add([point(Q, 3), point(other, None)], int(time.time()))
        items = (await api.http.get("/api/v1/resources/series")).json()["items"]
        assert [(each["plural"], each["namespace"], each["name"], each["unit"]) for each in items] == [
            ("raftclusters", "default", "q", "per second"),
            ("waltzclusters", "elsewhere", "w", "per second"),
        ]
        assert [value for value in items[0]["values"] if value is not None] == [3]
        assert {len(each["values"]) for each in items} == {30}
        items = (await api.http.get("/api/v1/resources/series?namespace=elsewhere")).json()["items"]
        assert [each["name"] for each in items] == ["w"]
        headers = {"Authorization": f"Bearer {await api.service_account_token('stranger')}"}
        assert (await api.http.get("/api/v1/resources/series", headers=headers)).status_code == 403
