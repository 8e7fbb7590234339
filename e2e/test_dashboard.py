"""The dashboard in a real browser: a rollout is followed and steered by clicks and keys, without a reload."""

import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, async_playwright, expect

from e2e.cluster import QUICK, SWIM_GROUPS, RaftTest
from e2e.targets import Capability
from e2e.test_coordinator import MONEY, BankTest
from e2e.test_waltz import LogTest
from pavane.wire import Stage
from pavane_api.kinds import COMPUTE_CLUSTERS, COORDINATORS, DATAFLOWS, WALTZ_CLUSTERS
from tests.requires import requires

SHOWN_MS = 60_000
REFUSED = re.compile(r"status of (4[0-9]{2}|503)")
STAGES = [stage.title for stage in Stage]
AXE = Path(__file__).parents[1] / "api/dashboard/node_modules/axe-core/axe.min.js"

pytestmark = pytest.mark.needs(Capability.EMBEDDED)


@pytest.fixture
async def page(raft: RaftTest) -> AsyncIterator[Page]:
    """The dashboard, beside a RaftCluster with keys."""
    chromium = requires("chromium")
    await raft.apply(stateMachine="KeyValue")
    await raft.until_current()
    async with dashboard(raft, chromium) as page:
        yield page


@contextlib.asynccontextmanager
async def dashboard(raft: RaftTest, chromium: str) -> AsyncIterator[Page]:
    """Open the dashboard, signed in by the link that `pavane dashboard` prints."""
    link = raft.platform.run("dashboard").stdout.strip()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            page = await browser.new_page(reduced_motion="reduce")
            page.set_default_timeout(SHOWN_MS)
            faults: list[str] = []
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
            await page.goto(link)
            await expect(page.get_by_text("● live")).to_be_visible(timeout=SHOWN_MS)
            assert "token" not in page.url  # a link that is copied from the address bar signs nobody in
            yield page
            assert [fault for fault in faults if not REFUSED.search(fault)] == []  # refusals are shown
        finally:
            await browser.close()


RECORD = """() => {
    window.seen = {};
    const look = () => {
        for (const pod of document.querySelectorAll(".pod")) {
            const track = pod.querySelector(".track");
            if (!track) continue;
            const stages = (window.seen[pod.querySelector(".name").textContent.split(" ").pop()] ||= []);
            const stage = track.getAttribute("aria-label").replace("Stage: ", "");
            if (stages.at(-1) !== stage) stages.push(stage);
        }
    };
    look();
    new MutationObserver(look).observe(document.body, {subtree: true, childList: true, attributes: true});
}"""
"""Keeps the stages that each pod is shown in, one after the other."""


def stages(page: Page, number: int) -> Locator:
    return lane(page, number).locator(".track")


def lane(page: Page, number: int) -> Locator:
    return page.locator(".lane", has_text=f"Generation {number}")


async def test_a_restart_by_click_is_seen_from_the_first_pod_to_the_end(raft: RaftTest, page: Page) -> None:
    raft.platform.run("raft", "kv", "put", "q", "greeting", "hello", "-n", raft.namespace)
    await page.get_by_label("Filter by name or namespace").fill(raft.namespace)
    await page.get_by_role("link", name="q", exact=True).click()
    await expect(stages(page, 1)).to_have_count(3, timeout=SHOWN_MS)
    await expect(lane(page, 1).get_by_label("Stage: ReadWrite")).to_have_count(3, timeout=SHOWN_MS)
    await page.evaluate(RECORD)
    await expect(page.get_by_role("row", name="greeting")).to_contain_text("hello", timeout=SHOWN_MS)
    await page.get_by_label("Prefix of the keys").fill("other")
    await expect(page.get_by_text("No key begins with “other”.")).to_be_visible(timeout=SHOWN_MS)
    await page.get_by_label("Prefix of the keys").fill("gree")
    await expect(page.get_by_role("row", name="greeting")).to_be_visible(timeout=SHOWN_MS)
    await expect(page.get_by_text("★ leader")).to_have_count(1, timeout=SHOWN_MS)

    await page.get_by_role("button", name="Restart").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("A new generation starts beside generation 1")
    await dialog.get_by_role("button", name="Restart").click()
    await expect(lane(page, 2)).to_contain_text("is next", timeout=SHOWN_MS)
    await expect(lane(page, 2)).to_contain_text("serves", timeout=SHOWN_MS)
    await expect(lane(page, 1)).to_have_count(0, timeout=SHOWN_MS)
    for pod in range(3):
        seen = await page.evaluate("pod => window.seen[pod]", f"q-server-g2-{pod}")
        assert seen[-1] == "ReadWrite"
        assert [stage for stage in STAGES if stage in seen] == [stage for stage in seen if stage in STAGES], seen
    await expect(
        page.get_by_role("region", name="History, table").get_by_role("row", name="2 Promoted")
    ).to_be_visible()
    assert (await raft.get())["status"]["activeGeneration"] == 2


