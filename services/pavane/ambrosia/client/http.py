"""An immortal over HTTP: ``POST /call/{method}``, ``GET /query/{name}`` and ``GET /`` (docs/specs/ambrosia.md 18.6)."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.semconv.attributes.http_attributes import (
    HTTP_REQUEST_METHOD,
    HTTP_RESPONSE_STATUS_CODE,
    HTTP_ROUTE,
)
from opentelemetry.semconv.attributes.url_attributes import URL_PATH
from opentelemetry.trace import SpanKind, StatusCode
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pavane.ambrosia.client.about import FlowFilter
from pavane.ambrosia.client.errors import CoordinatorLost, ImmortalError, NotPrimary, RemoteError
from pavane.parts import documents
from pavane.runtime.http import HttpServer, listen
from pavane.runtime.visitors import OwnVisitors, is_json
from pavane.telemetry import TRACEPARENT, remote_parent

BODY_BYTES_MAX = 1 << 20  # arguments come from people and programs, bulk data does not
KEY_BYTES_MAX = 255  # keys are part of the state
FAILED = 500
_CODES = {"KeyReused": 409, "UnknownMethod": 404, "TooManyFlows": 503}


def _refused(code: int, kind: str, detail: str) -> JSONResponse:
    return JSONResponse({"error": kind, "detail": detail}, status_code=code)


async def _body(request: Request) -> Any:
    """Return the arguments; raises ``ValueError``."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > BODY_BYTES_MAX:
            raise ValueError(f"more than BODY_BYTES_MAX ({BODY_BYTES_MAX}) bytes")
    return documents.parse(data) if data else []


def application(handle: Any) -> Starlette:
    """Return the ASGI application; its calls and queries are those of the class that the immortal has by now."""

    async def call(request: Request) -> Response:
        known = handle.definition
        method = known.by_name.get(request.path_params["method"])
        if method is None:
            return _refused(404, "UnknownMethod", f"{handle.name} has the methods {', '.join(sorted(known.by_name))}")
        if not is_json(request.headers):
            return _refused(415, "NotJson", "arguments are JSON: send the header Content-Type: application/json")
        key = request.headers.get("idempotency-key", "")
        if len(key) > KEY_BYTES_MAX:
            return _refused(400, "BadKey", f"Idempotency-Key has more than KEY_BYTES_MAX ({KEY_BYTES_MAX}) bytes")
        try:
            arguments = method.signature.check(await _body(request))
            data = method.signature.pack(tuple(arguments), {})
        except (ValueError, TypeError) as error:
            return _refused(400, "BadArguments", str(error))
        try:
            value = await handle.request(method, data, key)
        except RemoteError as error:
            return _refused(_CODES.get(error.type, 422), error.type, error.message)
        except (NotPrimary, CoordinatorLost) as error:
            return _refused(503, type(error).__name__, str(error))
        return JSONResponse({"result": method.signature.result.json(value)})

    async def ask(request: Request) -> Response:
        known = handle.definition
        query = known.queries.get(request.path_params["name"])
        if query is None:
            return _refused(404, "UnknownQuery", f"{handle.name} has the queries {', '.join(sorted(known.queries))}")
        try:
            raw = {name: _plain(text) for name, text in request.query_params.items()}
            arguments = query.signature.check(raw)
        except (ValueError, TypeError) as error:
            return _refused(400, "BadArguments", str(error))
        try:
            value = await handle.query(query, *arguments)
        except ImmortalError as error:
            return _refused(500, type(error).__name__, str(error))
        except Exception as error:
            return _refused(422, type(error).__name__, str(error))
        return JSONResponse({"result": query.signature.result.json(value)})

    async def about(_: Request) -> Response:
        return JSONResponse(await handle.about())

    async def flows(request: Request) -> Response:
        try:
            return JSONResponse(await handle.flows(*_sought(request.query_params)))
        except ValueError as error:
            return _refused(400, "BadArguments", str(error))

    async def history(request: Request) -> Response:
        number = request.path_params["number"]
        try:
            found = await handle.history(number, _whole(request.query_params, "from"))
        except ValueError as error:
            return _refused(400, "BadArguments", str(error))
        if found is None:
            text = f"{handle.name} has no open flow {number}: it has ended, or goes on under another number"
            return _refused(404, "NoFlow", text)
        return JSONResponse(found)

    return Starlette(
        routes=[
            _route("POST", "/call/{method}", call),
            _route("GET", "/query/{name}", ask),
            # Who looks at these looks again and again: no trace.
            Route("/flows", flows),
            Route("/flows/{number:int}", history),
            Route("/", about),
        ],
    )


def _route(verb: str, path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    """Return the route, each request of it in a span that continues the caller's."""
    tracer = trace.get_tracer("pavane.ambrosia")

    async def traced(request: Request) -> Response:
        with tracer.start_as_current_span(
            f"{request.method} {path}",
            context=remote_parent(request.headers.get(TRACEPARENT, "")),
            kind=SpanKind.SERVER,
            attributes={HTTP_REQUEST_METHOD: request.method, HTTP_ROUTE: path, URL_PATH: request.url.path},
        ) as span:
            response = await endpoint(request)
            span.set_attribute(HTTP_RESPONSE_STATUS_CODE, response.status_code)
            if response.status_code >= FAILED:
                span.set_status(StatusCode.ERROR)
            return response

    return Route(path, traced, methods=[verb])


def _sought(parameters: QueryParams) -> tuple[FlowFilter, int]:
    """Return which flows are sought, and from which number on; raises ``ValueError``."""
    attributes = []
    for each in parameters.getlist("attribute"):
        name, separator, value = each.partition("=")
        if not separator:
            raise ValueError(f"attribute {each!r}: write NAME=VALUE")
        attributes.append((name, value))
    method, caller = parameters.get("method", ""), parameters.get("caller", "")
    return FlowFilter(method, caller, tuple(attributes)), _whole(parameters, "from")


def _whole(parameters: QueryParams, name: str) -> int:
    text = parameters.get(name, "0")
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ValueError(f"{name} is {text!r}, and no whole number")
    return int(text)


def _plain(text: str) -> Any:
    try:
        return documents.parse(text)
    except documents.TooDeep:
        raise
    except ValueError:
        return text


@contextlib.asynccontextmanager
async def served(handle: Any, address: str) -> AsyncIterator[tuple[str, int]]:
    """Serve calls and queries at ``host:port``; gives the address. Raises ``ImmortalError`` when it cannot be had."""
    host, _, port = address.rpartition(":")
    try:
        listener = listen(host.strip("[]") or "127.0.0.1", int(port))
    except (OSError, OverflowError, ValueError) as error:
        raise ImmortalError(f"cannot listen at {address} for calls over HTTP: {error}") from error
    server = HttpServer(OwnVisitors(application(handle)), timeout_graceful_shutdown=5, lifespan="off")
    task = asyncio.create_task(server.serve(sockets=[listener]))
    bound = listener.getsockname()
    try:
        yield bound[0], bound[1]
    finally:
        server.should_exit = True
        await task
        listener.close()
