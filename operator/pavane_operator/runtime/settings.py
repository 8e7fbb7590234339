"""Settings of the operator process, from its environment."""

from __future__ import annotations

from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, BeforeValidator, Field
from pydantic_settings import NoDecode

from pavane.runtime.settings import Settings
from pavane_operator.crds.values import DURATION_PATTERN, HTTP_URL_PATTERN, parse_duration
from pavane_operator.runtime.gates import Sources

HEALTH_PORT = 8080


def _names(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


class OperatorSettings(Settings):
    """Each field with its variable; unset ones have a default that works in a pod."""

    operator_namespace: str = Field(
        default="pavane-system", validation_alias=AliasChoices("PAVANE_OPERATOR_NAMESPACE", "POD_NAMESPACE")
    )
    """Where the Lease stands: the namespace of the operator's pod."""
    watch_namespaces: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = ()
    """Namespaces to look after, separated by commas; empty = all."""
    default_image: str = f"pavane:{version('pavane')}"
    """Image of pods whose spec names none."""
    pod_otlp_endpoint: str | None = Field(
        default=None, validation_alias=AliasChoices("PAVANE_POD_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    )
    """Where the pods of resources send spans; by default where the operator sends its own."""
    pod_otlp_audience: str | None = None
    """Audience of the token that they send with them, which the control plane asks for; unset = no token."""
    image_pull_limit: Annotated[str, Field(pattern=DURATION_PATTERN)] = "10m"
    """How long an image may fail to be pulled before the attempt is aborted."""
    prometheus_url: Annotated[str, Field(pattern=HTTP_URL_PATTERN)] = ""
    """Whom gates with a query ask, for instance `http://prometheus.monitoring.svc:9090`; empty = nobody."""
    control_plane_url: Annotated[str, Field(pattern=HTTP_URL_PATTERN)] = ""
    """Whom gates with SQL ask, for instance `http://pavane-api.pavane-system.svc:8000`; empty = nobody."""
    control_plane_token_file: Path | None = None
    """The token that it is shown, made for audience `pavane-gates`."""
    pod_uid: str = Field(default="", validation_alias="POD_UID")
    """uid of the operator's pod: after a crash its next process need not wait until the Lease has run out."""
    pod_ip: str = Field(default="127.0.0.1", validation_alias="POD_IP")
    """Address that the health port is bound to."""
    health_port: int = Field(default=HEALTH_PORT, ge=0, le=65535)
    """`/livez`, `/readyz`, `/metrics`."""

    @property
    def sources(self) -> Sources:
        """Whom gates ask beside pods."""
        return Sources(self.prometheus_url or None, self.control_plane_url or None, self.control_plane_token_file)

    @property
    def image_pull_limit_span(self) -> timedelta:
        """`image_pull_limit` as a time span."""
        return parse_duration(self.image_pull_limit)
