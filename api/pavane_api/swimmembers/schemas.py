"""Members of a group as the REST API shows them."""

from pydantic import Field

from pavane_api.documents import Document


class GroupMember(Document):
    """One member, as the pod that was asked sees it."""

    id: int
    """Its id in the group."""
    pod: str | None = None
    """The pod of the resource that it is; absent for a foreign member."""
    foreign: bool
    """Whether it is no pod of the resource."""
    address: str | None = None
    """Where it listens, host:port; absent as long as nobody told a pod its own."""
    state: str
    """Alive or Suspect."""
    stage: str
    """ReadOnly observes, ReadWrite takes part in all, Draining is about to leave."""
    rollout: int
    """The generation of pods that it says to belong to; 0: it knows no generations."""
    incarnation: int
    """Its own number, which grows when it comes back or contradicts what is told of it."""
    meta: str | None = None
    """What it says of itself beside, as far as that has come here."""


class DeadMember(Document):
    """One member that the pod that was asked remembers as dead."""

    id: int
    """Its id in the group."""
    pod: str | None = None
    """The pod of the resource that it was; absent for a foreign member, and for a pod that is gone for good."""
    rollout: int
    """The generation of pods that it said to belong to; 0: it knew no generations."""
    incarnation: int
    """Its last number; it comes back with a greater one."""


class GroupMembers(Document):
    """The group as one pod sees it; two pods may disagree for seconds."""

    asked: str
    """The pod that was asked."""
    digest: str | None = None
    """Digest of who is there, 16 hexadecimal digits: members with the same one agree. Absent if its table is full."""
    dead: int
    """How many members it remembers as dead."""
    dead_members: list[DeadMember]
    """Those who died last, newest first; at most 100."""
    items: list[GroupMember] = Field(description="Who is alive or suspect, by id.")
