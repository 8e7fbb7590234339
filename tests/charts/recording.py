"""What components ask of the API server, as RBAC sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from starlette.requests import Request
from starlette.responses import Response

from pavane_local.api import app
from pavane_operator.charts.rules import Rule

VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
APPLY = "application/apply-patch+yaml"


class Call(NamedTuple):
    """One call of a component; `resource` with its subresource, `name` empty where none is named."""

    verb: str
    group: str
    resource: str
    name: str


def allowed(call: Call, rules: Iterable[Rule]) -> bool:
    return any(
        call.group == rule.group
        and call.resource in rule.resources
        and call.verb in rule.verbs
        and (not rule.names or call.name in rule.names)
        for rule in rules
    )


@contextmanager
def recorded(patch: pytest.MonkeyPatch) -> Iterator[dict[str, set[Call]]]:
    """Record the calls to every embedded API server that is started inside, by service account."""
    calls: dict[str, set[Call]] = {}
    answer = app.Api._answer

    async def listen(self: app.Api, request: Request) -> Response:
        _, _, token = request.headers.get("authorization", "").partition(" ")
        identity = self._tokens.identify(token)
        target = app.target_of(self._cluster.registry, tuple(part for part in request.url.path.split("/") if part))
        if identity is not None and target is not None:
            account = identity.username.rpartition(":")[2]
            calls.setdefault(account, set()).update(_calls(self, request, target))
        return await answer(self, request)

    with patch.context() as patched:
        patched.setattr(app.Api, "_answer", listen)
        yield calls


def _calls(server: app.Api, request: Request, target: app.Target) -> Iterator[Call]:
    verb = VERBS[request.method]
    if verb == "get" and not target.name:
        verb = "watch" if request.query_params.get("watch") == "true" else "list"
    resource = "/".join(filter(None, (target.resource.plural, target.subresource)))
    # A server takes a list of the object of one name for a call about that object.
    name = target.name or request.query_params.get("fieldSelector", "").removeprefix("metadata.name=")
    yield Call(verb, target.resource.group, resource, name)
    kind = request.headers.get("content-type", "").partition(";")[0]
    applied = verb == "patch" and kind == APPLY and not target.subresource
    if applied and server._cluster.find(target.resource.key, target.namespace or "", target.name) is None:
        yield Call("create", target.resource.group, resource, target.name)
