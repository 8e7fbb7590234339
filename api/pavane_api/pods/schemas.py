"""Pods of a resource as the REST API shows them."""

from pydantic import Field

from pavane_api.documents import Document


class PodBlocker(Document):
    """What a pod says that it waits for."""

    reason: str
    """Machine-readable reason."""
    text: str
    """The same in words."""


class Pod(Document):
    """One pod: what the cluster knows of it, and what it says on its ops port."""

    name: str
    """Its name."""
    role: str
    """What it is in its resource, for example `server`."""
    generation: int | None = None
    """The generation that it belongs to; absent for a pod that serves one generation after the other."""
    phase: str
    """Pending, Running, Succeeded, Failed, or Terminating."""
    ready: bool
    """Whether the cluster calls it Ready."""
    restarts: int
    """How often its containers have started again."""
    waiting: str | None = None
    """Why the cluster does not run it, if it does not."""
    stage: str | None = None
    """Creation, Initialization, ReadOnly or ReadWrite; absent while it does not answer, and where there are none."""
    fenced: bool = False
    """Whether it knows that a later generation has taken over."""
    progress: int | None = None
    """How far it is, in `unit`."""
    target: int | None = None
    """What its progress is measured against."""
    unit: str | None = None
    """Unit of `progress` and `target`."""
    blockers: list[PodBlocker] = Field(default_factory=list)
    """What it waits for, by its own words."""


class PodList(Document):
    """The pods of a resource, by generation and name."""

    items: list[Pod]
    """Pods of all roles and generations."""