async def test_an_attempt_is_aborted_by_keys_alone(raft: RaftTest, page: Page) -> None:
    gate = {"name": "probe", "for": "1s", "http": {"port": 7071, "path": "/livez"}}
    await raft.apply(stateMachine="KeyValue", rollout={"strategy": "Manual", "gates": [gate]})
    raft.platform.run("rollout", "restart", "raft/q", "-n", raft.namespace)
    await page.goto(f"{page.url.split('#', maxsplit=1)[0]}#/raftclusters/{raft.namespace}/q")
    await expect(lane(page, 2)).to_contain_text("is next", timeout=SHOWN_MS)
    waiting = lane(page, 2).get_by_label("Stage: ReadOnly")
    await expect(waiting).to_have_count(3, timeout=SHOWN_MS)
    await expect(page.get_by_label("Waits for")).to_contain_text("WaitingForApproval", timeout=SHOWN_MS)
    passed = page.get_by_role("region", name="Gates, table").get_by_role("row", name="probe Passed 200")
    await expect(passed).to_be_visible(timeout=SHOWN_MS)
    await page.get_by_role("button", name="Abort").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_contain_text("Generation 1 is untouched")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.get_by_role("button", name="Abort").focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("dialog").get_by_role("button", name="Abort")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(lane(page, 2)).to_have_count(0, timeout=SHOWN_MS)
    assert (await raft.get())["status"]["activeGeneration"] == 1


SCRIPT = """
CREATE TABLE orders (id BIGINT, customer STRING, cents BIGINT) USING waltz OPTIONS (partitions '0');
CREATE MATERIALIZED VIEW revenue AS SELECT customer, sum(cents) AS total FROM orders WHERE id > 0 GROUP BY customer;
"""
COUNTS = """
CREATE TABLE payments (id BIGINT, customer STRING) USING waltz OPTIONS (partitions '0');
CREATE MATERIALIZED VIEW counts AS SELECT customer, count(*) AS n FROM payments WHERE id > 0 GROUP BY customer;
"""


async def test_a_log_and_views_of_it_are_written_and_followed(raft: RaftTest) -> None:
    chromium = requires("chromium")
    log = LogTest(raft.platform, raft.kube, raft.namespace, WALTZ_CLUSTERS)
    await log.start()
    spec = {"waltzClusterRef": {"name": "q"}, "partitions": {"ticks": 1, "views": 2}, "scripts": {"sums": SCRIPT}}
    body = {"metadata": {"name": "sums"}, "spec": {**spec, "interval": "100ms", **QUICK}}
    await raft.kube.apply(COMPUTE_CLUSTERS, body, raft.namespace, manager="e2e", strict=True)
    log.say("append", "before the page")
    async with dashboard(raft, chromium) as page:
        await page.goto(f"{page.url.split('#', maxsplit=1)[0]}#/waltzclusters/{raft.namespace}/q")
        rows = page.get_by_role("region", name="Transactions, table").get_by_role("row")
        await expect(rows.nth(1)).to_contain_text("before the page", timeout=SHOWN_MS)
        await page.get_by_label("Data").fill("by the page")
        await page.get_by_label("Write locks").fill("account/7")
        await page.get_by_role("button", name="Append").click()
        await expect(page.get_by_role("status").filter(has_text="Committed as transaction 1.")).to_be_visible()
        await expect(rows.nth(1)).to_contain_text("by the page")
        log.say("append", "by another")
        await expect(rows.nth(1)).to_contain_text("by another", timeout=SHOWN_MS)

        await page.get_by_role("button", name="Partition 3").click()
        await expect(page.get_by_text("Nothing has been appended yet.")).to_be_visible(timeout=SHOWN_MS)
        await page.get_by_label("Data").fill("into the third")
        await page.get_by_role("button", name="Append").click()
        await expect(rows.nth(1)).to_contain_text("into the third", timeout=SHOWN_MS)
        if AXE.exists():
            await without_serious_faults(page)
        assert "into the third" in log.say("get", "0", "--partition", "3")
        await views_are_followed(page, log)
        await a_dataflow_is_followed(page, log)
        await the_tree_is_walked(page, log)


