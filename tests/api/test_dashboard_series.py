"""Lines over time in the browser: what was read, what happened meanwhile, and a closer look by keys and by mouse."""

import json
import math
import re
import sys
import time
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from pavane_api.dashboard import FOLDER
from pavane_api.kinds import COORDINATORS, RAFT_CLUSTERS, WALTZ_CLUSTERS
from pavane_api.series.catalogue import CATALOGUE
from pavane_api.series.store import Place, Point, SeriesStore
from tests.api.browser import SHOWN_MS, clean, opened
from tests.api.plane import Plane, created, plane
from tests.requires import requires

Q = Place("raftclusters", "default", "q")
HOUR_S, DAY_S, EVERY_S, UNREAD_S = 3600, 86_400, 15, 60
DASHBOARD = Path(__file__).parents[2] / "api" / "dashboard"
FRAMES = """async () => {
    const box = document.querySelector(".chart [role=application] .u-over").getBoundingClientRect();
    const target = document.querySelector(".chart [role=application] .u-over");
    const costs = [];
    for (let step = 1; step <= 60; step += 1) {
        const place = {clientX: box.left + box.width * step / 60, clientY: box.top + 20, bubbles: true};
        const begun = performance.now();
        target.dispatchEvent(new MouseEvent("mousemove", place));
        await new Promise(requestAnimationFrame);
        costs.push(performance.now() - begun);
    }
    costs.sort((a, b) => a - b);
    return {median: costs[30], p95: costs[57], slowest: costs[59]};
}"""
"""Moves the mouse over all lines of a chart in sixty frames."""


async def filled(store: SeriesStore, seconds: int, *marks: str, place: Place = Q, unread_s: int = UNREAD_S) -> int:
    """Give a resource a past with waves, of which nobody has read the end; returns where it ends."""
    now = int(time.time()) - unread_s
    kind = CATALOGUE[place.plural]
    for at_s in range(now - seconds, now, EVERY_S):
        told = marks if at_s + EVERY_S >= now else ()
        numbers = tuple(
            (2 + math.sin(at_s / 600 + number))
            * (1e6 if one.unit == "bytes" else 0.01 if one.unit == "seconds" else 50)
            for number, one in enumerate(kind)
        )
        await store.add([Point(place, numbers, told)], at_s)
    return now


async def with_past(here: Plane, seconds: int) -> None:
    await created(here)
    now = await filled(here.app.state.control.series, seconds, "q-server-g1-0 started again")
    times = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - ago)) for ago in (1200, 1140)]
    attempt = {"generation": 1, "id": "a", "result": "Promoted", "startedAt": times[0], "finishedAt": times[1]}
    status = {"activeGeneration": 1, "history": [{**attempt, "writeGapMs": 12, "image": "pavane:1"}]}
    await here.kube.apply_status(RAFT_CLUSTERS, {"metadata": {"name": "q"}, "status": status}, "default")


async def at(here: Plane, page: Page) -> None:
    await page.goto(f"{here.http.base_url}#/raftclusters/default/q")
    await expect(page.get_by_role("region", name="Over time")).to_be_visible(timeout=SHOWN_MS)


def test_the_licences_of_what_the_page_contains_are_part_of_it() -> None:
    contained = json.loads((DASHBOARD / "package.json").read_text("utf-8"))["dependencies"]
    told = (FOLDER / "LICENSES.txt").read_text("utf-8")
    assert "The above copyright notice" in told
    assert [name for name in contained if not re.search(rf"{name}\b", told)] == []


