"""Refusals in the words and shape of a Kubernetes API server (`docs/specs/operator.md` 6.2, 6.5)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

NO_ROOM = 507
STALE = "the object has been modified; please apply your changes to the latest version and try again"


class Cause(NamedTuple):
    """One reason of a refusal: `field` is a path like `spec.replicas`."""

    reason: str
    message: str
    field: str


class ApiError(Exception):
    """A request that is refused; `code` is the HTTP status, `reason` the machine-readable name of the refusal."""

    def __init__(
        self, code: int, reason: str, message: str, causes: Iterable[Cause] = (), **details: str | None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = tuple(causes)
        self.details = {name: value for name, value in details.items() if value}

    def status(self) -> dict[str, Any]:
        """Return the `Status` object that clients read."""
        causes = {"causes": [cause._asdict() for cause in self.causes]} if self.causes else {}
        head = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message}
        return {**head, "reason": self.reason, "details": {**self.details, **causes}, "code": self.code}


def bad_request(message: str) -> ApiError:
    """Return 400: the request itself is wrong."""
    return ApiError(400, "BadRequest", message)


def not_served(code: int = 404) -> ApiError:
    """Return 404 for a path that is none, or 405 for a method that it does not know."""
    if code == 405:
        return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def about(code: int, reason: str, resource: str, name: str, message: str) -> ApiError:
    """Return a refusal that concerns an object; `resource` is `plural` or `plural.group`."""
    plural, _, group = resource.partition(".")
    return ApiError(code, reason, message, name=name, kind=plural, group=group)


def not_found(resource: str, name: str) -> ApiError:
    """Return 404 for an object."""
    return about(404, "NotFound", resource, name, f'{resource} "{name}" not found')


def conflict(resource: str, name: str, why: str = STALE) -> ApiError:
    """Return 409 for a precondition that does not hold."""
    return about(409, "Conflict", resource, name, f'Operation cannot be fulfilled on {resource} "{name}": {why}')


def invalid(kind: str, group: str, name: str, causes: Iterable[Cause]) -> ApiError:
    """Return 422 with one cause per field path."""
    causes = tuple(causes)
    texts = ", ".join(f"{cause.field}: {cause.message}" for cause in causes)
    text = f'{kind}{"." * bool(group)}{group} "{name}" is invalid: {texts if len(causes) == 1 else f"[{texts}]"}'
    return ApiError(422, "Invalid", text, causes, name=name, group=group, kind=kind)


def no_room(folder: Path, why: str) -> ApiError:
    """Return 507: the disk cannot take a change."""
    text = f"nothing can be written to {folder} ({why}): make room on its disk; reads and running pods go on"
    return ApiError(NO_ROOM, "InsufficientStorage", text)


def section(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an object inside a body, empty if it is left out. Raises `ApiError` 400 if it is something else."""
    found = body.get(name) or {}
    if not isinstance(found, dict):
        raise bad_request(f"{name} must be an object")
    return found
