"""`WaltzCluster`: a partitioned log with locks (docs/specs/operator.md 1.6)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field

from pavane_operator.crds.backup import ScheduledBackup
from pavane_operator.crds.base import (
    LIST_MAX_ITEMS,
    MAP_MAX_ENTRIES,
    Count,
    Mark,
    Model,
    Name,
    ResourceName,
    marked,
    rule,
    rules,
)
from pavane_operator.crds.common import CommonSpec, DeletionPolicy, ResourceRequirements, VolumeSpec
from pavane_operator.crds.descriptor import Definition, column
from pavane_operator.crds.rollout import BakedRollout
from pavane_operator.crds.status import Status, StatusModel
from pavane_operator.crds.tls import TlsMode
from pavane_operator.crds.values import Duration, Quantity, StoreUrl

CLUSTER_NAME_MAX_CHARACTERS = 64
"""Part of a path in the metadata store."""
PARTITIONS_MAX = 4096
"""Each is an entry in one assignment, which every server and client reads whole."""
SERVERS_MAX = 64
"""More servers make each assignment longer; partitions are what spreads the load."""
CONNECT_STRING = r"^[^\s,/:]+:[0-9]+(,[^\s,/:]+:[0-9]+)*$"
"""As clients of ZooKeeper take it, without a path at the end: `root` is for that."""
STORAGE_NODES_MAX = 5
"""Every partition has a replica on each node, and an append waits for a majority of them."""

SERVER_REQUESTS: dict[str, Quantity] = {"cpu": "100m", "memory": "128Mi"}
STORAGE_REQUESTS: dict[str, Quantity] = {"cpu": "100m", "memory": "128Mi"}
"""Enough for light load. A released default never changes: it would roll every cluster."""


class ServerResources(ResourceRequirements):
    """Computing resources of a server."""

    requests: dict[str, Quantity] | None = Field(
        default=SERVER_REQUESTS, max_length=MAP_MAX_ENTRIES, json_schema_extra=marked(Mark.POD)
    )
    """What the scheduler reserves."""


class StorageResources(ResourceRequirements):
    """Computing resources of a storage node."""

    requests: dict[str, Quantity] | None = Field(
        default=STORAGE_REQUESTS, max_length=MAP_MAX_ENTRIES, json_schema_extra=marked(Mark.POD)
    )
    """What the scheduler reserves."""


class Servers(Model):
    """The servers own partitions, check locks and order appends. A new generation takes over partition by
    partition."""

    replicas: int = Field(default=2, ge=1, le=SERVERS_MAX, json_schema_extra=marked(Mark.LIVE))
    """Number of servers."""
    resources: ServerResources = Field(default_factory=ServerResources)
    """Computing resources of a server."""


class WaltzStorage(VolumeSpec):
    """The storage nodes keep the log. A change restarts them one at a time, each on its own volume."""

    size: Quantity = Field(
        default="20Gi",
        json_schema_extra=marked(
            Mark.LIVE,
            **rules(
                rule("quantity(string(self)).compareTo(quantity(string(oldSelf))) >= 0", "storage.size cannot shrink")
            ),
        ),
    )
    """Size of the volume of each node. It can grow if the storage class allows it, but never shrink."""
    nodes: int = Field(
        default=3,
        ge=1,
        le=STORAGE_NODES_MAX,
        json_schema_extra=marked(
            Mark.PLACED,
            **rules(rule("self % 2 == 1", "storage.nodes must be odd")),
        ),
    )
    """Number of nodes, odd. Each partition has a replica on every node. A change fills the replicas of new nodes before
    they count; pods of others go when none of theirs counts any more, and their volumes stay."""
    resources: StorageResources = Field(default_factory=StorageResources)
    """Computing resources of a node."""


class RaftClusterRef(Model):
    """A RaftCluster in the same namespace."""

    name: ResourceName = Field(json_schema_extra=marked(Mark.POD))
    """Its name. Its state machine must be `Tree`."""


class ZooKeeper(Model):
    """ZooKeeper servers, where programs of the original look for a log."""

    connect_string: Annotated[str, Field(min_length=1, max_length=1024, pattern=CONNECT_STRING)] = Field(
        json_schema_extra=marked(Mark.POD)
    )
    """The servers: `host:port`, several with commas between."""
    root: Annotated[str, Field(max_length=253, pattern=r"^(/[^/\s]+)+$")] = Field(json_schema_extra=marked(Mark.POD))
    """Path of the log; missing nodes above it are made. Deleting the resource leaves the nodes there."""


class Metadata(Model):
    """Where servers and partitions are registered: in a RaftCluster or in ZooKeeper."""

    raft_cluster_ref: RaftClusterRef | None = Field(default=None, json_schema_extra=marked(Mark.POD))
    """The RaftCluster that holds the registry. Cannot be changed."""
    zookeeper: ZooKeeper | None = Field(default=None, json_schema_extra=marked(Mark.POD))
    """ZooKeeper holds the registry, in the layout of the original, whose clients then find the servers. Cannot be
    changed."""
    session_timeout: Duration = Field(default="1s", json_schema_extra=marked(Mark.POD))
    """After this time without a heartbeat a server loses its partitions to others; 500ms to 1m."""


class Retention(Model):
    """How much of each partition is kept. What is older is given up for good, on all storage nodes alike."""

    max_age: Duration | None = Field(default=None, json_schema_extra=marked(Mark.POD))
    """How long a transaction is kept, from when the log appended it; at least 1m. What is given up may be older by an
    eighth, and by more where storage nodes were copied anew."""
    max_bytes: Quantity | None = Field(default=None, json_schema_extra=marked(Mark.POD))
    """How much a partition takes on each storage node; at least 1Mi. It may be more by what comes within 10 seconds."""
    respect_consumers: bool = Field(default=True, json_schema_extra=marked(Mark.POD))
    """Whether nothing is given up that a consumer still needs, whatever maxAge and maxBytes say."""


class WhileAway(StrEnum):
    """What happens while the archive takes nothing."""

    KEEP = "Keep"
    DROP = "Drop"


class Archive(Model):
    """Where the servers copy what is committed to, for reads and for what `retention` has given up."""

    url: StoreUrl = Field(json_schema_extra=marked(Mark.POD))
    """A bucket or container and a path: `s3://bucket/path`, `gs://…`, `az://…`; or `file:///path`, for a folder that
    all pods share. Each log has a folder of its own below it."""
    secret_name: Name | None = Field(default=None, json_schema_extra=marked(Mark.POD))
    """A Secret in the same namespace with options of the store, a key for each: `aws_access_key_id`,
    `aws_secret_access_key`, `aws_region`, `aws_endpoint`, `google_service_account_key`, `azure_storage_account_name`,
    `azure_storage_account_key`; if absent, what the pod's environment gives."""
    delay: Duration = Field(default="5m", json_schema_extra=marked(Mark.POD))
    """After this time a transaction is copied; earlier if 8 MiB wait. 1s to 1h."""
    while_away: WhileAway = Field(default=WhileAway.KEEP, json_schema_extra=marked(Mark.POD))
    """While the archive takes nothing: Keep what is not archived, until volumes are full and appends wait; or Drop it
    as `retention` says, so that it is in no archive."""