async def views_are_followed(page: Page, log: LogTest) -> None:
    await page.goto(f"{page.url.split('#', maxsplit=1)[0]}#/computeclusters/{log.namespace}/sums")
    await expect(stages(page, 1).first).to_have_attribute("aria-label", "Stage: ReadWrite", timeout=SHOWN_MS)
    await expect(page.get_by_label("View revenue", exact=True)).to_contain_text("GROUP BY customer", timeout=SHOWN_MS)
    rows = page.get_by_role("region", name="Rows of revenue, table").get_by_role("row")
    for cents, total in ((5, "5"), (7, "12")):
        log.say("append", json.dumps({"id": cents, "customer": "ann", "cents": cents}))
        await expect(rows.filter(has_text="ann").filter(has_text=total)).to_have_count(1, timeout=SHOWN_MS)
    await expect(rows.filter(has_text="ann")).to_have_count(1)  # the former sum has gone
    await expect(page.get_by_label("Rows that do not fit", exact=True)).to_contain_text("orders", timeout=SHOWN_MS)
    await page.get_by_label("One SELECT over the views").fill("SELECT total * 2 AS twice FROM revenue")
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_role("region", name="Answer, table")).to_contain_text("24", timeout=SHOWN_MS)
    await page.get_by_label("One SELECT over the views").fill("SELECT nothing FROM revenue")
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_role("alert")).to_contain_text("nothing", timeout=SHOWN_MS)
    if AXE.exists():
        await without_serious_faults(page)


async def a_dataflow_is_followed(page: Page, log: LogTest) -> None:
    spec = {"computeClusterRef": {"name": "sums"}, "script": COUNTS}
    await log.kube.apply(DATAFLOWS, {"metadata": {"name": "counts"}, "spec": spec}, log.namespace, manager="e2e")
    await page.goto(f"{page.url.split('#', maxsplit=1)[0]}#/dataflows/{log.namespace}/counts")
    await expect(page.get_by_label("SQL", exact=True)).to_contain_text("count(*)", timeout=SHOWN_MS)
    row = page.get_by_role("region", name="Rows of counts, table").get_by_role("row").filter(has_text="ann")
    await expect(row).to_contain_text("2", timeout=SHOWN_MS)
    log.say("append", json.dumps({"id": 9, "customer": "ann", "cents": 1}))
    await expect(row).to_contain_text("3", timeout=SHOWN_MS)
    if AXE.exists():
        await without_serious_faults(page)


async def the_tree_is_walked(page: Page, log: LogTest) -> None:
    await page.goto(f"{page.url.split('#', maxsplit=1)[0]}#/raftclusters/{log.namespace}/meta")
    tree = page.get_by_label("Tree", exact=True)
    path = tree.get_by_role("group", name="Path").get_by_role("button")
    child = tree.get_by_role("listitem").get_by_role("button").first
    name = await child.inner_text(timeout=SHOWN_MS)
    await child.click()
    await expect(path).to_have_text(["/", name], timeout=SHOWN_MS)
    await expect(tree.get_by_text("version ")).to_be_visible(timeout=SHOWN_MS)
    await path.first.click()
    await expect(path).to_have_text(["/"])
    if AXE.exists():
        await without_serious_faults(page)


async def test_a_group_is_watched_and_promoted_by_a_click(raft: RaftTest) -> None:
    chromium = requires("chromium")
    group = RaftTest(raft.platform, raft.kube, raft.namespace, SWIM_GROUPS)
    spec = {"replicas": 3, "rollout": {**QUICK["rollout"], "strategy": "Manual"}}
    body = {"metadata": {"name": "q"}, "spec": spec}
    await group.kube.apply(SWIM_GROUPS, body, group.namespace, manager="e2e", strict=True)
    await group.until_current(generation=1)
    async with dashboard(raft, chromium) as page:
        await page.goto(f"{page.url.split('#', maxsplit=1)[0]}#/swimgroups/{group.namespace}/q")
        await page.evaluate("window.kept = true")
        members = page.get_by_role("region", name="Members, table").get_by_role("row").filter(has_text="q-member-")
        await expect(members.filter(has_text="Alive")).to_have_count(3, timeout=SHOWN_MS)
        await expect(page.get_by_text("● all agree")).to_be_visible(timeout=SHOWN_MS)
        raft.platform.run("rollout", "restart", "swim/q", "-n", group.namespace)
        await expect(page.get_by_label("Waits for")).to_contain_text("WaitingForApproval", timeout=SHOWN_MS)
        await expect(members.filter(has_text="q-member-g2-")).to_have_count(3, timeout=SHOWN_MS)
        await page.get_by_role("button", name="Promote").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("generation 2")
        await dialog.get_by_role("button", name="Promote").click()
        await expect(lane(page, 2)).to_contain_text("serves", timeout=SHOWN_MS)
        await expect(lane(page, 1)).to_have_count(0, timeout=SHOWN_MS)
        await expect(members.filter(has_text="Alive").filter(has_text="q-member-g2-")).to_have_count(
            3, timeout=SHOWN_MS
        )
        assert await page.evaluate("window.kept") is True  # nothing was loaded again
        if AXE.exists():
            await without_serious_faults(page)
    assert (await group.get())["status"]["activeGeneration"] == 2


