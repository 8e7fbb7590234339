"""What a Kubernetes API server may answer instead of the object, as exceptions of our own.

The client library raises one class with a number in it; callers here decide by *class* whether to read again
(`Conflict`, `Gone`), to wait (`TooManyRequests`, `Unavailable`) or to tell a person (`Invalid`, `Forbidden`), so the
difference is made once, in `from_status`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

MESSAGE_CHARS_MAX = 1024
"""Longest message taken over from a server; a whole HTML error page of a proxy helps nobody."""

MISFITS_MAX = 20
"""Fields of one body that are told of: a tenant's may have a million wrong ones, and each costs a search."""

MISFIT = "failed to create typed patch object"
"""What a server says, with status 500, of an applied body that does not fit its schema: a misspelt field, a wrong type.
Nothing is wrong with the server, and a retry cannot help."""

UNDECLARED = "field not declared in schema"
"""What it says there of a field that does not exist."""

_MISFIT_FIELD = re.compile(r"(?:\): |^ +)\.((?:\[[^\]]*\]|[^\[:])+): (.+)$", re.MULTILINE)
"""One field of such an answer, `.spec.x: what is wrong`: on its only line, or on one of its own of several."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of `Status.details.causes`: what is wrong with one field."""

    field: str
    """Path of the field, e.g. `spec.replicas`; empty when the server named none."""
    message: str
    reason: str
    """E.g. `FieldValueInvalid`, `FieldManagerConflict`."""


class KubeError(Exception):
    """A call to the API server did not do what it was asked for.

    `status` is the HTTP status (0 = no answer came), `reason` the server's CamelCase reason, `causes` the wrong fields,
    `retry_after_s` the server's wish, in seconds, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        causes: tuple[Cause, ...] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message[:MESSAGE_CHARS_MAX])
        self.status = status
        self.reason = reason
        self.causes = causes
        self.retry_after_s = retry_after_s

    @property
    def message(self) -> str:
        """The server's words."""
        return str(self.args[0])

    @property
    def is_misfit(self) -> bool:
        """Whether an applied body does not fit its schema, and `causes` say where."""
        return self.message.startswith(MISFIT) and bool(self.causes)


class BadRequest(KubeError):
    """400, 405, 406, 413, 415 and whatever else blames the request itself: a bug of ours or an old server."""


class Unauthorized(KubeError):
    """401: the token is missing, expired or unknown. Log in again, or renew the kubeconfig."""


class Forbidden(KubeError):
    """403: the token is known and may not do this (also: the namespace is being deleted)."""


class NotFound(KubeError):
    """404: no such object, or no such kind (its CRD is not installed)."""


class Conflict(KubeError):
    """409: another writer was faster, a precondition failed, or another manager owns a field (see `causes`)."""


class AlreadyExists(Conflict):
    """409 on a create: what stands there counts."""


class Gone(KubeError):
    """410: the resourceVersion or the list's cursor is too old; list again."""


class Invalid(KubeError):
    """422: the object breaks its schema or a rule; `causes` name the fields."""


class TooManyRequests(KubeError):
    """429: the server asks to be left alone for `retry_after_s` seconds."""


class Unavailable(KubeError):
    """5xx, a time-out or no connection: whether the call had its effect is unknown, so read again before repeating."""


_BY_STATUS: Mapping[int, type[KubeError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def from_status(status: int, body: object, headers: Mapping[str, str]) -> KubeError:
    """The exception for an answer with this HTTP status, (decoded JSON) body and headers. Total over all inputs."""
    document: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    details = document.get("details")
    details = details if isinstance(details, Mapping) else {}
    reason = str(document.get("reason") or "")
    message = str(document.get("message") or (body if isinstance(body, str) and body else f"HTTP status {status}"))
    causes = _causes(details.get("causes"))
    if status in {422, 500} and message.startswith(MISFIT):
        status, reason = 422, "Invalid"
        causes = causes or _misfits(message)
    kind = _BY_STATUS.get(status, Unavailable if status >= 500 else BadRequest)
    if kind is Conflict and reason == "AlreadyExists":
        kind = AlreadyExists
    if reason == "Expired":
        kind = Gone
    return kind(
        message,
        status=status,
        reason=reason,
        causes=causes,
        retry_after_s=_retry_after_s(headers, details),
    )


def _misfits(message: str) -> tuple[Cause, ...]:
    found = islice(_MISFIT_FIELD.finditer(message), MISFITS_MAX)
    return tuple(Cause(each[1], each[2], "FieldValueInvalid") for each in found)


def _causes(value: object) -> tuple[Cause, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(
        Cause(str(item.get("field") or ""), str(item.get("message") or ""), str(item.get("reason") or ""))
        for item in value
        if isinstance(item, Mapping)
    )


def _retry_after_s(headers: Mapping[str, str], details: Mapping[str, Any]) -> float | None:
    for value in (headers.get("Retry-After"), details.get("retryAfterSeconds")):
        try:
            seconds = float(str(value))
        except ValueError:
            continue
        if seconds >= 0:
            return seconds
    return None
