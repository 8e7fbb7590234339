"""The page ``/docs``: the REST API from its own description, without anything from another server."""

import json
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse

from pavane_api import guide

DESCRIPTION_URL = "/api/v1/openapi.json"

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc; text-transform: capitalize; }
summary { cursor: pointer; padding: .3rem 0; } code, pre { font: 14px/1.4 ui-monospace, monospace; }
pre { background: #f4f4f4; padding: .7rem; overflow-x: auto; } td, th { text-align: left; padding: .1rem 1rem .1rem 0; }
.method { display: inline-block; width: 4.5rem; font-weight: bold; } .note { color: #555; }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd; } pre { background: #262626; } }
"""


def install(app: FastAPI) -> None:
    """Serve the page, and lead there from the addresses where people look for it."""

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()))

    @app.get("/redoc", include_in_schema=False)
    async def elsewhere() -> RedirectResponse:
        return RedirectResponse("/docs")

    @app.get("/openapi.json", include_in_schema=False)
    async def description() -> JSONResponse:
        return JSONResponse(app.openapi())


def page(description: dict[str, Any]) -> str:
    """Return the description of an API as a page of HTML: its operations by tag, each with a command that calls it."""
    groups: dict[str, list[str]] = {}
    for path, item in description["paths"].items():
        for method, operation in item.items():
            tag = (operation.get("tags") or ["other"])[0]
            groups.setdefault(tag, []).append(_operation(description, method, path, operation))
    title = f"{escape(description['info']['title'])} {escape(description['info']['version'])}"
    sections = "".join(f"<h2>{escape(tag)}</h2>{''.join(shown)}" for tag, shown in groups.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"</head><body><h1>{title}</h1><p>{escape(description['info'].get('description', ''))}</p>"
        f'<p>For programs: <a href="{DESCRIPTION_URL}">{DESCRIPTION_URL}</a>, OpenAPI '
        f'{escape(description["openapi"])}. For people: <a href="{guide.PREFIX}">{guide.PREFIX}</a>.</p>'
        f"{sections}</body></html>"
    )


def _operation(description: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(each['name'])}</code></td><td>{escape(each['in'])}"
        f"{', required' if each.get('required') else ''}</td><td>{escape(each.get('description', ''))}</td></tr>"
        for each in operation.get("parameters") or ()
    )
    answers = "".join(
        f"<tr><td>{escape(status)}</td><td>{escape(answer.get('description', ''))}</td></tr>"
        for status, answer in operation.get("responses", {}).items()
    )
    body: dict[str, Any] = operation.get("requestBody", {}).get("content", {})
    media = next(iter(body), "")
    fields = _fields(description, body.get(media, {}).get("schema", {}))
    shape = f"<p>Body, {escape(media)}:</p><pre>{escape(json.dumps(fields, indent=2))}</pre>" if media else ""
    data = f" -H 'Content-Type: {media}' --data @body" if media else ""
    command = f'curl -X {method.upper()} -H "Authorization: Bearer $PAVANE_API_TOKEN"{data} "$PAVANE_API_URL{path}"'
    return (
        f'<details id="{escape(operation.get("operationId", ""))}">'
        f'<summary><span class="method">{method.upper()}</span>'
        f'<code>{escape(path)}</code> <span class="note">{escape(operation.get("summary", ""))}</span></summary>'
        f"<p>{escape(operation.get('description', ''))}</p><table>{rows}</table>{shape}<pre>{escape(command)}</pre>"
        f"<table>{answers}</table></details>"
    )


def _fields(description: dict[str, Any], schema: dict[str, Any]) -> object:
    """Return the fields of a schema with their types; one step into what it refers to."""
    found = _resolved(description, schema)
    properties = found.get("properties") or {}
    return {name: _type(_resolved(description, each)) for name, each in properties.items()} or _type(found)


def _resolved(description: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    choices = schema.get("anyOf") or schema.get("allOf") or ()
    schema = next((each for each in choices if each.get("type") != "null"), schema)
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    named: dict[str, Any] = description.get("components", {}).get("schemas", {}).get(name, schema)
    return named


def _type(schema: dict[str, Any]) -> str:
    return str(schema.get("title") or schema.get("type") or "any") if "enum" not in schema else "|".join(schema["enum"])