async def test_an_immortal_is_called_and_asked(raft: RaftTest) -> None:
    chromium = requires("chromium")
    bank = BankTest(raft.platform, raft.kube, raft.namespace, COORDINATORS)
    await bank.start()
    async with dashboard(raft, chromium) as page:
        await page.goto(f"{page.url.split('#', maxsplit=1)[0]}#/coordinators/{raft.namespace}/alice")
        called = page.locator(".numbers div", has_text="Calls since it leads").locator("dd")
        await expect(called).to_have_text("1", timeout=SHOWN_MS)
        await page.get_by_label("Method or query").select_option("transfer")
        await page.get_by_label("to", exact=True).fill("bob")
        await page.get_by_label("amount", exact=True).fill("10")
        await page.get_by_role("button", name="Call", exact=True).click()
        answer = page.locator("output")
        await expect(answer).to_have_text("true", timeout=SHOWN_MS)
        await expect(called).to_have_text("2", timeout=SHOWN_MS)
        await expect(page.get_by_role("row", name="bob")).to_contain_text("connected", timeout=SHOWN_MS)
        await expect(page.get_by_role("row", name="alice-instance-g1-0")).to_contain_text("leads", timeout=SHOWN_MS)
        await page.get_by_label("amount", exact=True).fill("much")
        await page.get_by_role("button", name="Call", exact=True).click()
        await expect(page.get_by_role("alert")).to_contain_text("amount", timeout=SHOWN_MS)
        await page.get_by_label("Method or query").select_option("money")
        await page.get_by_role("button", name="Query", exact=True).click()
        await expect(answer).to_contain_text(f'"balance": {MONEY - 10}', timeout=SHOWN_MS)
        if AXE.exists():
            await without_serious_faults(page)
    assert (await bank.query("bob", "money"))["balance"] == MONEY + 10


async def test_a_traced_write_is_found_and_opened(raft: RaftTest, page: Page) -> None:
    raft.platform.run("raft", "kv", "put", "q", "traced", "yes", "-n", raft.namespace)
    await page.get_by_role("link", name="Traces", exact=True).click()
    await page.get_by_label("Part of the first span's name").fill("txn")
    await page.get_by_role("link", name="txn").first.click()
    await expect(page.locator(".span", has_text="raft/pv.kv").first).to_be_visible(timeout=SHOWN_MS)
    await page.locator(".span", has_text="raft/pv.kv").first.click()
    await expect(page.get_by_role("region", name="Attributes, table")).to_contain_text("pavane.raft", timeout=SHOWN_MS)


async def test_no_view_has_a_serious_fault_of_accessibility(raft: RaftTest, page: Page) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is missing: make dashboard-tools")
    for view in ("#/", f"#/raftclusters/{raft.namespace}/q", "#/traces"):
        await page.goto(page.url.split("#", maxsplit=1)[0] + view)
        await expect(page.locator("tbody tr").first).to_be_visible(timeout=SHOWN_MS)
        await without_serious_faults(page)


async def without_serious_faults(page: Page) -> None:
    """Judge what the page shows, light and dark."""
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
        await page.evaluate(AXE.read_text(encoding="utf-8"))
        found = await page.evaluate("axe.run().then((result) => result.violations)")
        serious = [item["id"] for item in found if item["impact"] in ("serious", "critical")]
        assert serious == [], (page.url, scheme)


async def test_who_has_no_valid_token_is_asked_for_one(page: Page) -> None:
    await page.evaluate("sessionStorage.setItem('pavane-token', 'wrong')")
    await page.reload()
    await expect(page.get_by_role("alert")).to_contain_text("The token is not valid", timeout=SHOWN_MS)
    await page.get_by_label("Token of the cluster").fill("wrong")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_contain_text("The token is not valid", timeout=SHOWN_MS)
