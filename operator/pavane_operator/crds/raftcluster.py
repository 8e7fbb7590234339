"""`RaftCluster`: a replicated log and what it is applied to (docs/specs/operator.md 1.4)."""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from pavane_operator.crds.backup import ScheduledBackup
from pavane_operator.crds.base import (
    MAP_MAX_ENTRIES,
    NAME_MAX_CHARACTERS,
    Count,
    Mark,
    Model,
    Name,
    marked,
    rule,
    rules,
)
from pavane_operator.crds.common import ResourceRequirements, VolumesSpec
from pavane_operator.crds.descriptor import Definition, column
from pavane_operator.crds.rollout import BakedRollout
from pavane_operator.crds.status import Status, StatusModel
from pavane_operator.crds.values import Duration, Quantity

REPLICAS_MAX = 9
"""Every write waits for a majority, so more members only make writes slower."""
MEMBERS_MAX_ITEMS = 32
"""Members of the old and the new configuration and learners of one more generation."""
SECRET_KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"  # noqa: S105 - of the name of a key
"""As a server wants the keys of a Secret."""
SECRET_KEY_DEFAULT = "secret"  # noqa: S105 - the name of a key
"""As in the Secret that is generated."""
CLUSTER_ID_MAX_CHARACTERS = 64
"""Fits into the hello message of the protocol."""

SNAPSHOT_ENTRIES_MIN = 100
"""Below it a cluster would do little else."""
LOG_ENTRIES_MAX = 10_000_000
"""About a gigabyte of small entries."""

REQUESTS_DEFAULT: dict[str, Quantity] = {"cpu": "100m", "memory": "128Mi"}
"""Enough for a small log under light load. A released default never changes: it would roll every cluster."""


class StateMachine(StrEnum):
    """What the log is applied to (docs/specs/raft.md 12.2)."""

    KEY_VALUE = "KeyValue"
    TREE = "Tree"
    BROADCAST = "Broadcast"


class MemberRole(StrEnum):
    """What a peer is to the committed configuration."""

    VOTER = "Voter"
    LEARNER = "Learner"
    LEAVING = "Leaving"


class RaftResources(ResourceRequirements):
    """Computing resources of the container."""

    requests: dict[str, Quantity] | None = Field(
        default=REQUESTS_DEFAULT, max_length=MAP_MAX_ENTRIES, json_schema_extra=marked(Mark.POD)
    )
    """What the scheduler reserves."""


class ElectionTimeout(Model):
    """A follower starts an election after a random time in this range without a message from the leader."""

    min: Duration = Field(default="200ms", json_schema_extra=marked(Mark.POD))
    """Shortest time; at least 50ms. The leader's heartbeat is a quarter of it."""
    max: Duration = Field(default="300ms", json_schema_extra=marked(Mark.POD))
    """Longest time; at least one and a half times `min`."""


class SecretRef(Model):
    """Your own Secret with the cluster's secret, and the key in it."""

    name: Annotated[str, Field(min_length=1, max_length=NAME_MAX_CHARACTERS)] = Field(
        json_schema_extra=marked(Mark.POD)
    )
    """Name of the Secret, in the same namespace."""
    key: Annotated[str, Field(pattern=SECRET_KEY_PATTERN, max_length=NAME_MAX_CHARACTERS)] = Field(
        default=SECRET_KEY_DEFAULT, json_schema_extra=marked(Mark.POD)
    )
    """Key in its data: 1 to 256 bytes; a newline at the end is ignored."""


class Snapshot(Model):
    """When a member takes a snapshot and truncates its log. Changes reach running members within about a minute."""

    entries: int = Field(
        default=10_000, ge=SNAPSHOT_ENTRIES_MIN, le=LOG_ENTRIES_MAX, json_schema_extra=marked(Mark.LIVE)
    )
    """Applied entries between two snapshots. A member takes at most one in ten seconds, and only after as many bytes
    were written as the last one holds."""
    log_retention: int = Field(default=5000, ge=0, le=LOG_ENTRIES_MAX, json_schema_extra=marked(Mark.LIVE))
    """Entries kept before a snapshot, so that a member that lags a little needs no snapshot."""


