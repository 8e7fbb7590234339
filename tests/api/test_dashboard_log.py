"""Who reads a log, in the browser: how far each is, for whom retention waits, and the removal of one."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from pavane.waltz.client import Waltz
from pavane.waltz.core.retention import Keeping
from pavane.waltz.wire.blobs import Consumer, PartitionMetadata
from pavane_operator.kube import Identity, KubeClient, Resource
from tests.api.browser import clean, opened
from tests.api.plane import LEDGER, plane
from tests.api.waltz import waltz_cluster
from tests.requires import requires
from tests.services.waltz.scripted import running

NOW_S = 10_000.0


def held_for_two_hours() -> Keeping:
    """Return a partition whose consumer ``billing`` committed 1 ten minutes ago; 1 came three minutes ago."""
    keeping = Keeping(epoch=NOW_S)
    billing = Consumer("billing", 1, 1, int(NOW_S - 600) * 1000, "pod-1", held=int(NOW_S - 7200) * 1000)
    keeping.begin(PartitionMetadata(1, 1, (), 0, (billing,)))
    keeping.sample(-180.0, 0)
    return keeping


async def test_consumers_of_a_log_are_shown_and_who_may_removes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requires("chromium")
    ask = KubeClient.access_review

    async def review(self: KubeClient, caller: Identity, verb: str, resource: Resource, **where: Any) -> bool:
        """As RBAC answers of a Role that reads, which the embedded server has not."""
        if caller.user.endswith(":reader"):
            return verb in ("get", "list", "watch")
        return await ask(self, caller, verb, resource, **where)

    monkeypatch.setattr(KubeClient, "access_review", review)
    async with running(host=LEDGER) as cluster, plane(tmp_path) as here, Waltz(cluster.addresses) as log:
        await waltz_cluster(here, cluster.addresses)
        cluster.logs[0].keeping = held_for_two_hours()
        for data in (b"a", b"b", b"c"):
            await log.append(0, data)
        for name in ("billing", "coordinator.bank"):
            await log.consumer(name, who="pod-2").start(1, 0)
        told = (
            "billing 0 1 2 3 min 10 min ago ▲ stuck: waits for 2 h pod-1",
            "billing 1 0 0 – 0 s ago does not wait pod-2",
            "coordinator.bank 1 0 0 – 0 s ago does not wait pod-2",
        )
        async with opened(here, await here.service_account_token("reader")) as page:
            await page.goto(f"{here.http.base_url}#/waltzclusters/default/ledger")
            table = page.get_by_role("table", name="Consumers")
            for row in told:
                await expect(table.get_by_role("row", name=row)).to_be_visible()
            await clean(page)
            await table.get_by_role("button", name="Remove coordinator.bank").click()
            await expect(page.get_by_role("dialog")).to_contain_text("It belongs to a Coordinator")
            await page.keyboard.press("Escape")
            dialog = page.get_by_role("dialog", name="Remove billing?")
            await table.get_by_role("button", name="Remove billing").first.click()
            await expect(dialog).to_contain_text("Its position in partitions 0, 1 is forgotten")
            await dialog.get_by_role("button", name="Remove").click()
            await expect(dialog.get_by_role("alert")).to_contain_text("may not delete")
            await dialog.get_by_role("button", name="Cancel").click()
            await expect(dialog).to_have_count(0)
            assert len(await log.consumers(0)) == 1

            await page.evaluate("token => sessionStorage.setItem('pavane-token', token)", here.token)
            await page.reload()
            await table.get_by_role("button", name="Remove billing").first.click()
            await dialog.get_by_role("button", name="Remove").click()
            await expect(table.get_by_role("row", name="billing")).to_have_count(0)
            await expect(table.get_by_role("row", name="coordinator.bank")).to_be_visible()
            await expect(dialog).to_have_count(0)
            assert [one.name for number in (0, 1) for one in await log.consumers(number)] == ["coordinator.bank"]
            cluster.move(1, owner=9)
            await expect(page.get_by_text("Nobody answers for partition 1: who reads it is not known.")).to_be_visible()
            await expect(table).to_have_count(0)
