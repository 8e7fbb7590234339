"""How errors leave the REST API: as ``application/problem+json``, with words that a user can act on.

Our own ``Problem`` classes, the Kubernetes client's errors, FastAPI's validation errors, and the unexpected.
"""

from typing import Any

import httpx2
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from opentelemetry import trace
from starlette.exceptions import HTTPException
from starlette.routing import Match

from pavane_api.bodies import OCTETS
from pavane_api.problems import (
    MEDIA_TYPE,
    TYPE_BASE,
    BadRequest,
    FieldProblem,
    Invalid,
    NotFound,
    Problem,
    ProblemDocument,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
    from_kubernetes,
)
from pavane_api.traces.store import TooConnected
from pavane_operator import kube

METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
JSON_TYPES = frozenset({"application/json", "application/merge-patch+json"})
HTTP_PROBLEMS = {each.status: each for each in (BadRequest, NotFound, TooLarge, Unauthenticated, Unavailable)}
"""What Starlette and ``BodyLimit`` raise as plain HTTP errors."""
DOCUMENT = {"$ref": f"#/components/schemas/{ProblemDocument.__name__}"}

_log = structlog.get_logger(__name__)


def _answer(
    request: Request,
    status: int,
    kind: str,
    title: str,
    detail: str,
    errors: list[FieldProblem],
    headers: dict[str, str],
) -> JSONResponse:
    context = trace.get_current_span().get_span_context()
    document = ProblemDocument(
        type=TYPE_BASE + kind,
        title=title,
        status=status,
        detail=detail,
        instance=request.url.path,
        errors=errors,
        trace_id=format(context.trace_id, "032x") if context.is_valid else "",
    )
    return JSONResponse(
        document.model_dump(exclude_none=True), status_code=status, headers=headers, media_type=MEDIA_TYPE
    )


def _describe(document: dict[str, Any]) -> dict[str, Any]:
    """Return a description in which errors have the type that they are sent with: FastAPI calls every model JSON.

    Who takes JSON answers 400 to what is no UTF-8, and 415 to everything else. No parameter can be null. What may be
    answered 428 needs If-Match, unless If-None-Match would do. Generators of clients want a schema for bytes and cannot
    write a default that is an object.
    """
    for schema in document["components"]["schemas"].values():
        for described in schema.get("properties", {}).values():
            if isinstance(described.get("default"), dict):
                del described["default"]
    for operation in (item for path in document["paths"].values() for item in path.values()):
        taken = (operation.get("requestBody") or {}).get("content", {})
        if OCTETS in taken:
            taken[OCTETS] = {"schema": {"type": "string", "format": "binary"}}
        if taken and taken.keys() <= JSON_TYPES:
            for problem in (BadRequest, UnsupportedMediaType):
                described = {"description": problem.title, "content": {MEDIA_TYPE: {"schema": DOCUMENT}}}
                operation["responses"].setdefault(str(problem.status), described)
        for schema in (parameter["schema"] for parameter in operation.get("parameters", ())):
            if (choices := [each for each in schema.get("anyOf", ()) if each != {"type": "null"}])[1:] == []:
                schema.update(*choices)
                schema.pop("anyOf", None)
        parameters = {parameter["name"]: parameter for parameter in operation.get("parameters", ())}
        if "428" in operation["responses"] and "if-none-match" not in parameters:
            parameters["if-match"]["required"] = True
        for answer in operation["responses"].values():
            if MEDIA_TYPE in answer.get("content", {}):
                answer["content"].pop("application/json", None)
                answer["content"][MEDIA_TYPE] = {"schema": DOCUMENT}
        operation["responses"] = dict(sorted(operation["responses"].items()))
    return document


def _is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() in JSON_TYPES


def _methods(app: FastAPI, request: Request) -> list[str]:
    """The methods that the path takes: the router names those of the first route with that path alone."""

    def taken(method: str) -> bool:
        scope = {**request.scope, "method": method, "path_params": {}}
        return any(route.matches(scope)[0] is Match.FULL for route in app.routes)

    return [method for method in METHODS if taken(method)]


def install(app: FastAPI) -> None:
    """Make ``app`` answer every error as a problem document."""
    described = app.openapi

    app.openapi = lambda: _describe(described())  # type: ignore[method-assign]

    @app.exception_handler(Problem)
    async def own(request: Request, error: Problem) -> JSONResponse:
        return _answer(request, error.status, error.kind, error.title, error.detail, error.errors, error.headers)

    @app.exception_handler(kube.KubeError)
    async def kubernetes(request: Request, error: kube.KubeError) -> JSONResponse:
        problem = from_kubernetes(error)
        return _answer(
            request, problem.status, problem.kind, problem.title, problem.detail, problem.errors, problem.headers
        )

    @app.exception_handler(TooConnected)
    async def connected(request: Request, _: TooConnected) -> JSONResponse:
        detail = "Too many spans are linked to each other. Narrow it: `parts=true`, a name, another trace."
        return _answer(request, 503, Unavailable.kind, Unavailable.title, detail, [], {})

    @app.exception_handler(RequestValidationError)
    async def validation(request: Request, error: RequestValidationError) -> JSONResponse:
        if any(item["loc"] == ("body",) for item in error.errors()) and not _is_json(request):
            kind, title = UnsupportedMediaType.kind, UnsupportedMediaType.title
            detail = f"Send the body as one of {', '.join(sorted(JSON_TYPES))}, and name it in Content-Type."
            return _answer(request, UnsupportedMediaType.status, kind, title, detail, [], {})
        fields = [
            FieldProblem(pointer=".".join(str(part) for part in item["loc"]), detail=item["msg"])
            for item in error.errors()
        ]
        return _answer(request, 422, Invalid.kind, Invalid.title, "The request has wrong fields.", fields, {})

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        known, detail = HTTP_PROBLEMS.get(error.status_code), str(error.detail)
        kind, title = (known.kind, known.title) if known is not None else ("http", detail)
        headers = dict(error.headers or {})
        if detail == "Not Found":  # of the router
            detail = f"Nothing is at {request.url.path}; /docs lists what is."
        if error.status_code == httpx2.codes.METHOD_NOT_ALLOWED:
            kind, headers["Allow"] = "method-not-allowed", ", ".join(_methods(app, request))
        return _answer(request, error.status_code, kind, title, detail, [], headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        _log.error("request failed", path=request.url.path, error=repr(error), exc_info=error)
        detail = "This is a fault of the control plane; its log has the details under this trace id."
        return _answer(request, 500, Problem.kind, Problem.title, detail, [], {})
