"""The pages of ``docs/`` below ``/docs/guide``: a site that ``make site`` builds; wheels and images contain it."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, RedirectResponse
from starlette.types import Receive, Scope, Send

from pavane_api.dashboard import HEADERS, Files

FOLDER = Path(__file__).with_name("site")
PREFIX = "/docs/guide"
FIRST = "README.html"
ABSENT = "This installation has no guide. In a checkout `make site` builds it; reload this page then.\n"
POLICY = HEADERS["Content-Security-Policy"].replace("form-action 'none'", "form-action 'self'; img-src 'self' data:")
"""That of the dashboard, but for the form of the search and for the pictures that the theme's styles hold."""


class _Site(Files):
    """Static files that may be built while the server runs."""

    headers: ClassVar[Mapping[str, str]] = {**HEADERS, "Content-Security-Policy": POLICY}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        built = await asyncio.to_thread(Path(str(self.directory), FIRST).is_file)
        await (super().__call__ if built else PlainTextResponse(ABSENT, 404))(scope, receive, send)


def install(app: FastAPI) -> None:
    """Serve the site, or say how to get it."""

    @app.get(PREFIX, include_in_schema=False)
    @app.get(f"{PREFIX}/", include_in_schema=False)
    async def first() -> RedirectResponse:
        return RedirectResponse(f"{PREFIX}/{FIRST}")

    app.mount(PREFIX, _Site(directory=FOLDER, check_dir=False), name="guide")