class Authentication(StrEnum):
    """What a client has to show on the client port."""

    CERTIFICATE = "Certificate"
    NONE = "None"


class ClientRight(StrEnum):
    """What a client may do."""

    APPEND = "append"
    READ = "read"
    TRIM = "trim"


APPLICATION = "client"
"""The client whose certificate applications show that have no rule of their own."""
Identity = Annotated[str, Field(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


class ClientRule(Model):
    """What a client may do in some partitions."""

    identity: Identity
    """Its name, which is the common name of its certificate. Secret `{name}-client` has that of `client`, which
    Coordinators and ComputeClusters use too; any other name gets a Secret `{name}-client-{identity}`."""
    may: list[ClientRight] = Field(min_length=1, max_length=3)
    """What it may do."""
    partitions: list[Annotated[int, Field(ge=0, lt=PARTITIONS_MAX)]] | None = Field(
        default=None, min_length=1, max_length=LIST_MAX_ITEMS
    )
    """Where; if absent, in all partitions."""


class ClientQuota(Model):
    """How much a client may ask of each server. What is beyond is refused, with the time after which it may come."""

    identity: Identity
    """Its name, as in `clients.rights`."""
    bytes_per_second: Quantity | None = None
    """Data that it appends; at least 1Ki."""
    appends_per_second: int | None = Field(default=None, ge=1, le=1_000_000)
    """How many transactions it appends."""
    connections: int | None = Field(default=None, ge=1, le=100_000)
    """How many connections it has. A client has one to each server that it appends to, and one for each feed."""


class Clients(Model):
    """Who may connect to the client port, and what they may do."""

    authentication: Authentication = Field(json_schema_extra=marked(Mark.POD))
    """Certificate: clients show one that the operator issued for this log; Secret `{name}-client` has it. None: whoever
    reaches the port may read, append and trim."""
    rights: list[ClientRule] | None = Field(
        default=None,
        max_length=LIST_MAX_ITEMS,
        json_schema_extra=marked(Mark.POD),
    )
    """What each client may do; what no rule gives is refused. If absent, all may append and read, and none may trim.
    The control plane does what Kubernetes lets its callers do."""
    quotas: list[ClientQuota] | None = Field(
        default=None,
        min_length=1,
        max_length=LIST_MAX_ITEMS,
        json_schema_extra=marked(Mark.POD),
    )
    """How much each client may append and connect; whom none names has no limit."""


CERTIFIED = Clients(
    authentication=Authentication.CERTIFICATE, rights=[ClientRule(identity=APPLICATION, may=list(ClientRight))]
)
"""What an absent `clients` means in a new log: whom the port was open to before may still do all, if he shows the
certificate of Secret `{name}-client`. Coordinators trim their partitions with it."""


class WaltzClusterSpec(CommonSpec):
    """A partitioned log whose appends are checked against locks before they commit."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("has(self.clusterName) == has(oldSelf.clusterName)", "clusterName cannot be changed"),
            rule(
                "!has(self.clients) || self.clients.authentication == 'None' || self.tls.mode == 'SelfSigned'",
                "clients.authentication Certificate needs tls.mode SelfSigned: the operator issues the certificates",
            ),
            rule("!has(self.backup) || has(self.archive)", "backup needs archive, which has the data"),
        )
    )

    cluster_name: (
        Annotated[str, Field(min_length=1, max_length=CLUSTER_NAME_MAX_CHARACTERS, pattern="^[^/]+$")] | None
    ) = Field(
        default=None,
        json_schema_extra=marked(Mark.POD, **rules(rule("self == oldSelf", "clusterName cannot be changed"))),
    )
    """Name of the log; if absent, the resource's name. Cannot be changed."""
    partitions: int = Field(
        default=8,
        ge=1,
        le=PARTITIONS_MAX,
        json_schema_extra=marked(Mark.PLACED, **rules(rule("self >= oldSelf", "partitions cannot become fewer"))),
    )
    """Number of partitions, each a separate log. May become more while the log runs, never fewer."""
    servers: Servers = Field(default_factory=Servers)
    """The servers."""
    storage: WaltzStorage = Field(
        default_factory=WaltzStorage,
        json_schema_extra=rules(
            rule(
                "has(self.storageClassName) == has(oldSelf.storageClassName) && "
                "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
                "storage.storageClassName cannot be changed",
            ),
        ),
    )
    """The storage nodes."""
    metadata: Metadata = Field(
        json_schema_extra=rules(
            rule(
                "has(self.raftClusterRef) != has(self.zookeeper)",
                "set exactly one of metadata.raftClusterRef and metadata.zookeeper",
            ),
            rule(
                "has(self.raftClusterRef) == has(oldSelf.raftClusterRef) && "
                "(!has(self.raftClusterRef) || self.raftClusterRef == oldSelf.raftClusterRef)",
                "metadata.raftClusterRef cannot be changed",
            ),
            rule(
                "has(self.zookeeper) == has(oldSelf.zookeeper) && "
                "(!has(self.zookeeper) || self.zookeeper == oldSelf.zookeeper)",
                "metadata.zookeeper cannot be changed",
            ),
            rule(
                "duration(self.sessionTimeout) >= duration('500ms') && duration(self.sessionTimeout) <= duration('1m')",
                "metadata.sessionTimeout must be between 500ms and 1m",
            ),
        ),
    )
    """Where servers and partitions are registered."""
    retention: Retention | None = Field(
        default=None,
        json_schema_extra=marked(
            Mark.POD,
            **rules(
                rule("has(self.maxAge) || has(self.maxBytes)", "set retention.maxAge, retention.maxBytes or both"),
                rule(
                    "!has(self.maxAge) || duration(self.maxAge) >= duration('1m')",
                    "retention.maxAge must be at least 1m",
                ),
                rule(
                    "!has(self.maxBytes) || quantity(string(self.maxBytes)).compareTo(quantity('1Mi')) >= 0",
                    "retention.maxBytes must be at least 1Mi",
                ),
            ),
        ),
    )
    """How much of each partition is kept; if absent, all."""
    archive: Archive | None = Field(
        default=None,
        json_schema_extra=marked(
            Mark.POD,
            **rules(
                rule(
                    "duration(self.delay) >= duration('1s') && duration(self.delay) <= duration('1h')",
                    "archive.delay must be between 1s and 1h",
                ),
            ),
        ),
    )
    """Where the servers copy what is committed to; if absent, nowhere."""
    backup: ScheduledBackup | None = Field(default=None, json_schema_extra=marked(Mark.CONTROL))
    """Backups that are made by themselves: lists of what `archive` has; condition BackupFailed says when the last one
    failed."""
    clients: Clients | None = Field(
        default=None,
        json_schema_extra=marked(
            Mark.POD,
            **rules(
                rule(
                    "!has(self.rights) || self.authentication == 'Certificate'",
                    "clients.rights needs clients.authentication Certificate",
                ),
                rule(
                    "!has(self.quotas) || self.authentication == 'Certificate'",
                    "clients.quotas needs clients.authentication Certificate",
                ),
            ),
        ),
    )
    """Who may connect to the client port, and what they may do. If absent, `status.clients.whenAbsent` counts: whoever
    shows the certificate of Secret `{name}-client` may do all. In logs of before, and unless `tls.mode` is SelfSigned,
    whoever reaches the port may."""
    deletion_policy: DeletionPolicy = Field(default=DeletionPolicy.RETAIN, json_schema_extra=marked(Mark.CONTROL))
    """Whether the volumes of the storage nodes are kept when the resource is deleted."""
    rollout: BakedRollout = Field(default_factory=BakedRollout)
    """How a new generation becomes the active one."""

    @property
    def certifies_clients(self) -> bool:
        """Whether the operator issues certificates to clients."""
        return self.clients is not None and self.clients.authentication is Authentication.CERTIFICATE

    def settled(self, status: Mapping[str, Any]) -> Self:
        """With the clients that count where the spec names none."""
        return self.with_clients((status.get("clients") or {}).get("whenAbsent"))

    def with_clients(self, when_absent: str | None) -> Self:
        """The same, where an absent `clients` means this."""
        issues = self.tls.mode is TlsMode.SELF_SIGNED
        if self.clients is None and issues and when_absent == Authentication.CERTIFICATE:
            return self.model_copy(update={"clients": CERTIFIED})
        return self


class PartitionCounts(StatusModel):
    """Number of partitions and their state."""

    total: Count
    """All partitions."""
    writable: Count
    """Partitions whose owner accepts appends."""
    replicated: Count
    """Partitions with a replica on every participating storage node."""
    trimmed: Count | None = None
    """Partitions whose first transactions were given up."""
    nodes: Count | None = None
    """Storage nodes on which all of them are to be."""
    moving: Count | None = None
    """Partitions of which other storage nodes count still."""
    keys: Count | None = None
    """Partitions over which clients spread keys: those with which the log was made."""


class ClientsStatus(StatusModel):
    """Who may connect to the client port."""

    authentication: Authentication
    """What clients have to show."""
    when_absent: Authentication
    """What they have to where the spec has no `clients`: decided once, when the first generation of pods is begun."""


class WaltzClusterStatus(Status):
    """Observed state of a WaltzCluster."""

    clients: ClientsStatus | None = None
    """Who may connect to the client port."""

    partitions: PartitionCounts | None = None
    """Its partitions."""
    writable: Name | None = None
    """The writable and all partitions, for a column: `4/4`."""


DEFINITION = Definition(
    name="WaltzCluster",
    plural="waltzclusters",
    short="waltz",
    spec=WaltzClusterSpec,
    status=WaltzClusterStatus,
    folder="waltz",
    refers=(("spec.metadata.raftClusterRef.name", "RaftCluster"),),
    routers=("waltzlog",),
    columns=(
        column("Writable", "string", ".status.writable", priority=1),
        column("Clients", "string", ".status.clients.authentication", priority=1),
    ),
)
