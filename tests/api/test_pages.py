"""``/docs`` shows every operation, and needs no other server."""

import re
from pathlib import Path

import httpx2

from pavane_api.app import create_app
from pavane_api.settings import ApiSettings


async def test_the_page_has_every_operation_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    app = create_app(ApiSettings(data=tmp_path))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://api") as http:
        for path in ("/redoc",):
            answer = await http.get(path)
            assert (answer.status_code, answer.headers["location"]) == (307, "/docs")
        page = await http.get("/docs")
        description = (await http.get("/openapi.json")).json()
        assert description == (await http.get("/api/v1/openapi.json")).json()
    assert page.headers["content-type"].startswith("text/html")
    identifiers = [each["operationId"] for item in description["paths"].values() for each in item.values()]
    assert len(identifiers) > 30
    assert sorted(re.findall(r'<details id="([^"]+)"', page.text)) == sorted(identifiers)
    assert not re.findall(r"<script|https?://|@import|url\(", re.sub(r"<pre>.*?</pre>", "", page.text, flags=re.S))
