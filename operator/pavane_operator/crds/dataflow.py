"""`Dataflow`: a script of SQL views that a ComputeCluster keeps up to date (docs/specs/operator.md 1.8)."""

from pydantic import Field

from pavane_operator.crds.base import Count, Mark, Model, Name, ResourceName, Text, marked
from pavane_operator.crds.computecluster import SCRIPT_MAX_CHARACTERS
from pavane_operator.crds.descriptor import Described, column
from pavane_operator.crds.status import CONDITIONS_MAX_ITEMS, Condition, StatusModel, StoredStatus

VIEWS_MAX_ITEMS = 32
COLUMNS_MAX_ITEMS = 512


class ComputeClusterRef(Model):
    """A ComputeCluster in the same namespace."""

    name: ResourceName = Field(json_schema_extra=marked(Mark.CONTROL))
    """Its name."""


class DataflowSpec(Model):
    """A script of SQL views. Its ComputeCluster keeps them up to date; a changed script is a new generation of it."""

    compute_cluster_ref: ComputeClusterRef
    """The ComputeCluster that keeps the views."""
    script: str = Field(min_length=1, max_length=SCRIPT_MAX_CHARACTERS, json_schema_extra=marked(Mark.CONTROL))
    """`CREATE TABLE …; CREATE MATERIALIZED VIEW …;`. The views of a refused script stay as they were."""


class DataflowColumn(StatusModel):
    """A column of a view."""

    name: Name
    """Its name."""
    type: Name
    """Its SQL type."""


class DataflowView(StatusModel):
    """A view of the script, and its progress."""

    name: Name
    """Its name."""
    columns: list[DataflowColumn] = Field(default_factory=list, max_length=COLUMNS_MAX_ITEMS)
    """Its columns."""
    frontier: Count | None = None
    """The first tick at which it is not final; absent until it is built."""
    lag: Count | None = None
    """Number of ticks that it lacks."""
    failure: Text | None = None
    """Why it no longer changes."""


class DataflowStatus(StoredStatus):
    """Progress of the views. Its numbers are a few seconds old."""

    observed_generation: Count | None = None
    """metadata.generation of the spec that this status describes."""
    views: list[DataflowView] = Field(
        default_factory=list,
        max_length=VIEWS_MAX_ITEMS,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """The views of the script that the ComputeCluster has."""
    bad_rows: Count | None = None
    """Number of rows that its tables could not read."""
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=CONDITIONS_MAX_ITEMS,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """Ready: the script is right and the ComputeCluster gets it. UpToDate: its views have all rows."""


DEFINITION = Described(
    name="Dataflow",
    plural="dataflows",
    short="df",
    spec=DataflowSpec,
    status=DataflowStatus,
    folder="dataflow",
    refers=(("spec.computeClusterRef.name", "ComputeCluster"),),
    columns=(
        column("Cluster", "string", ".spec.computeClusterRef.name"),
        column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
        column("UpToDate", "string", '.status.conditions[?(@.type=="UpToDate")].reason'),
        column("BadRows", "integer", ".status.badRows"),
    ),
)
