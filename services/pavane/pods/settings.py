"""What every pod finds in its environment (docs/specs/operator.md 4.2)."""

from ipaddress import ip_address
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from pavane.runtime.settings import Settings, SettingsError


class PodSettings(Settings):
    """Env of every pod of a resource; a role adds its own."""

    resource: str
    kind: str
    role: str
    generation: int = Field(ge=1)
    config: Path
    live: Path | None = None
    """File with the settings that change while the pod runs; absent: those of ``config`` stay."""
    tls: Path | None = None
    """Folder with ``tls.crt``, ``tls.key``, ``ca.crt`` for the stage port; absent: it speaks in clear."""
    pod_name: str = Field(alias="POD_NAME")
    pod_namespace: str = Field(alias="POD_NAMESPACE")
    pod_ip: str = Field(alias="POD_IP")

    @property
    def listened_on(self) -> str:
        """All addresses of a pod that has its network for itself: `kubectl port-forward` comes to its loopback."""
        address = ip_address(self.pod_ip)
        return self.pod_ip if address.is_loopback or address.version != 4 else "0.0.0.0"


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the settings in a config file; raises ``SettingsError``."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"PAVANE_CONFIG: {path}: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError(f"PAVANE_CONFIG: {path} must hold a map of settings")
    return values


def store_options(folder: Path | None, variable: str) -> dict[str, str]:
    """Read the options of an object store, a file for each.

    Raises ``SettingsError`` that names the variable, the folder and what is wrong.
    """
    try:
        found = () if folder is None else sorted(path for path in folder.iterdir() if path.is_file())
        return {path.name: path.read_text(encoding="utf-8").strip() for path in found}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{variable}: {folder}: {error}") from error
