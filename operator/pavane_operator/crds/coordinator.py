"""`Coordinator`: an immortal, its application beside its coordinator (docs/specs/operator.md 1.7)."""

from typing import Annotated

from pydantic import ConfigDict, Field

from pavane_operator.crds.backup import ScheduledBackup
from pavane_operator.crds.base import (
    LIST_MAX_ITEMS,
    MAP_MAX_ENTRIES,
    NAME_MAX_CHARACTERS,
    Mark,
    Model,
    Name,
    Text,
    marked,
    rule,
    rules,
)
from pavane_operator.crds.common import CommonSpec, DeletionPolicy, EnvVar, ResourceRequirements, VolumeSpec
from pavane_operator.crds.computecluster import PARTITION_MAX, WaltzClusterRef
from pavane_operator.crds.descriptor import Definition, column
from pavane_operator.crds.rollout import LAG_MAX, CaughtUpSpec, RolloutSpec
from pavane_operator.crds.status import Status
from pavane_operator.crds.values import Quantity

INSTANCE_MAX_CHARACTERS = 64
VERSION_MAX = 2**31 - 1
REPLICAS_MAX = 5
PEER_ADDRESS_PATTERN = r"^[^:]+:[0-9]{1,5}$"
LAG_DEFAULT = 1 << 16
"""Bytes of log that a successor may lack: it reads them within milliseconds of the fence."""

COORDINATOR_REQUESTS: dict[str, Quantity] = {"cpu": "100m", "memory": "128Mi"}
"""Enough for light load. A released default never changes: it would roll every resource."""


class CoordinatorResources(ResourceRequirements):
    """Computing resources of the coordinator."""

    requests: dict[str, Quantity] | None = Field(
        default=COORDINATOR_REQUESTS, max_length=MAP_MAX_ENTRIES, json_schema_extra=marked(Mark.POD)
    )
    """What the scheduler reserves."""


class Application(Model):
    """The container of the application. It finds its coordinator in `PAVANE_AMBROSIA` (`host:receivePort,sendPort`),
    its name in `PAVANE_INSTANCE` and where to serve HTTP in `PAVANE_HTTP`."""

    image: Name = Field(default="", json_schema_extra=marked(Mark.POD))
    """Its image; if empty, the image of the coordinator, which has the Python binding."""
    command: list[Text] = Field(default_factory=list, max_length=LIST_MAX_ITEMS, json_schema_extra=marked(Mark.POD))
    """Command to run; if empty, the image's own."""
    args: list[Text] = Field(default_factory=list, max_length=LIST_MAX_ITEMS, json_schema_extra=marked(Mark.POD))
    """Its arguments."""
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=LIST_MAX_ITEMS,
        json_schema_extra=marked(Mark.POD, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    )
    """Its environment."""
    files: Name | None = Field(default=None, json_schema_extra=marked(Mark.POD))
    """A ConfigMap of the namespace with Python modules, mounted at `/app`. For a new version of the application use a
    ConfigMap with another name."""
    version: int = Field(default=0, ge=0, le=VERSION_MAX, json_schema_extra=marked(Mark.POD))
    """Its version. A generation with a greater one replays with the old code what was logged with the old version. It
    changes over when it takes over: state, code and open calls, once. Code that handles calls in another way needs a
    greater version. The program finds it in `PAVANE_VERSION`."""
    resources: ResourceRequirements = Field(default_factory=ResourceRequirements)
    """Its computing resources."""


class LogStorage(VolumeSpec):
    """The volume with log and checkpoints. It belongs to the resource; each generation hands it to the next."""

    size: Quantity = Field(
        default="2Gi",
        json_schema_extra=marked(
            Mark.LIVE,
            **rules(
                rule("quantity(string(self)).compareTo(quantity(string(oldSelf))) >= 0", "storage.size cannot shrink")
            ),
        ),
    )
    """Size of the volume. It can grow if the storage class allows it, but never shrink."""
    shared: bool = Field(
        default=False,
        json_schema_extra=marked(Mark.POD, **rules(rule("self == oldSelf", "storage.shared cannot be changed"))),
    )
    """Claim it ReadWriteMany, so that generations and replicas can run on different nodes; otherwise all
    run on one. Cannot be
    changed."""


class PartitionLog(Model):
    """A partition of a log that keeps what the volume would."""

    waltz_cluster_ref: WaltzClusterRef
    """The log."""
    partition: int = Field(default=0, ge=0, le=PARTITION_MAX, json_schema_extra=marked(Mark.POD))
    """The partition; nothing else may write to it."""


