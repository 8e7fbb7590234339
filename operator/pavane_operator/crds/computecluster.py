"""`ComputeCluster`: SQL views over a log, kept up to date (docs/specs/operator.md 1.8)."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from pavane_operator.crds.base import MAP_MAX_ENTRIES, NO_DEFAULT_KEY, Mark, Model, Name, marked, rule, rules
from pavane_operator.crds.common import CommonSpec, ResourceRequirements
from pavane_operator.crds.descriptor import Definition, column
from pavane_operator.crds.rollout import LAG_MAX, CaughtUpSpec, RolloutSpec
from pavane_operator.crds.status import Status
from pavane_operator.crds.values import Duration, Quantity

SCRIPT_MAX_CHARACTERS = 65_536
SCRIPTS_MAX = 32
PARTITION_MAX = 4095
LAG_DEFAULT = 10
"""Ticks that a successor may lack: it takes them in one step behind the fence."""

COMPUTE_REQUESTS: dict[str, Quantity] = {"cpu": "100m", "memory": "256Mi"}
"""Enough for light load with engine Plain. A released default never changes: it would roll every resource."""


class ComputeResources(ResourceRequirements):
    """Computing resources of the pod."""

    requests: dict[str, Quantity] | None = Field(
        default=COMPUTE_REQUESTS, max_length=MAP_MAX_ENTRIES, json_schema_extra=marked(Mark.POD)
    )
    """What the scheduler reserves."""


class SqlEngine(StrEnum):
    """What evaluates the SQL."""

    PLAIN = "Plain"
    SPARK = "Spark"


class WaltzClusterRef(Model):
    """A WaltzCluster in the same namespace."""

    name: Name = Field(min_length=1, json_schema_extra=marked(Mark.POD))
    """Its name."""


class Partitions(Model):
    """Partitions of the log that the views need for themselves; no table may read them."""

    ticks: int = Field(ge=0, le=PARTITION_MAX, json_schema_extra=marked(Mark.POD))
    """Partition for the ticks; nothing else may write to it."""
    views: int = Field(ge=0, le=PARTITION_MAX, json_schema_extra=marked(Mark.POD))
    """Partition for the views; others may write to it too."""


class ComputeCaughtUp(CaughtUpSpec):
    """When a generation counts as caught up."""

    allowed_lag: int = Field(default=LAG_DEFAULT, ge=0, le=LAG_MAX, json_schema_extra=marked(Mark.CONTROL))
    """How many ticks its views may lag behind."""


class ComputeRollout(RolloutSpec):
    """How a new generation becomes the active one, and your decisions about the current attempt."""

    caught_up: ComputeCaughtUp = Field(default_factory=ComputeCaughtUp)
    """When a generation counts as caught up."""


class ComputeClusterSpec(CommonSpec):
    """SQL views over a log. A new generation builds them beside the old one and writes from one fenced moment on."""

    waltz_cluster_ref: WaltzClusterRef = Field(
        json_schema_extra=rules(rule("self == oldSelf", "waltzClusterRef cannot be changed"))
    )
    """The log with the tables; the views are written to it too. Cannot be changed."""
    partitions: Partitions = Field(
        json_schema_extra=rules(
            rule("self == oldSelf", "the partitions of ticks and views cannot be changed"),
            rule("self.ticks != self.views", "partitions.ticks and partitions.views must differ"),
        )
    )
    """Partitions for ticks and views. Cannot be changed."""
    scripts: dict[str, Annotated[str, Field(min_length=1, max_length=SCRIPT_MAX_CHARACTERS)]] = Field(
        default_factory=dict, max_length=SCRIPTS_MAX, json_schema_extra=marked(Mark.POD, **{NO_DEFAULT_KEY: True})
    )
    """`name: CREATE TABLE …; CREATE MATERIALIZED VIEW …;`. A Dataflow adds its own. A change starts a generation."""
    engine: SqlEngine = Field(default=SqlEngine.PLAIN, json_schema_extra=marked(Mark.POD))
    """`Plain`: DuckDB; `Spark`: Spark in the pod, whose image must have it."""
    interval: Duration = Field(
        default="200ms",
        json_schema_extra=marked(
            Mark.POD,
            **rules(
                rule(
                    "duration(self) >= duration('10ms') && duration(self) <= duration('10s')",
                    "interval must be between 10ms and 10s",
                )
            ),
        ),
    )
    """Time between two ticks, 10ms to 10s."""
    resources: ComputeResources = Field(default_factory=ComputeResources)
    """Computing resources of the pod."""
    rollout: ComputeRollout = Field(default_factory=ComputeRollout)
    """How a new generation becomes the active one."""


class ComputeClusterStatus(Status):
    """Observed state of the views."""

    log: Name | None = None
    """The WaltzCluster."""


DEFINITION = Definition(
    name="ComputeCluster",
    plural="computeclusters",
    short="compute",
    spec=ComputeClusterSpec,
    status=ComputeClusterStatus,
    folder="computecluster",
    routers=("views",),
    columns=(column("Log", "string", ".status.log", priority=1),),
)
