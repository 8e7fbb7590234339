"""Takes the pictures of docs/dashboard.md from a platform that runs: `python -m e2e.pictures`.

It starts examples/platform.yaml with a RaftCluster and a Dataflow beside, moves money, rolls out, and opens each view
in Chromium, light and dark, on a phone, a laptop and a large screen. `--folder` uses a platform that runs already.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright, expect

from e2e.targets.local import ProcessTarget, started
from tests.requires import requires

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "images" / "dashboard"
SHOWN_MS = 240_000
QUALITY = 35
"""Of WebP; text stays sharp."""
SCREENS = {390: 844, 1280: 900, 2560: 1440}
"""Widths and heights."""
HIGHEST = 2
"""In screens; what is further down is cut off."""
SCHEMES = ("light", "dark")
RESOURCES = """
---
apiVersion: pavane.dev/v1alpha1
kind: RaftCluster
metadata:
  name: settings
  namespace: default
spec:
  replicas: 3
  storage: {size: 64Mi}
  rollout: {strategy: Manual, caughtUp: {stabilityPeriod: 1s}, retireDelay: 2s}
---
apiVersion: pavane.dev/v1alpha1
kind: Dataflow
metadata:
  name: spending
  namespace: default
spec:
  computeClusterRef: {name: books}
  script: |
    CREATE TABLE payments (account STRING, amount BIGINT) USING waltz OPTIONS (partitions '0', format 'json');
    CREATE MATERIALIZED VIEW spending AS
      SELECT account, count(*) AS payments, sum(amount) AS spent
      FROM payments WHERE amount < 0 GROUP BY account;
