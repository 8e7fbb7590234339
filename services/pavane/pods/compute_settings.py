"""Environment and config file of a ComputeCluster's pods → their settings (docs/specs/operator.md 4.2)."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pavane.dataflow.ports import MEMORY_MIB, Script, SqlError
from pavane.pods.settings import PodSettings, read_yaml
from pavane.runtime.names import bracketed
from pavane.runtime.settings import SettingsError

SCRIPTS_MAX = 32
LEFT = "left"
"""Live setting of a pod that takes the right to write back: from which generation (docs/specs/compute.md 11.2)."""
REPLICA_PORT = 7072
"""Where a replica listens for its controller."""


class Engine(StrEnum):
    """What evaluates the SQL."""

    PLAIN = "Plain"
    SPARK = "Spark"


class ComputeSettings(PodSettings):
    """Env of a pod."""

    waltz_client: Path
    """Folder with the files `servers` and, unless the log is in clear, `ca.crt`."""
    state: Path | None = None
    """Folder for the state of views, on a volume that outlives the process; absent: in memory."""
    state_memory_mib: int = Field(default=MEMORY_MIB, ge=1)
    """Of the state of each script; what is more is in that folder."""
    state_disk_mib: int | None = Field(default=None, ge=1)
    """So much of it at most, beside the state's file; absent: each script's share of half of what is free there."""
    kubernetes_host: str = Field(default="", alias="KUBERNETES_SERVICE_HOST")
    kubernetes_port: int = Field(default=443, alias="KUBERNETES_SERVICE_PORT")

    @property
    def api_server(self) -> str:
        """Address of the API server, empty outside of a cluster."""
        return f"{bracketed(self.kubernetes_host)}:{self.kubernetes_port}" if self.kubernetes_host else ""


class ExecutorsConfig(BaseModel):
    """Executors of Spark in pods of their own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    instances: int = Field(ge=1)
    cores: int = Field(ge=1)
    memory_mib: int = Field(ge=1)
    template: dict[str, Any]
    """Of their pods."""


class ComputeConfig(BaseModel):
    """The config file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scripts: dict[str, str] = Field(max_length=SCRIPTS_MAX)
    """Script by the name of its Dataflow."""
    ticks: int = Field(ge=0)
    """Partition of the ticks."""
    views: int = Field(ge=0)
    """Partition of the views."""
    engine: Engine = Engine.PLAIN
    interval_ms: int = Field(default=200, ge=10, le=10_000)
    """Between two ticks."""
    checkpoint: str = ""
    """Folder or URL for what Spark's executors keep; each pod has a part of its own."""
    executors: ExecutorsConfig | None = None
    """None: Spark evaluates in the pod itself."""
    replicas: dict[str, str] = Field(default_factory=dict)
    """`host:port` of the pods that compute, by name, for their controller; empty: the pod computes by itself."""

    def parsed(self) -> list[Script]:
        """Return the scripts. Raises ``SettingsError`` that names the one that is wrong, line and column."""
        from pavane.dataflow.sql import parse  # noqa: PLC0415 - the operator, which reads a few names here, has no script

        found = []
        for name, text in self.scripts.items():
            try:
                found.append(parse(text))
            except SqlError as error:
                raise SettingsError(f"script {name}: {error}") from None
        return found


def load(settings: ComputeSettings) -> ComputeConfig:
    """Read the config file. Raises ``SettingsError`` that names the file, the key and what is wrong."""
    try:
        config = ComputeConfig.model_validate(read_yaml(settings.config))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise SettingsError(f"PAVANE_CONFIG: {settings.config}: {faults}") from None
    config.parsed()
    return config
