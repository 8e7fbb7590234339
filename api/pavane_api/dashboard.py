"""The dashboard at ``/``: files that were built from ``api/dashboard`` and are part of the package."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from fastapi import FastAPI
from fastapi.responses import FileResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

FOLDER = Path(__file__).with_name("static")
PREFIX = "/dashboard"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
NAMED_BY_CONTENT = "public, max-age=31536000, immutable"


class Files(StaticFiles):
    """Static files with our headers; a name below ``assets`` changes with the content, so it may be kept for ever."""

    headers: ClassVar[Mapping[str, str]] = HEADERS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        kept = NAMED_BY_CONTENT if "/assets/" in scope["path"] else "no-cache"
        headers = [
            (key.lower().encode(), value.encode()) for key, value in {**self.headers, "Cache-Control": kept}.items()
        ]

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *headers]}
            await send(message)

        await super().__call__(scope, receive, with_headers)


def install(app: FastAPI) -> None:
    """Serve the page at ``/`` and what it loads below ``/dashboard``."""

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(FOLDER / "index.html", headers={**HEADERS, "Cache-Control": "no-cache"})

    app.mount(PREFIX, Files(directory=FOLDER), name="dashboard")
