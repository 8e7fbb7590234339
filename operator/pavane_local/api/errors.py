"""Refusals in the words and shape of a Kubernetes API server (`docs/specs/operator.md` 6.2, 6.5)."""

from collections.abc import Iterable
from typing import Any, NamedTuple


class Cause(NamedTuple):
    """One reason of a refusal: `field` is a path like `spec.replicas`."""

    reason: str
    message: str
    field: str


class ApiError(Exception):
    """A request that is refused; `code` is the HTTP status, `reason` the machine-readable name of the refusal."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        causes: Iterable[Cause] = (),
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = tuple(causes)
        self.details = details or {}

    def status(self) -> dict[str, Any]:
        """Return the `Status` object that clients read."""
        details = dict(self.details)
        if self.causes:
            details["causes"] = [cause._asdict() for cause in self.causes]
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message}
        return {**status, "reason": self.reason, "details": details, "code": self.code}


def bad_request(message: str) -> ApiError:
    """Return 400: the request itself is wrong."""
    return ApiError(400, "BadRequest", message)


def forbidden(message: str) -> ApiError:
    """Return 403: the caller may not do this."""
    return ApiError(403, "Forbidden", message)


def not_found(resource: str, name: str) -> ApiError:
    """Return 404 for an object; `resource` is `plural` or `plural.group`."""
    return ApiError(404, "NotFound", f'{resource} "{name}" not found', details=_details(resource, name))


def already_exists(resource: str, name: str) -> ApiError:
    """Return 409 for a create."""
    return ApiError(409, "AlreadyExists", f'{resource} "{name}" already exists', details=_details(resource, name))


def conflict(resource: str, name: str, why: str) -> ApiError:
    """Return 409 for a precondition that does not hold."""
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return ApiError(409, "Conflict", message, details=_details(resource, name))


STALE = "the object has been modified; please apply your changes to the latest version and try again"


def expired(message: str) -> ApiError:
    """Return 410: a resourceVersion or continue token that is too old."""
    return ApiError(410, "Expired", message)


def invalid(kind: str, group: str, name: str, causes: Iterable[Cause]) -> ApiError:
    """Return 422 with one cause per field path."""
    causes = tuple(causes)
    texts = [f"{cause.field}: {cause.message}" for cause in causes]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    qualified = f"{kind}.{group}" if group else kind
    details = {"name": name, "group": group, "kind": kind}
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {text}', causes=causes, details=details)


def section(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an object inside a body, empty if it is left out. Raises `ApiError` 400 if it is something else."""
    found = body.get(name) or {}
    if not isinstance(found, dict):
        raise bad_request(f"{name} must be an object")
    return found


def _details(resource: str, name: str) -> dict[str, str]:
    plural, _, group = resource.partition(".")
    return {"name": name, "kind": plural} | ({"group": group} if group else {})
