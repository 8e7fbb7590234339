"""Environment, config file and secret of a Raft server → its settings (docs/specs/operator.md 4.2, raft.md 16)."""

import dataclasses
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from pavane.pods.settings import PodSettings, read_yaml
from pavane.raft.config import Config, LostVoter
from pavane.raft.curve import CurveServer
from pavane.raft.keys import ident_in
from pavane.raft.machine import StateMachine, machine_of
from pavane.runtime.settings import SettingsError

RAFT_PORT = 8047
PUBLISH_PORT = 8048

# What the pod is, it knows from its environment; a file that said otherwise would be wrong for all pods but one.
_NOT_IN_FILE = frozenset({"id", "ident", "url", "peers", "generation", "lost_voter", "broadcast_url"})
_IN_FILE = frozenset(field.name for field in dataclasses.fields(Config)) - _NOT_IN_FILE


class RaftSettings(PodSettings):
    """Env of a Raft server."""

    raft_url: str
    raft_data: Path
    raft_secret_file: Path
    raft_curve_server_secret_file: Path | None = None
    raft_curve_clients: Path | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RaftPodConfig:
    """Everything a Raft server needs to start; urls are ØMQ's, ``source`` is the address it connects from."""

    peer: Config
    machine: StateMachine
    cluster_id: str
    data: Path
    bind: str
    publish: str
    source: str
    curve: CurveServer | None


def load(settings: RaftSettings) -> RaftPodConfig:
    """Read config file and secret. Raises ``SettingsError`` that names the file, the key and what is wrong."""
    values = read_yaml(settings.config)
    cluster_id = values.pop("cluster_id", "")
    unknown = sorted(set(values) - _IN_FILE)
    if unknown:
        raise SettingsError(
            f"{settings.config}: unknown key {', '.join(unknown)}; known are {', '.join(sorted(_IN_FILE))}"
        )
    host = urlsplit(settings.raft_url).hostname
    if host is None:
        raise SettingsError(f"PAVANE_RAFT_URL: {settings.raft_url!r} is no url like tcp://host:{RAFT_PORT}")
    try:
        secret = ident_in(settings.raft_secret_file.read_bytes())
    except OSError as error:
        raise SettingsError(f"PAVANE_RAFT_SECRET_FILE: {error}") from error
    own = {
        "id": settings.pod_name,
        "ident": secret,
        "url": settings.raft_url,
        "generation": settings.generation,
        "lost_voter": LostVoter.BY_CHANGE,
        "broadcast_url": f"tcp://{host}:{PUBLISH_PORT}",
    }
    try:
        peer = TypeAdapter(Config).validate_python({**values, **own})
        peer.validate()
        machine = machine_of(peer.machine)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise SettingsError(f"{settings.config}: {faults}") from None
    except ValueError as error:
        raise SettingsError(f"{settings.config}: {error}") from error
    return RaftPodConfig(
        peer=peer,
        machine=machine,
        cluster_id=str(cluster_id),
        data=settings.raft_data,
        bind=f"tcp://{settings.listened_on}:{RAFT_PORT}",
        publish=f"tcp://{settings.pod_ip}:{PUBLISH_PORT}",
        source=settings.pod_ip,
        curve=_curve(settings),
    )


def _curve(settings: RaftSettings) -> CurveServer | None:
    if settings.raft_curve_server_secret_file is None:
        return None
    try:
        return CurveServer.read(settings.raft_curve_server_secret_file, settings.raft_curve_clients)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"PAVANE_RAFT_CURVE_SERVER_SECRET_FILE: {settings.raft_curve_server_secret_file}: {error}"
        ) from error
