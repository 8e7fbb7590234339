"""A log in the browser: a search in a partition, and a consumer that is moved once it was said what that means."""

from pathlib import Path

from playwright.async_api import expect

from pavane.waltz.client import Waltz
from tests.api.browser import clean, opened
from tests.api.plane import LEDGER, plane
from tests.api.waltz import waltz_cluster
from tests.requires import requires
from tests.services.waltz.scripted import running


async def test_transactions_are_found_and_a_consumer_is_moved(tmp_path: Path) -> None:
    requires("chromium")
    async with running(host=LEDGER) as cluster, plane(tmp_path) as here, Waltz(cluster.addresses) as log:
        await waltz_cluster(here, cluster.addresses)
        for number in range(120):
            await log.append(0, b'{"id": %d, "name": "Ann"}' % number if number % 2 else b"other")
        for name in ("billing", "coordinator.bank"):
            await log.consumer(name, who="pod-1").start(0, 100)
        async with opened(here) as page:
            await page.goto(f"{here.http.base_url}#/waltzclusters/default/ledger")
            search = page.get_by_role("region", name="Search in partition 0")
            table = search.get_by_role("table", name="Found transactions")
            await search.get_by_label("Text").fill("Ann")
            await search.get_by_label("Condition on JSON").fill("$.id >= 7")
            await search.get_by_role("button", name="Find").click()
            await expect(search.get_by_role("status")).to_have_text("found 50 of 107 transactions from 0 on, 13 left")
            await expect(table.get_by_role("row")).to_have_count(51)
            await clean(page)
            await search.get_by_role("button", name="Look further").click()
            await expect(search.get_by_role("status")).to_have_text("found 57 of 120 transactions from 0 on")
            await expect(table.get_by_role("row", name='{"id": 119, "name": "Ann"}')).to_be_visible()
            await search.get_by_label("Condition on JSON").fill("id = 7")
            await search.get_by_role("button", name="Find").click()
            await expect(search.get_by_role("alert")).to_contain_text("begins with $")

            await expect(page.get_by_role("button", name="Move coordinator.bank of partition 0")).to_have_count(0)
            await page.get_by_role("button", name="Move billing of partition 0").click()
            dialog = page.get_by_role("dialog", name="Move billing?")
            await expect(dialog.get_by_role("button", name="Move")).to_be_disabled()
            await dialog.get_by_label("First transaction to read").fill("97")
            await dialog.get_by_role("button", name="What does it mean?").click()
            await expect(dialog.get_by_role("status")).to_have_text("It reads 3 transactions again, from 97 to 99.")
            await clean(page)
            assert await log.consumer("billing").position(0) == 100
            await dialog.get_by_role("button", name="Move").click()
            await expect(dialog).to_have_count(0)
            await expect(page.get_by_role("row", name="billing 0 97 23")).to_be_visible()
            assert await log.consumer("billing").position(0) == 97