"""
ALL = 8
"""Resources."""
VIEWS = {
    "resources": "",
    "raft-keys": "raftclusters/default/settings",
    "raft-tree": "raftclusters/default/meta",
    "swim": "swimgroups/default/members",
    "waltz": "waltzclusters/default/ledger",
    "immortal": "coordinators/default/alice",
    "compute": "computeclusters/default/books",
    "dataflow": "dataflows/default/spending",
    "traces": "traces",
}
SETTINGS = {"feature/dark": "on", "feature/fees": "off", "limit/daily": "5000", "limit/single": "1000", "owner": "ann"}
TRANSFERS = """async () => {
    const token = sessionStorage.getItem("pavane-token");
    const headers = {Authorization: `Bearer ${token}`, "Content-Type": "application/json"};
    const call = (name, method, body) => fetch(`/api/v1/namespaces/default/coordinators/${name}/call/${method}`,
        {method: "POST", headers: {...headers, "Idempotency-Key": crypto.randomUUID()}, body: JSON.stringify(body)});
    for (const name of ["alice", "bob"]) await call(name, "open", {amount: 1000});
    const go = async (from, to) => {
        for (;;) {
            await call(from, "transfer", {to, amount: 1 + Math.floor(Math.random() * 9)}).catch(() => null);
            await new Promise((resolve) => setTimeout(resolve, 300));
        }
    };
    void go("alice", "bob");
    void go("bob", "alice");
}"""
"""Goes on as long as the page is open."""


@contextlib.contextmanager
def platform(folder: Path | None) -> Iterator[ProcessTarget]:
    """Lend the platform in `folder`, or one of our own with all resources."""
    if folder is not None:
        yield ProcessTarget(folder)
        return
    with tempfile.TemporaryDirectory() as own:
        text = (ROOT / "examples" / "platform.yaml").read_text(encoding="utf-8") + RESOURCES
        (Path(own) / "platform.yaml").write_text(text, encoding="utf-8")
        with started(Path(own), "platform.yaml") as target:
            asyncio.run(target.until_ready())
            yield target


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=requires("chromium"), args=["--no-sandbox"])
        try:
            yield found
        finally:
            await found.close()


async def used(page: Page, target: ProcessTarget) -> None:
    """Wait until everything serves; then write settings, append what is no row, and roll out."""
    await expect(page.get_by_text(f"{ALL} in all: {ALL} ready")).to_be_visible(timeout=SHOWN_MS)
    for key, value in SETTINGS.items():
        target.run("raft", "kv", "put", "settings", key, value)
    target.run("waltz", "append", "ledger", json.dumps({"account": "carol", "amount": "ten"}))
    target.run("rollout", "restart", "waltz/ledger", "--wait")
    target.run("rollout", "restart", "raft/settings")
    await expect(page.locator("tr", has_text="settings")).to_contain_text("Caught up", timeout=SHOWN_MS)


async def taken(page: Page, path: Path) -> None:
    """Take one picture as soon as nothing is awaited."""
    await expect(page.get_by_text("● live")).to_be_visible(timeout=SHOWN_MS)
    await expect(page.get_by_text("Loading")).to_have_count(0, timeout=SHOWN_MS)
    await expect(page.get_by_text("the last of its pods")).to_have_count(0, timeout=SHOWN_MS)
    await expect(page.locator(".numbers dd", has_text="–")).to_have_count(0, timeout=SHOWN_MS)
    await expect(page.locator("tbody tr, .span").first).to_be_visible(timeout=SHOWN_MS)
    size = page.viewport_size
    assert size is not None
    height = min(await page.evaluate("document.documentElement.scrollHeight"), HIGHEST * size["height"])
    clip = {"x": 0, "y": 0, "width": size["width"], "height": height, "scale": 1}
    kind = path.suffix.removeprefix(".")
    session = await page.context.new_cdp_session(page)
    options = {"format": kind, "clip": clip, "captureBeyondViewport": True}
    answer = await session.send("Page.captureScreenshot", options | ({"quality": QUALITY} if kind == "webp" else {}))
    path.write_bytes(base64.b64decode(answer["data"]))
    wider = await page.evaluate("document.documentElement.scrollWidth") - size["width"]
    sys.stdout.write(f"{path.name}: {path.stat().st_size:,} bytes{f', {wider} px TOO WIDE' if wider > 0 else ''}\n")
    sys.stdout.flush()


async def all_pictures(target: ProcessTarget, options: argparse.Namespace) -> None:
    link = target.run("dashboard").stdout.strip()
    address = link.partition("#")[0]
    async with browser() as chromium:
        first = await chromium.new_page()
        await first.goto(link)
        await first.evaluate(TRANSFERS)
        if options.folder is None:
            await used(first, target)
        await first.goto(f"{address}#/traces")
        await first.get_by_label("Part of the first span's name").fill("/transactions")
        found = first.get_by_role("link", name="/transactions").last  # the append of `used`
        trace = (await found.get_attribute("href", timeout=SHOWN_MS) or "").removeprefix("#/")
        options.to.mkdir(parents=True, exist_ok=True)
        for scheme in SCHEMES:
            for width, height in SCREENS.items():
                context = await chromium.new_context(
                    viewport={"width": width, "height": height},
                    color_scheme="dark" if scheme == "dark" else "light",
                    reduced_motion="reduce",
                )
                page = await context.new_page()
                await page.goto(link)
                await expect(page.get_by_text("● live")).to_be_visible(timeout=SHOWN_MS)
                for name, route in {**VIEWS, "trace": trace}.items():
                    if options.only and name not in options.only:
                        continue
                    await page.goto(f"{address}#/{route}")
                    await taken(page, options.to / f"{name}-{width}-{scheme}.{options.format}")
                await context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="of a platform that runs; default: one of our own")
    parser.add_argument("--to", type=Path, default=PICTURES)
    parser.add_argument("--format", choices=("webp", "png"), default="webp")
    parser.add_argument("--only", nargs="*", default=(), help="names of views")
    options = parser.parse_args()
    with platform(options.folder) as target:
        asyncio.run(all_pictures(target, options))


if __name__ == "__main__":
    main()
