"""`Backup`: a copy of a resource in object storage, made once (docs/specs/operator.md 1.10)."""

from enum import StrEnum

from pydantic import ConfigDict, Field

from pavane_operator.crds.base import Count, Mark, Model, Name, ResourceName, Time, marked, rule, rules
from pavane_operator.crds.descriptor import Described, column
from pavane_operator.crds.status import CONDITIONS_MAX_ITEMS, Condition, StoredStatus
from pavane_operator.crds.values import STORE_URL_MAX_CHARACTERS, StoreUrl
from pavane_operator.crds.windows import Cron

KEEP_MAX = 1000
"""Each is listed, with all its files, whenever old ones are deleted."""


class Phase(StrEnum):
    """Where a Backup stands."""

    PENDING = "Pending"
    RUNNING = "Running"
    COMPLETE = "Complete"
    FAILED = "Failed"


class BackedUpKind(StrEnum):
    """Kinds of which backups are made; of the last two there is nothing to copy, and a rule says so."""

    RAFT_CLUSTER = "RaftCluster"
    COORDINATOR = "Coordinator"
    WALTZ_CLUSTER = "WaltzCluster"
    COMPUTE_CLUSTER = "ComputeCluster"
    SWIM_GROUP = "SwimGroup"


class BackupOf(Model):
    """What is copied."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.kind != 'ComputeCluster'",
                "a ComputeCluster has nothing to back up: its views are made from the log: back up that",
            ),
            rule("self.kind != 'SwimGroup'", "a SwimGroup has nothing to back up: its members tell each other anew"),
        )
    )

    kind: BackedUpKind = Field(default=BackedUpKind.RAFT_CLUSTER, json_schema_extra=marked(Mark.CONTROL))
    """Its kind: RaftCluster, Coordinator with a volume, or WaltzCluster with `spec.archive`."""
    name: ResourceName = Field(json_schema_extra=marked(Mark.CONTROL))
    """Its name, in the same namespace."""


class BackupSpec(Model):
    """A copy of a resource in object storage: made once, read back and compared."""

    model_config = ConfigDict(
        json_schema_extra=rules(rule("self == oldSelf", "a Backup is made once: create another one"))
    )

    of: BackupOf
    """What is copied."""
    url: StoreUrl = Field(json_schema_extra=marked(Mark.CONTROL))
    """Where the backups of the resource are: `s3://bucket/path`, `gs://…`, `az://…`. `file:///path` is a folder
    that all pods share, as on the embedded cluster of `pavane up`: in containers nothing mounts one, and the Backup
    fails. Each has a folder of its own below it, of which the status tells."""
    secret_name: Name | None = Field(default=None, json_schema_extra=marked(Mark.CONTROL))
    """A Secret in the same namespace with options of the store, a key for each, as `spec.archive` of a WaltzCluster
    takes them: `aws_access_key_id`, `aws_secret_access_key`, `aws_region`, `aws_endpoint`, …"""
    keep: int | None = Field(default=None, ge=1, le=KEEP_MAX, json_schema_extra=marked(Mark.CONTROL))
    """Once this one is good, those of the resource below `url` are deleted that are older than so many whole ones; if
    absent, none."""


class ScheduledBackup(Model):
    """When a Backup of the resource is made by itself, and where."""

    schedule: Cron = Field(json_schema_extra=marked(Mark.CONTROL))
    """As of cron: minute, hour, day of the month, month, day of the week; `30 2 * * *` is every night. The first is
    made at once. Of those that were missed meanwhile one is made."""
    time_zone: Name = Field(default="Etc/UTC", json_schema_extra=marked(Mark.CONTROL))
    """Zone of these times, such as `Europe/Berlin`. When the clock changes, a time that is left out counts as an hour
    later, and one that comes twice counts once."""
    url: StoreUrl = Field(json_schema_extra=marked(Mark.CONTROL))
    """As of a Backup."""
    secret_name: Name | None = Field(default=None, json_schema_extra=marked(Mark.CONTROL))
    """As of a Backup."""
    keep: int = Field(default=14, ge=1, le=KEEP_MAX, json_schema_extra=marked(Mark.CONTROL))
    """Good backups that stay: older ones, and their Backups, are deleted behind a new good one."""


class BackupStatus(StoredStatus):
    """How far it is."""

    observed_generation: Count | None = None
    """metadata.generation of the spec that this status describes."""
    phase: Phase | None = None
    """Pending, Running, Complete or Failed. The last two are for ever."""
    started_at: Time | None = None
    """When the first attempt began."""
    completed_at: Time | None = None
    """When it ended, either way."""
    attempt: Count | None = None
    """Number of the attempt that runs or was the last."""
    retry_at: Time | None = None
    """Before it no further attempt begins."""
    bytes: Count | None = None
    """Size of the copy."""
    index: Count | None = None
    """Everything up to this entry of a Raft log or record of a Coordinator is in it; of a WaltzCluster the number of
    transactions."""
    digest: Name | None = None
    """Of the state at that entry, or of all that was copied, as `verify` of the kind prints it; absent for a log of
    a RaftCluster without state."""
    url: str | None = Field(default=None, max_length=2 * STORE_URL_MAX_CHARACTERS)
    """Where it is; for the commands `verify` and `restore` of the kind."""
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=CONDITIONS_MAX_ITEMS,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """Complete: it is there and was read back. Failed: it was given up; the message says why and what to do."""


DEFINITION = Described(
    name="Backup",
    plural="backups",
    short="bk",
    spec=BackupSpec,
    status=BackupStatus,
    folder="backup",
    columns=(
        column("Kind", "string", ".spec.of.kind", priority=1),
        column("Of", "string", ".spec.of.name"),
        column("Phase", "string", ".status.phase"),
        column("Entry", "integer", ".status.index"),
        column("Bytes", "integer", ".status.bytes"),
        column("Completed", "date", ".status.completedAt"),
        column("URL", "string", ".status.url", priority=1),
    ),
)
