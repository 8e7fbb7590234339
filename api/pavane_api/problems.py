"""Errors of the REST API as RFC 9457 problem documents, in one place.

Whatever goes wrong below an endpoint leaves the API as ``application/problem+json`` with the words a user can act on:
our own ``Problem`` classes, the Kubernetes client's errors, FastAPI's validation errors, and the unexpected.
"""

from typing import Any, ClassVar

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from opentelemetry import trace
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from pavane_operator import kube

MEDIA_TYPE = "application/problem+json"
TYPE_BASE = "https://pavane.dev/problems/"

_log = structlog.get_logger(__name__)


class FieldProblem(BaseModel):
    """One wrong field of a request."""

    pointer: str
    """JSON pointer or field path, for example ``spec.replicas``."""
    detail: str
    """What is wrong with it."""


class ProblemDocument(BaseModel):
    """The body of every error (RFC 9457)."""

    type: str
    """URI that names the kind of problem."""
    title: str
    """The kind of problem in words; the same for every occurrence."""
    status: int
    """HTTP status code."""
    detail: str = ""
    """What happened here, and what to do next."""
    instance: str = ""
    """Path of the request."""
    errors: list[FieldProblem] = Field(default_factory=list)
    """The fields that were wrong, if fields were."""
    trace_id: str = ""
    """Trace of the request, 32 hexadecimal digits; empty when it was not traced."""


class Problem(Exception):
    """Base of the API's own errors; a subclass fixes status, kind and title."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"

    def __init__(self, detail: str, *, errors: list[FieldProblem] | None = None, headers: dict[str, str] | None = None):
        super().__init__(detail)
        self.detail = detail
        self.errors = errors or []
        self.headers = headers or {}

    @classmethod
    def schema(cls) -> dict[int | str, dict[str, Any]]:
        """Return the OpenAPI response of this problem, for an endpoint's ``responses``."""
        return {cls.status: {"model": ProblemDocument, "description": cls.title, "content": {MEDIA_TYPE: {}}}}


class BadRequest(Problem):
    """The request cannot be understood."""

    status, kind, title = 400, "bad-request", "Bad request"


class Unauthenticated(Problem):
    """No token, or one that nobody vouches for."""

    status, kind, title = 401, "unauthenticated", "Not authenticated"


class Forbidden(Problem):
    """The token's owner may not do this."""

    status, kind, title = 403, "forbidden", "Not allowed"


class NotFound(Problem):
    """There is no such thing."""

    status, kind, title = 404, "not-found", "Not found"


class NoSuchKey(Problem):
    """There is no such key or node."""

    status, kind, title = 404, "no-such-key", "No such key"


class Conflict(Problem):
    """The state of the resource does not allow it, or another manager owns the field."""

    status, kind, title = 409, "conflict", "Conflict"


class ListExpired(Problem):
    """The continuation token or resource version is too old."""

    status, kind, title = 410, "list-expired", "List expired"


class LeaseEnded(Problem):
    """The lease is over."""

    status, kind, title = 410, "lease-ended", "Lease ended"


class PreconditionFailed(Problem):
    """If-Match does not name the present version, or If-None-Match met an existing resource."""

    status, kind, title = 412, "precondition-failed", "Precondition failed"


class TooLarge(Problem):
    """The body is larger than the named limit."""

    status, kind, title = 413, "too-large", "Too large"


class Invalid(Problem):
    """Fields of the request are wrong."""

    status, kind, title = 422, "invalid", "Invalid"


class PreconditionRequired(Problem):
    """If-Match is missing."""

    status, kind, title = 428, "precondition-required", "Precondition required"


class TooManyRequests(Problem):
    """Slow down."""

    status, kind, title = 429, "too-many-requests", "Too many requests"


class Unavailable(Problem):
    """Something that this request needs does not answer."""

    status, kind, title = 503, "unavailable", "Unavailable"


COMMON: dict[int | str, dict[str, Any]] = {
    **Unauthenticated.schema(),
    **Forbidden.schema(),
    **Invalid.schema(),
    **TooManyRequests.schema(),
    **Unavailable.schema(),
}
"""The problems that every authorised endpoint can answer with."""


def responses(*problems: type[Problem]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of an authorised endpoint: the common ones and ``problems``."""
    merged = dict(COMMON)
    for problem in problems:
        merged.update(problem.schema())
    return merged


_KUBERNETES: dict[type[kube.KubeError], type[Problem]] = {
    kube.NotFound: NotFound,
    kube.Conflict: Conflict,
    kube.AlreadyExists: Conflict,
    kube.Gone: ListExpired,
    kube.Invalid: Invalid,
    kube.TooManyRequests: TooManyRequests,
    kube.Unavailable: Unavailable,
    kube.BadRequest: BadRequest,
}


def from_kubernetes(error: kube.KubeError) -> Problem:
    """Return the problem that tells a caller what the API server answered to us.

    A refusal of *our* token is our own misconfiguration, so it becomes ``Unavailable``: the caller's token is fine.
    """
    problem = _KUBERNETES.get(type(error), Unavailable)
    detail = error.message
    if isinstance(error, kube.Forbidden | kube.Unauthorized):
        detail = f"The control plane itself is not allowed to do this: {error.message}"
    errors = [FieldProblem(pointer=cause.field, detail=cause.message) for cause in error.causes]
    headers = {} if error.retry_after_s is None else {"Retry-After": str(max(1, round(error.retry_after_s)))}
    return problem(detail, errors=errors, headers=headers)


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
    return JSONResponse(document.model_dump(), status_code=status, headers=headers, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Make ``app`` answer every error as a problem document."""

    @app.exception_handler(Problem)
    async def own(request: Request, error: Problem) -> JSONResponse:
        return _answer(request, error.status, error.kind, error.title, error.detail, error.errors, error.headers)

    @app.exception_handler(kube.KubeError)
    async def kubernetes(request: Request, error: kube.KubeError) -> JSONResponse:
        problem = from_kubernetes(error)
        return _answer(
            request, problem.status, problem.kind, problem.title, problem.detail, problem.errors, problem.headers
        )

    @app.exception_handler(RequestValidationError)
    async def validation(request: Request, error: RequestValidationError) -> JSONResponse:
        fields = [
            FieldProblem(pointer=".".join(str(part) for part in item["loc"]), detail=item["msg"])
            for item in error.errors()
        ]
        return _answer(request, 422, Invalid.kind, Invalid.title, "The request has wrong fields.", fields, {})

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        kind = {404: "not-found", 405: "method-not-allowed", 413: TooLarge.kind}.get(error.status_code, "http")
        return _answer(
            request, error.status_code, kind, str(error.detail), str(error.detail), [], dict(error.headers or {})
        )

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        _log.error("request failed", path=request.url.path, error=repr(error), exc_info=error)
        detail = "This is a fault of the control plane; its log has the details under this trace id."
        return _answer(request, 500, Problem.kind, Problem.title, detail, [], {})
