"""Environment and config file of a Coordinator's pods → their settings (docs/specs/operator.md 4.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from pavane.pods.settings import PodSettings, read_yaml
from pavane.runtime.settings import SettingsError

LINK_PORT = 2500
"""Other coordinators connect here."""
RECEIVE_PORT = 2000
"""Takes what the application sends; for the application in the same pod alone."""
SEND_PORT = 2001
"""Gives the application what it handles."""
PEERS_MAX = 1000
VOLUME_FULL = "VolumeFull"
"""A pod's blocker: there is no room on the volume for the next checkpoint."""
PEERS_FILE = "peers.crt"
"""Beside the live settings: the authorities of other Coordinators whose certificates count on links."""

Address = Annotated[str, StringConstraints(pattern=r"^[^:]+:[0-9]{1,5}$", max_length=260)]


class CoordinatorSettings(PodSettings):
    """Env of a pod's coordinator."""

    ambrosia_log: Path
    """Folder on the volume of the resource; with ``waltz_client`` of what was read of the partition."""
    waltz_client: Path | None = None
    """Folder of the Secret with which clients reach the log that keeps the files; absent: the volume keeps them."""


class CoordinatorConfig(BaseModel):
    """The config file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    instance: str = Field(min_length=1, max_length=253)
    """Name of the immortal, under which others call it."""
    version: int = Field(default=0, ge=0)
    """Of the application."""
    log: str = Field(pattern=r"^[-a-z0-9]+$")
    """Folder of this resource on the volume, or its name in ``partition``."""
    partition: int | None = Field(default=None, ge=0)
    """Of the log that keeps the files."""
    peers: dict[str, Address] = Field(default_factory=dict, max_length=PEERS_MAX)
    """Immortals that run elsewhere: name → ``host:port``. All others are Services of the namespace."""
    checkpoint_mib: int = Field(default=1000, ge=1, le=1 << 20)
    """After so much log a checkpoint is taken."""


def load(settings: CoordinatorSettings) -> CoordinatorConfig:
    """Read the config file. Raises ``SettingsError`` that names the file, the key and what is wrong."""
    try:
        return CoordinatorConfig.model_validate(read_yaml(settings.config))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise SettingsError(f"PAVANE_CONFIG: {settings.config}: {faults}") from None
