"""The dashboard in Debian's Chromium, over a control plane of this process."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

from playwright.async_api import Page, async_playwright, expect

from tests.api.plane import Plane
from tests.requires import requires

SHOWN_MS = 60_000
AXE = Path(__file__).parents[2] / "api/dashboard/node_modules/axe-core/axe.min.js"
expect.set_options(timeout=SHOWN_MS)  # a loaded machine takes its time


@contextlib.asynccontextmanager
async def opened(here: Plane, token: str | None = None, at: object = None) -> AsyncIterator[Page]:
    """Open the page, signed in by the token, or as the administrator; ``at`` is its address if it is another one."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=requires("chromium"), args=["--no-sandbox"])
        try:
            page = await browser.new_page(viewport={"width": 1280, "height": 900})
            page.set_default_timeout(SHOWN_MS)
            await page.goto(f"{at or here.http.base_url}#token={quote(token or here.token)}")
            # Taken at the first drawing, which may come after the page is loaded.
            await page.wait_for_function("!location.hash.includes('token')")
            yield page
        finally:
            await browser.close()


async def clean(page: Page) -> None:
    """Find no serious fault with axe, where it is installed."""
    if AXE.exists():
        await page.evaluate(AXE.read_text("utf-8"))
        found = await page.evaluate("axe.run()")
        bad = [each for each in found["violations"] if each["impact"] in {"serious", "critical"}]
        assert not bad, json.dumps(bad)[:3000]
