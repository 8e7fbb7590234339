"""``/docs/guide``: what ``make site`` built, under a strict policy, with nothing from another server."""

from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from playwright.async_api import ConsoleMessage, Request, async_playwright, expect

from pavane_api import guide
from pavane_api.app import create_app
from pavane_api.settings import ApiSettings
from pavane_api.streams import Streams
from pavane_operator.kube import KubeClient
from tests.api.browser import SHOWN_MS
from tests.api.plane import serving
from tests.requires import refused, requires


async def test_a_checkout_says_how_to_build_it_and_serves_it_once_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide, "FOLDER", tmp_path / "site")
    app = create_app(ApiSettings(data=tmp_path), KubeClient.connect)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://api") as http:
        for path in ("/docs/guide", "/docs/guide/", "/docs/guide/docs/cli.html"):
            absent = await http.get(path, follow_redirects=True)
            assert (absent.status_code, absent.text) == (404, guide.ABSENT)
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / guide.FIRST).write_text("<p>built")
        page = await http.get("/docs/guide", follow_redirects=True)
        assert (page.status_code, page.text) == (200, "<p>built")
        assert "default-src 'self'" in page.headers["Content-Security-Policy"]
        assert "unsafe" not in page.headers["Content-Security-Policy"]
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        assert (await http.get("/docs/guide/none.html")).status_code == 404


@pytest.mark.timeout(300)
async def test_every_page_is_shown_and_searched_without_another_server() -> None:
    if not (guide.FOLDER / guide.FIRST).is_file():
        refused("guide", "the guide is not built: run `make site`")
    program = requires("chromium")
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            complaints.append(f"{message.location.get('url')}: {message.text}")

    def asked(request: Request) -> None:
        if not request.url.startswith((base, "data:")):
            complaints.append(request.url)

    app = FastAPI()
    app.state.streams = Streams()
    guide.install(app)
    async with serving(app) as base, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            page = await browser.new_page(viewport={"width": 1280, "height": 900})
            page.set_default_timeout(SHOWN_MS)
            page.on("console", note)
            page.on("request", asked)
            await page.goto(f"{base}/docs/guide")
            await expect(page.get_by_role("heading", name="Pavane", exact=False).first).to_be_visible()
            for file in sorted(guide.FOLDER.rglob("*.html")):
                await page.goto(f"{base}{guide.PREFIX}/{file.relative_to(guide.FOLDER)}")
            await page.goto(f"{base}/docs/guide")
            search = page.get_by_role("textbox", name="Search")
            await search.fill("lease")
            await search.press("Enter")
            await page.locator("#search-results li a", has_text="Keys").first.click()
            await expect(page.locator("h1")).to_contain_text("Keys")
        finally:
            await browser.close()
    assert complaints == []
