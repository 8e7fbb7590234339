"""Errors of the REST API as RFC 9457 problem documents, in one place; ``answers`` sends them.

Nothing here needs a web framework: the command line uses the same services, and those raise these errors.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from pavane.raft import errors as raft
from pavane.raft.errors import Code
from pavane.waltz import errors as waltz
from pavane.waltz.errors import RejectCode
from pavane_operator import kube

MEDIA_TYPE = "application/problem+json"
TYPE_BASE = "https://pavane.dev/problems/"


class FieldProblem(BaseModel):
    """One wrong field of a request."""

    pointer: str
    """JSON pointer or field path, for example ``spec.replicas``."""
    detail: str
    """What is wrong with it."""
    line: int | None = None
    """In a field that is SQL: the line, from 1."""
    column: int | None = None
    """Of that line: the place of the character, from 1."""


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


class LockConflict(Problem):
    """A newer transaction may have written under a lock of an append; nothing was written."""

    status, kind, title = 409, "lock-conflict", "Conflict of locks"


class ListExpired(Problem):
    """The continuation token or resource version is too old."""

    status, kind, title = 410, "list-expired", "List expired"


class LeaseEnded(Problem):
    """The lease is over."""

    status, kind, title = 410, "lease-ended", "Lease ended"


class Trimmed(Problem):
    """The log does not keep such old transactions any more."""

    status, kind, title = 410, "trimmed", "Trimmed"


class PreconditionFailed(Problem):
    """If-Match does not name the present version, or If-None-Match met an existing resource."""

    status, kind, title = 412, "precondition-failed", "Precondition failed"


class TooLarge(Problem):
    """The body is larger than the named limit."""

    status, kind, title = 413, "too-large", "Too large"


class UnsupportedMediaType(Problem):
    """The body is not of a type that is read here."""

    status, kind, title = 415, "unsupported-media-type", "Unsupported media type"


class Invalid(Problem):
    """Fields of the request are wrong."""

    status, kind, title = 422, "invalid", "Invalid"


class SqlRefused(Problem):
    """A query is wrong; where, is in ``errors``."""

    status, kind, title = 422, "sql-refused", "SQL refused"


class HandlerFailed(Problem):
    """The handler of an immortal raised an error; the call happened."""

    status, kind, title = 422, "handler-failed", "The handler failed"


class PreconditionRequired(Problem):
    """If-Match is missing."""

    status, kind, title = 428, "precondition-required", "Precondition required"


class TooManyRequests(Problem):
    """Slow down."""

    status, kind, title = 429, "too-many-requests", "Too many requests"


class Unavailable(Problem):
    """Something that this request needs does not answer."""

    status, kind, title = 503, "unavailable", "Unavailable"


class TooLate(Problem):
    """What was asked for is not there in time; nothing was changed."""

    status, kind, title = 504, "too-late", "Too late"


class OutcomeUnknown(Problem):
    """A write was sent and not answered: it may have been carried out."""

    status, kind, title = 504, "outcome-unknown", "Outcome unknown"


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


_PROBLEMS: Mapping[tuple[type[Exception], int | None], type[Problem]] = {
    (raft.Refused, Code.BAD_COMMAND): BadRequest,
    (raft.Refused, Code.TOO_LARGE): TooLarge,
    (raft.Refused, Code.NO_LEASE): NotFound,
    (raft.Refused, Code.NO_NODE): NotFound,
    (raft.Unreachable, None): Unavailable,
    (raft.Closed, None): Unavailable,  # a control plane that ends: nobody knows what became of it
    (raft.Overloaded, None): Unavailable,
    (raft.Behind, None): Unavailable,
    (raft.ReqidTaken, None): Invalid,
    (raft.TooLarge, None): TooLarge,
    (raft.Compacted, None): NotFound,
    (raft.RaftError, None): Conflict,  # with what is stored
    (waltz.Conflict, None): LockConflict,
    (waltz.OutcomeUnknown, None): OutcomeUnknown,
    (waltz.NotFound, None): NotFound,
    (waltz.Trimmed, None): Trimmed,
    (waltz.Closed, None): Unavailable,
    (waltz.Unavailable, None): Unavailable,
    (waltz.Rejected, RejectCode.TOO_LARGE): TooLarge,
    (waltz.Rejected, RejectCode.BAD_REQUEST): BadRequest,
    (waltz.WaltzError, None): Conflict,
    (kube.NotFound, None): NotFound,
    (kube.Conflict, None): Conflict,
    (kube.Gone, None): ListExpired,
    (kube.Invalid, None): Invalid,
    (kube.TooManyRequests, None): TooManyRequests,
    (kube.BadRequest, None): BadRequest,
    (kube.KubeError, None): Unavailable,
}
"""What tells of an error that a cluster answered, by its class and code; a class stands for those below it, too.

The command line, which meets the first two kinds without the control plane as well, takes its exit code from here.
"""


def problem_type(error: raft.RaftError | waltz.WaltzError | kube.KubeError) -> type[Problem]:
    """Return the kind of problem that tells of an error."""
    codes = (getattr(error, "code", None), None)
    found = (_PROBLEMS.get((kind, code)) for kind in type(error).__mro__ for code in codes)
    return next(problem for problem in found if problem is not None)


def from_kubernetes(error: kube.KubeError) -> Problem:
    """Return the problem that tells a caller what the API server answered to us.

    A refusal of *our* token is our own misconfiguration, so it becomes ``Unavailable``: the caller's token is fine.
    """
    problem = problem_type(error)
    detail = error.message
    if isinstance(error, kube.Forbidden | kube.Unauthorized):
        detail = f"The control plane itself is not allowed to do this: {error.message}"
    errors = [FieldProblem(pointer=cause.field, detail=cause.message) for cause in error.causes]
    headers = {} if error.retry_after_s is None else {"Retry-After": str(max(1, round(error.retry_after_s)))}
    return problem(detail, errors=errors, headers=headers)
