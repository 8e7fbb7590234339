"""Settings of the control plane's process."""

from pathlib import Path

from pydantic import AliasChoices, Field
from pydantic_settings import SettingsConfigDict

from pavane.runtime.settings import Settings


class ApiSettings(Settings):
    """Read from the environment, prefix ``PAVANE_API_``."""

    model_config = SettingsConfigDict(env_prefix="PAVANE_API_", use_attribute_docstrings=True)

    host: str = Field("127.0.0.1", validation_alias=AliasChoices("PAVANE_API_HOST", "POD_IP"))
    """Address that REST, OTLP and health listen on; in a pod its own (``POD_IP``)."""
    port: int = Field(8000, ge=0, le=65535)
    """Port of REST and OTLP."""
    ops_port: int = Field(8080, ge=0, le=65535)
    """Port of ``/livez``, ``/readyz`` and ``/metrics``."""
    data: Path = Path("/var/lib/pavane")
    """Folder of traces and series; what it holds may be lost without harm."""
    series_every_s: float = Field(15.0, gt=0)
    """How often the metrics of all pods are read."""
    series_retention_s: float = Field(24 * 3600, gt=0)
    """Numbers older than this are dropped."""
    series_rows_max: int = Field(2_000_000, ge=1000)
    """Rows that are kept, one per resource and reading (about 60 bytes each): of 347 resources a whole day."""
    watch_namespaces: str = Field("", validation_alias="PAVANE_WATCH_NAMESPACES")
    """Namespaces whose pods it may see, separated by commas; empty = all."""
    trace_retention_s: float = Field(6 * 3600, gt=0)
    """Spans older than this are dropped."""
    trace_spans_max: int = Field(200_000, ge=1000)
    """Spans beyond this number are dropped, those that came first first (about 1 kB each)."""
    trace_bytes_max: int = Field(1 << 30, ge=1 << 20)
    """The same for their bytes."""
    trace_requests_per_s: float = Field(200.0, gt=0)
    """OTLP requests taken per second, from all pods together; more are answered 429."""
    trace_tokens: bool = True
    """Whether OTLP requests need a token of the cluster."""
    trace_audience: str = "pavane-otlp"
    """Audience that such a token must be made for."""
    namespace: str = Field("pavane-system", validation_alias="POD_NAMESPACE")
    """Where operator and control plane run: their spans are about resources everywhere."""
    audience: str = "pavane-api"
    """Audience that a bearer token must be made for."""
