"""What the watches of kopf deliver, handed to cache and keepers; kopf itself writes nothing (handbook, kopf)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import aiohttp
import kopf

from pavane_operator.kinds.podless import PodlessKind
from pavane_operator.kube.client import WATCH_SILENCE_S, WATCH_TIMEOUT_S
from pavane_operator.kube.library import Credentials, connector
from pavane_operator.kube.resources import GROUP, VERSION, Object
from pavane_operator.kube.resources import Resource as ResourceType
from pavane_operator.plan.port import Kind
from pavane_operator.runtime.operator import Operator

CONNECT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 30.0
EXIT_TIMEOUT_S = 25.0
"""Below the pod's grace period; kopf's own default is ten minutes."""


def registry(
    kinds: Iterable[Kind], operator: Operator, podless: Iterable[PodlessKind], credentials: Credentials
) -> kopf.OperatorRegistry:
    """kopf's registry with one handler per watched type, and the log-in."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    async def log_in(**_: Any) -> kopf.AiohttpSession:
        scheme, _space, token = (await credentials.authorization() or "").partition(" ")
        known = kopf.ConnectionInfo(
            server=credentials.server,
            ca_path=credentials.ca_path,
            insecure=credentials.insecure,
            certificate_path=credentials.certificate_path,
            private_key_path=credentials.private_key_path,
            scheme=scheme or None,
            token=token or None,
        )
        # Its own session would notice a silent connection after WATCH_SILENCE_S.
        session = aiohttp.ClientSession(
            connector=connector(known.as_ssl_context()), headers=known.as_http_headers(), trust_env=known.trust_env
        )
        return kopf.AiohttpSession(aiohttp_session=session, server=known.server)

    for kind in kinds:
        _watch_kind(handlers, kind, operator)
    for each in podless:
        _watch_podless(handlers, each)
    return handlers


def settings() -> kopf.OperatorSettings:
    """kopf's settings: no change handlers, no events, no peering of its own."""
    chosen = kopf.OperatorSettings()
    # kopf takes its finalizer off each object that it sees; under the default name it would be another operator's.
    chosen.persistence.finalizer = "pavane.dev/operator"
    chosen.persistence.diffbase_storage = _NoDifferences()
    chosen.posting.enabled = False
    chosen.networking.connect_timeout = CONNECT_TIMEOUT_S
    chosen.networking.request_timeout = REQUEST_TIMEOUT_S
    chosen.networking.error_backoffs = (1, 2, 4, 8, 16, 30)
    chosen.watching.connect_timeout = CONNECT_TIMEOUT_S
    chosen.watching.server_timeout = WATCH_TIMEOUT_S
    chosen.watching.inactivity_timeout = WATCH_SILENCE_S
    chosen.peering.standalone = True
    chosen.process.ultimate_exiting_timeout = EXIT_TIMEOUT_S
    return chosen


class _NoDifferences(kopf.DiffBaseStorage):
    """For handlers of differences, of which we have none, kopf would copy each object at each event."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


def _watch_kind(handlers: kopf.OperatorRegistry, kind: Kind, operator: Operator) -> None:
    resource_type = ResourceType(GROUP, VERSION, kind.plural, kind.name)

    @kopf.on.event(GROUP, VERSION, kind.plural, registry=handlers, id=kind.plural)
    async def changed(event: kopf.RawEvent, **_: Any) -> None:
        operator.resource_seen(resource_type, _body(resource_type, event), deleted=event["type"] == "DELETED")


def _watch_podless(handlers: kopf.OperatorRegistry, kind: PodlessKind) -> None:
    for resource_type in kind.watched:

        @kopf.on.event(
            resource_type.group,
            resource_type.version,
            resource_type.plural,
            registry=handlers,
            id=f"{kind.watched[0].plural} hear of {resource_type.plural}",
        )
        async def changed(**_: Any) -> None:
            kind.changed()


def _body(resource_type: ResourceType, event: kopf.RawEvent) -> Object:
    # Items of a list do not say what they are.
    return {"apiVersion": resource_type.api_version, "kind": resource_type.kind, **event["object"]}
