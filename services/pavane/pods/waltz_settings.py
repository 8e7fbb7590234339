"""Environment and config file of a WaltzCluster's pods → their settings (docs/specs/operator.md 4.2).

A server finds the metadata store by the Secret that the operator renders for it; a storage node needs none: what it has
to know of the cluster stands in its config file. A storage node walks to ReadWrite by itself. The stream tells
servers ``servers``, how many are wanted, and in the bootstrap of a resource ``bootstrap: tree``: with AllowWrites they
make the cluster's nodes in the metadata store; without it a server whose root is missing waits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pavane.pods.settings import PodSettings, read_yaml
from pavane.raft.keys import RaftKeys
from pavane.runtime.settings import SettingsError
from pavane.waltz.core.quotas import Quota
from pavane.waltz.core.rights import Right

SERVER_PORT = 55180
"""Clients connect here: TLS with or without a certificate of the client, unless the resource disables TLS."""
STORAGE_PORT = 55280
"""Servers connect here: mutual TLS."""
ADMIN_PORT = 55281
"""Administrative tools and the operator connect here: mutual TLS."""
PARTITIONS_MAX = 4096
STORAGE_NODES_MAX = 5
ADDRESSES_FILE = "addresses"
"""In the folder of the metadata Secret: the urls of the Raft peers, one a line; beside it the keys of a client."""
ZOOKEEPER_FILE = "zookeeper"
"""In that folder instead: the servers of ZooKeeper, ``host:port`` with commas between."""


class WaltzServerSettings(PodSettings):
    """Env of a server."""

    waltz_host: str
    """The name under which clients and other pods reach this pod."""
    waltz_metadata: Path
    """Folder of the Secret `{name}-metadata`."""
    waltz_clients: Path | None = None
    """Folder of the ConfigMap `{name}-clients`, whose ``ca.crt`` clients need a certificate of; absent: they need none.
    Whoever has one of the pods' own authority counts as well: servers, and the control plane."""
    waltz_archive: Path | None = None
    """Folder of the Secret with the options of the archive's store: a file for each, such as `aws_access_key_id`."""


class WaltzStorageSettings(PodSettings):
    """Env of a storage node. ``generation`` is always 1: storage belongs to the resource and is changed in place."""

    waltz_host: str
    """The name under which servers reach this pod: its address in ``storage`` is ``{waltz_host}:{STORAGE_PORT}``."""
    waltz_data: Path
    """Folder of the partitions; a folder below the root of a volume."""


class ClientRule(BaseModel):
    """What one client may do."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    identity: str
    may: frozenset[Right]
    partitions: frozenset[int] | None = None


class WaltzConfig(BaseModel):
    """The config file, the same for both roles."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    cluster_name: str = Field(min_length=1, max_length=253)
    root: str = Field(pattern=r"^(/[^/]+)+$", max_length=253)
    """Path of the cluster in the metadata store."""
    key: UUID
    """The cluster's key, which storage nodes compare on OPEN; it is the same for the life of the resource."""
    partitions: int = Field(ge=1, le=PARTITIONS_MAX)
    storage: tuple[str, ...] = Field(min_length=1, max_length=STORAGE_NODES_MAX)
    """``host:port`` of all storage nodes, by ordinal. Each partition has a replica on each of them."""
    session_timeout_ms: int = Field(default=1000, ge=100, le=60_000)
    """Lease of a server in the metadata store: after this long without it its partitions move."""

    retention_bytes: int = Field(default=-1, ge=-1)
    """How much of a partition a storage node keeps; -1: all. For servers."""
    retention_age_ms: int = Field(default=-1, ge=-1)
    """How long a transaction is kept; -1: for ever. For servers."""
    retention_respects_consumers: bool = True
    """Whether nothing is dropped that a consumer needs. For servers."""

    archive_url: str = ""
    """Where what is committed is copied to, `s3://…`, `gs://…`, `az://…` or `file://…`; empty: nowhere. For servers."""
    archive_delay_ms: int = Field(default=300_000, ge=1000)
    """After which a transaction is archived. For servers."""
    archive_drops: bool = False
    """Whether retention goes on while the archive takes nothing. For servers."""

    client_rights: tuple[ClientRule, ...] | None = None
    """What clients may do by their certificates; ``None``: all but trim. For servers."""

    client_quotas: tuple[Quota, ...] = ()
    """How much of it. For servers."""

    @field_validator("storage")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal():
                raise ValueError(f"{address!r} is not host:port")
        if len(set(value)) != len(value):
            raise ValueError("an address occurs twice")
        return value

    @property
    def replicas(self) -> int:
        """Replicas of a partition."""
        return len(self.storage)


class Metadata(BaseModel):
    """The Raft peers that hold the metadata, and the keys of a client of theirs."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    addresses: tuple[str, ...]
    """``tcp://host:port``"""
    keys: RaftKeys


class ZooKeeperServers(BaseModel):
    """The ZooKeeper servers that hold the metadata."""

    model_config = ConfigDict(frozen=True)

    connect: str
    """``host:port``, several with commas between."""


def load(settings: WaltzServerSettings | WaltzStorageSettings) -> WaltzConfig:
    """Read the config file. Raises ``SettingsError`` that names the file, the key and what is wrong."""
    values: dict[str, Any] = read_yaml(settings.config)
    try:
        return WaltzConfig.model_validate(values)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise SettingsError(f"PAVANE_CONFIG: {settings.config}: {faults}") from None


def metadata(folder: Path) -> Metadata | ZooKeeperServers:
    """Read the metadata Secret's folder. Raises ``SettingsError`` that names the folder and what is wrong."""
    try:
        if (folder / ZOOKEEPER_FILE).exists():
            connect = (folder / ZOOKEEPER_FILE).read_text(encoding="utf-8").strip()
            if not connect:
                raise SettingsError(f"PAVANE_WALTZ_METADATA: {folder}/{ZOOKEEPER_FILE} names no server")
            return ZooKeeperServers(connect=connect)
        addresses = tuple((folder / ADDRESSES_FILE).read_text(encoding="utf-8").split())
        keys = RaftKeys.read(folder)
    except (OSError, ValueError) as error:
        raise SettingsError(f"PAVANE_WALTZ_METADATA: {folder}: {error}") from error
    if not addresses:
        raise SettingsError(f"PAVANE_WALTZ_METADATA: {folder}/{ADDRESSES_FILE} names no peer")
    return Metadata(addresses=addresses, keys=keys)