class RaftClusterSpec(VolumesSpec):
    """Replicated keys, a tree or a plain log, on an odd number of members."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("has(self.clusterId) == has(oldSelf.clusterId)", "clusterId cannot be changed"),
            rule("has(self.secretRef) == has(oldSelf.secretRef)", "secretRef cannot be changed"),
        )
    )

    replicas: int = Field(
        default=3,
        ge=1,
        le=REPLICAS_MAX,
        json_schema_extra=marked(Mark.LIVE, **rules(rule("self % 2 == 1", "replicas must be odd"))),
    )
    """Number of voting members, odd. A change adds or removes members of the running cluster, one change at a time."""
    cluster_id: Annotated[str, Field(min_length=1, max_length=CLUSTER_ID_MAX_CHARACTERS)] | None = Field(
        default=None,
        json_schema_extra=marked(Mark.POD, **rules(rule("self == oldSelf", "clusterId cannot be changed"))),
    )
    """Ident of the log; if absent, the resource's name. Cannot be changed."""
    secret_ref: SecretRef | None = Field(
        default=None,
        json_schema_extra=marked(Mark.POD, **rules(rule("self == oldSelf", "secretRef cannot be changed"))),
    )
    """Source of the secret that members and clients share; if absent, one is generated. Cannot be changed, and the
    contents of the Secret must not change: members with different secrets ignore each other."""
    election_timeout: ElectionTimeout = Field(
        default_factory=ElectionTimeout,
        json_schema_extra=rules(
            rule("duration(self.min) >= duration('50ms')", "electionTimeout.min must be at least 50ms"),
            rule(
                "duration(self.min) + duration(self.min) + duration(self.min)"
                " <= duration(self.max) + duration(self.max)",
                "electionTimeout.max must be at least 1.5 times electionTimeout.min",
            ),
        ),
    )
    """Range of the election time-out."""
    state_machine: StateMachine = Field(
        default=StateMachine.KEY_VALUE,
        json_schema_extra=marked(Mark.POD, **rules(rule("self == oldSelf", "stateMachine cannot be changed"))),
    )
    """What the log is applied to. `KeyValue`: keys, leases and watches. `Tree`: the same and a tree of nodes.
    `Broadcast`: the plain log, whose entries clients append and read. Cannot be changed."""
    snapshot: Snapshot = Field(default_factory=Snapshot)
    """How long the log may grow. No effect with `Broadcast`, which has no state to save."""
    backup: ScheduledBackup | None = Field(default=None, json_schema_extra=marked(Mark.CONTROL))
    """Backups that are made by themselves; condition BackupFailed says when the last one failed."""
    resources: RaftResources = Field(default_factory=RaftResources)
    """Computing resources of the container."""
    rollout: BakedRollout = Field(default_factory=BakedRollout)
    """How a new generation becomes the active one."""


class RaftConfiguration(StatusModel):
    """The voting members."""

    old: list[Name] = Field(default_factory=list, max_length=MEMBERS_MAX_ITEMS)
    """Members of the configuration; in a joint configuration those of the old one."""
    new: list[Name] = Field(default_factory=list, max_length=MEMBERS_MAX_ITEMS)
    """Members of the new configuration in a joint configuration, otherwise empty."""


class RaftMember(StatusModel):
    """One peer."""

    name: Name
    """Its id, the pod's name."""
    generation: Count
    """The generation of its pod."""
    role: MemberRole
    """Its role in the committed configuration."""
    match_index: Count | None = None
    """Last entry that it is known to hold."""


class RaftClusterStatus(Status):
    """Observed state of a RaftCluster."""

    leader: Name | None = None
    """The leader's pod."""
    term: Count | None = None
    """Its term."""
    commit_index: Count | None = None
    """Last committed entry."""
    configuration: RaftConfiguration | None = None
    """The voting members."""
    members: list[RaftMember] = Field(
        default_factory=list,
        max_length=MEMBERS_MAX_ITEMS,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """All peers."""


DEFINITION = Definition(
    name="RaftCluster",
    plural="raftclusters",
    short="raft",
    spec=RaftClusterSpec,
    status=RaftClusterStatus,
    folder="raft",
    columns=(column("Leader", "string", ".status.leader", priority=1),),
    routers=("raftlog", "raftkeys", "raftmembers"),
)
