"""RaftClusters as the REST API shows and takes them: the custom resource itself."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pavane_operator.crds.raftcluster import RaftClusterSpec, RaftClusterStatus


class Document(BaseModel):
    """camelCase outside, snake_case inside."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True)


class RaftCluster(Document):
    """The custom resource. The cluster validates it, so that REST and kubectl refuse the same in the same words."""

    api_version: Literal["pavane.dev/v1alpha1"] = "pavane.dev/v1alpha1"
    """Group and version."""
    kind: Literal["RaftCluster"] = "RaftCluster"
    """Kind of the resource."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Name, namespace, labels, annotations and what the server adds."""
    spec: RaftClusterSpec
    """What the user wants."""
    status: RaftClusterStatus | None = None
    """What is known of it; ignored in requests."""


class RaftClusterList(Document):
    """One page of a list."""

    items: list[RaftCluster]
    """Sorted by namespace and name."""
    continue_: str | None = Field(None, alias="continue")
    """Pass it as ``continue`` to get the next page; absent on the last one."""
    resource_version: str
    """Where a watch that shall miss nothing begins."""
