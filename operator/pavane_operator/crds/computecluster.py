"""`ComputeCluster`: SQL views over a log, kept up to date (docs/specs/operator.md 1.8)."""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from pavane_operator.crds.base import (
    MAP_MAX_ENTRIES,
    NO_DEFAULT_KEY,
    Mark,
    Model,
    Name,
    ResourceName,
    marked,
    rule,
    rules,
)
from pavane_operator.crds.common import CommonSpec, ResourceRequirements
from pavane_operator.crds.descriptor import Definition, column
from pavane_operator.crds.rollout import LAG_MAX, BakedRollout, CaughtUpSpec
from pavane_operator.crds.status import Status
from pavane_operator.crds.values import Duration, Quantity

SCRIPT_MAX_CHARACTERS = 65_536
SCRIPTS_MAX = 32
PARTITION_MAX = 4095
REPLICAS_MAX = 8
EXECUTORS_MAX = 64
CORES_MAX = 16
CHECKPOINT_MAX_CHARACTERS = 1024
LAG_DEFAULT = 10
"""Ticks that a successor may lack: it takes them in one step behind the fence."""

COMPUTE_REQUESTS: dict[str, Quantity] = {"cpu": "100m", "memory": "256Mi"}
"""Enough for light load with engine Plain. A released default never changes: it would roll every resource."""


class ComputeResources(ResourceRequirements):
    """Computing resources of a pod that computes."""

    requests: dict[str, Quantity] | None = Field(
        default=COMPUTE_REQUESTS, max_length=MAP_MAX_ENTRIES, json_schema_extra=marked(Mark.POD)
    )
    """What the scheduler reserves."""


class SqlEngine(StrEnum):
    """What evaluates the SQL."""

    PLAIN = "Plain"
    SPARK = "Spark"


class SparkMaster(StrEnum):
    """Where Spark evaluates."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"


class SparkExecutors(Model):
    """Pods in which Spark evaluates."""

    instances: int = Field(default=2, ge=1, le=EXECUTORS_MAX, json_schema_extra=marked(Mark.POD))
    """How many there are."""
    cores: int = Field(default=1, ge=1, le=CORES_MAX, json_schema_extra=marked(Mark.POD))
    """What each one asks for, and how many tasks it runs at once."""
    memory: Quantity = Field(
        default="1Gi",
        json_schema_extra=marked(
            Mark.POD,
            **rules(
                rule(
                    "quantity(string(self)).compareTo(quantity('512Mi')) >= 0",
                    "executors.memory must be at least 512Mi",
                )
            ),
        ),
    )
    """Heap of each one, at least 512Mi. Spark asks for a tenth more for its pod, at least 384Mi."""


class SparkSpec(Model):
    """Where Spark evaluates, with engine Spark."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("self.master == 'kubernetes' || !has(self.executors)", "executors need master kubernetes")
        )
    )

    master: SparkMaster = Field(default=SparkMaster.LOCAL, json_schema_extra=marked(Mark.POD))
    """`local`: in the pod itself; `kubernetes`: in pods that Spark makes, the executors."""
    executors: SparkExecutors | None = Field(default=None, json_schema_extra=marked(Mark.POD))
    """Their number and size. Default: two with one core and 1Gi each."""
    checkpoint: str | None = Field(
        default=None, min_length=1, max_length=CHECKPOINT_MAX_CHARACTERS, json_schema_extra=marked(Mark.POD)
    )
    """Where the state of views is kept: a folder of driver and executors, or a URL that Spark's Hadoop client reads.
    Each pod has a part of its own. Default: the driver's memory, from the log at each start."""


class WaltzClusterRef(Model):
    """A WaltzCluster in the same namespace."""

    name: ResourceName = Field(json_schema_extra=marked(Mark.POD))
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


class ComputeRollout(BakedRollout):
    """How a new generation becomes the active one, and your decisions about the current attempt."""

    caught_up: ComputeCaughtUp = Field(default_factory=ComputeCaughtUp)
    """When a generation counts as caught up."""


class ComputeClusterSpec(CommonSpec):
    """SQL views over a log. A new generation builds them beside the old one and writes from one fenced moment on."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("self.engine == 'Spark' || !has(self.spark)", "spark needs engine Spark"),
            rule(
                "self.engine != 'Spark' || !has(self.rollout.bake)",
                "rollout.bake is not available with engine Spark yet: remove it, undo rolls out anew",
            ),
        )
    )

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
    """`Plain`: DuckDB; `Spark`: Spark, which the image must have."""
    spark: SparkSpec | None = Field(default=None, json_schema_extra=marked(Mark.POD))
    """Where Spark evaluates; only with engine Spark. Default: in the pod itself."""
    replicas: int = Field(default=0, ge=0, le=REPLICAS_MAX, json_schema_extra=marked(Mark.POD))
    """Pods that compute, each of them all views; one more tells them what. 0: a single pod does all of it."""
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
    """Computing resources of a pod that computes."""
    rollout: ComputeRollout = Field(default_factory=ComputeRollout)
    """How a new generation becomes the active one."""

    @property
    def executors(self) -> SparkExecutors | None:
        """The executors of Spark; None where it evaluates in the pod itself."""
        if self.spark is None or self.spark.master is not SparkMaster.KUBERNETES:
            return None
        return self.spark.executors or SparkExecutors()


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
    refers=(("spec.waltzClusterRef.name", "WaltzCluster"),),
    routers=("views",),
    columns=(column("Log", "string", ".status.log", priority=1),),
)
