"""The dashboard in Debian's Chromium, over a control plane of this process."""

import contextlib
from collections.abc import AsyncIterator
from urllib.parse import quote

from playwright.async_api import Page, async_playwright

from tests.api.plane import Plane
from tests.requires import requires

SHOWN_MS = 60_000


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