class CoordinatorCaughtUp(CaughtUpSpec):
    """When a generation counts as caught up."""

    allowed_lag: int = Field(default=LAG_DEFAULT, ge=0, le=LAG_MAX, json_schema_extra=marked(Mark.CONTROL))
    """How many bytes of the log may be not yet replayed."""


class CoordinatorRollout(RolloutSpec):
    """How a new generation becomes the active one, and your decisions about the current attempt."""

    caught_up: CoordinatorCaughtUp = Field(default_factory=CoordinatorCaughtUp)
    """When a generation counts as caught up."""


class CoordinatorSpec(CommonSpec):
    """An immortal: an application whose inputs are logged before it handles them, beside its coordinator."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("has(self.instanceName) == has(oldSelf.instanceName)", "instanceName cannot be changed"),
            rule("has(self.log) == has(oldSelf.log)", "log cannot be added or removed"),
            rule("!has(self.log) || self.replicas == 1", "replicas must be 1 with log"),
            rule("!has(self.log) || !self.storage.shared", "storage.shared needs a volume, so no log"),
            rule("!has(self.log) || !has(self.backup)", "backup needs a volume: with log, back up the WaltzCluster"),
        )
    )

    instance_name: Annotated[str, Field(min_length=1, max_length=INSTANCE_MAX_CHARACTERS)] | None = Field(
        default=None,
        json_schema_extra=marked(Mark.POD, **rules(rule("self == oldSelf", "instanceName cannot be changed"))),
    )
    """Name under which other immortals call it; if absent, the resource's name. Cannot be changed."""
    application: Application = Field(default_factory=Application)
    """The application."""
    replicas: int = Field(default=1, ge=1, le=REPLICAS_MAX, json_schema_extra=marked(Mark.LIVE))
    """Pods of a generation, each with coordinator and application. One leads; the others replay its log as it is
    written, are not ready, and one of them leads as soon as the first one ends. The lock is a file on the volume: pods
    on several nodes need `storage.shared` and a file system whose `flock` works across machines, as NFS 4 does."""
    peers: dict[str, Annotated[str, Field(pattern=PEER_ADDRESS_PATTERN, max_length=NAME_MAX_CHARACTERS + 6)]] = Field(
        default_factory=dict, max_length=MAP_MAX_ENTRIES, json_schema_extra=marked(Mark.POD)
    )
    """Immortals elsewhere, `name: host:port`. All others are resources of the namespace."""
    checkpoint_mib: int = Field(default=1000, ge=1, le=1 << 20, json_schema_extra=marked(Mark.POD))
    """Take a checkpoint after this many MiB of log."""
    log: PartitionLog | None = Field(
        default=None,
        json_schema_extra=marked(Mark.POD, **rules(rule("self == oldSelf", "log cannot be changed"))),
    )
    """Keep log and checkpoints on a partition of a WaltzCluster; then there is no volume, and the pods of two
    generations may run on different nodes. Default: on the volume. Cannot be changed, added or removed."""
    storage: LogStorage = Field(
        default_factory=LogStorage,
        json_schema_extra=rules(
            rule(
                "has(self.storageClassName) == has(oldSelf.storageClassName) && "
                "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
                "storage.storageClassName cannot be changed",
            ),
        ),
    )
    """The volume with log and checkpoints; unused with `log`."""
    backup: ScheduledBackup | None = Field(default=None, json_schema_extra=marked(Mark.CONTROL))
    """Backups that are made by themselves; condition BackupFailed says when the last one failed."""
    resources: CoordinatorResources = Field(default_factory=CoordinatorResources)
    """Computing resources of the coordinator."""
    rollout: CoordinatorRollout = Field(default_factory=CoordinatorRollout)
    """How a new generation becomes the active one."""
    deletion_policy: DeletionPolicy = Field(default=DeletionPolicy.RETAIN, json_schema_extra=marked(Mark.CONTROL))
    """Whether the volume is kept when the resource is deleted."""


class CoordinatorStatus(Status):
    """Observed state of an immortal."""

    instance: Name | None = None
    """Name under which others call it."""
    primary: Name | None = None
    """The pod that leads."""


DEFINITION = Definition(
    name="Coordinator",
    plural="coordinators",
    short="coord",
    spec=CoordinatorSpec,
    status=CoordinatorStatus,
    folder="coordinator",
    refers=(("spec.log.waltzClusterRef.name", "WaltzCluster"),),
    routers=("immortals",),
    columns=(
        column("Primary", "string", ".status.primary"),
        column("Instance", "string", ".status.instance", priority=1),
    ),
)
