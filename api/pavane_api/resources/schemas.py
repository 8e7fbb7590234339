"""Custom resources as the REST API shows and takes them."""

from typing import Any, Literal

from pydantic import Field, create_model

from pavane_api.documents import Document
from pavane_operator.crds.descriptor import Described


class CustomResource(Document):
    """The custom resource. The cluster validates it, so that REST and kubectl refuse the same in the same words."""

    api_version: Literal["pavane.dev/v1alpha1"] = "pavane.dev/v1alpha1"
    """Group and version."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Name, namespace, labels, annotations and what the server adds."""


class Page(Document):
    """One page of a list."""

    continue_: str | None = Field(None, alias="continue")
    """Pass it as ``continue`` to get the next page; absent on the last one."""
    resource_version: str
    """Where a watch that shall miss nothing begins."""


def document_of(kind: Described) -> type[CustomResource]:
    """Return the model of a resource of this kind."""
    fields: dict[str, Any] = {
        "kind": (Literal[kind.name], Field(kind.name, description="Kind of the resource.")),
        "spec": (kind.spec, Field(description="What the user wants.")),
        "status": (kind.status | None, Field(None, description="What is known of it; ignored in requests.")),
    }
    return create_model(kind.name, __base__=CustomResource, __doc__=CustomResource.__doc__, **fields)


def page_of(document: type[CustomResource]) -> type[Page]:
    """Return the model of a page of resources."""
    fields: dict[str, Any] = {"items": (list[document], Field(description="Sorted by namespace and name."))}  # type: ignore[valid-type]
    return create_model(f"{document.__name__}List", __base__=Page, __doc__=Page.__doc__, **fields)