async def test_lines_show_the_past_and_what_happened_and_are_looked_at_by_keys(tmp_path: Path) -> None:
    requires("chromium")
    async with plane(tmp_path, series_every_s=DAY_S) as here:
        await with_past(here, HOUR_S)
        async with opened(here) as page:
            faults: list[str] = []
            page.on("pageerror", lambda error: faults.append(str(error)))
            await at(here, page)
            panel = page.get_by_role("region", name="Over time")
            await expect(panel.locator("canvas")).to_have_count(len({one.unit for one in CATALOGUE[Q.plural]}))
            happened = panel.get_by_role("list", name="What happened")
            await expect(happened).to_contain_text("generation 1 took over, writes paused 12 ms")
            await expect(happened).to_contain_text("q-server-g1-0 started again")
            summary = panel.get_by_role("table", name="Numbers of this range").get_by_role("row", name="Writes")
            await expect(summary).to_contain_text(re.compile(r"last [\d.]+/s, at least [\d.]+/s, at most 1[45]\d/s"))
            chart = panel.get_by_role("application").first
            await chart.focus()
            said = panel.get_by_role("status").first
            for key in ("End", "ArrowLeft", "ArrowRight", "Home"):  # steps without a reading are passed over
                before = await said.text_content() or ""
                await page.keyboard.press(key)
                await expect(said).not_to_have_text(before)
                await expect(said).to_have_text(re.compile(r"^\d\d:\d\d.*; Writes [\d.]+/s"))
            for _ in range(3):
                await page.keyboard.press("+")
            await expect(happened).to_have_count(0)  # both are in the half that is not seen any more
            await panel.get_by_role("button", name="Show all").click()
            await expect(happened).to_be_visible()
            box = await chart.locator(".u-over").bounding_box()
            assert box is not None
            await page.mouse.move(box["x"] + 4, box["y"] + 40)
            await page.mouse.down()
            await page.mouse.move(box["x"] + 40, box["y"] + 40, steps=4)
            await page.mouse.up()
            await expect(happened).to_have_count(0)
            await page.keyboard.press("Escape")
            await expect(happened).to_be_visible()
            await panel.get_by_role("button", name="24 h").click()
            await expect(panel.get_by_role("button", name="24 h")).to_have_attribute("aria-pressed", "true")
            await clean(page)
            assert faults == []


async def test_the_list_has_a_line_per_resource_and_a_map_of_who_uses_whom(tmp_path: Path) -> None:
    requires("chromium")
    async with plane(tmp_path, series_every_s=DAY_S) as here:
        for name in ("q", "ended"):
            await created(here, name)
        spec = {"replicas": 1, "partitions": 1, "metadata": {"raftClusterRef": {"name": "q"}}}
        await here.kube.create(WALTZ_CLUSTERS, {"metadata": {"name": "log"}, "spec": spec}, "default")
        spec = {"log": {"waltzClusterRef": {"name": "log"}}}
        await here.kube.create(COORDINATORS, {"metadata": {"name": "bank"}, "spec": spec}, "default")
        store = here.app.state.control.series
        for place in (Q, Place("coordinators", "default", "bank")):
            await filled(store, 1200, place=place, unread_s=-600)  # for as long as the test may take
        await filled(store, 600, place=Q._replace(name="ended"), unread_s=600)
        async with opened(here) as page:
            row = page.get_by_role("region", name="RaftCluster, table").get_by_role("row", name="q default")
            await expect(row).to_contain_text(re.compile(r"[\d.]+/s"), timeout=SHOWN_MS)
            await expect(row.locator("polyline")).to_have_attribute("points", re.compile(r"^\S+( \S+){4,}$"))
            ended = page.get_by_role("region", name="RaftCluster, table").get_by_role("row", name="ended default")
            await expect(ended).not_to_contain_text("/s")
            await expect(ended.locator("polyline")).to_have_attribute("points", re.compile(r"\d,19\.0$"))
            uses = page.get_by_role("table", name="Who uses whom").get_by_role("row")
            told = [r"bank keeps its log in log\s*log · [\d.]+/s$", r"log keeps its metadata in q\s*metadata$"]
            await expect(uses).to_have_text([re.compile(each) for each in told])
            await expect(page.locator(".graph .name")).to_have_text(["bank", "q", "log"])
            await page.get_by_label("Filter by name or namespace").fill("nothing")
            await expect(page.locator(".graph")).to_have_count(0)
            await page.get_by_label("Filter by name or namespace").fill("")
            await expect(page.locator(".graph")).to_have_count(1)
            await clean(page)
            await at(here, page)  # it is ten minutes old: they fill the chart, not its last sixth
            writes = page.locator(".chart").first
            await writes.locator(".u-over").hover(position={"x": 30, "y": 40})
            await expect(writes.locator("figcaption")).to_contain_text(re.compile(r"Writes [\d.]+/s"))


@pytest.mark.long  # how fluid the lines are; what they show: above
async def test_a_day_of_lines_is_looked_at(tmp_path: Path) -> None:
    requires("chromium")
    async with plane(tmp_path, series_every_s=DAY_S, series_retention_s=2 * DAY_S) as here:
        await with_past(here, DAY_S)
        async with opened(here) as page:
            await at(here, page)
            panel = page.get_by_role("region", name="Over time")
            await panel.get_by_role("button", name="24 h").click()
            await expect(panel.locator("canvas").first).to_be_visible()
            found = await page.evaluate(FRAMES)
            times = ", ".join(f"{name} {found[name]:.1f} ms" for name in ("median", "p95", "slowest"))
            lines = len(CATALOGUE[Q.plural])
            sys.stdout.write(f"{lines} lines of a day: frames {times}\n")
