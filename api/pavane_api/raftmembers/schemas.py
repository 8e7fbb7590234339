"""Members of a cluster as the REST API shows them."""

from pydantic import Field

from pavane_api.documents import StrictDocument


class Member(StrictDocument):
    """One member, by its own words and the leader's."""

    id: str
    """Peer id, which is the pod's name."""
    url: str
    """Where it listens for peers and clients."""
    old: bool = False
    """Whether a change of members under way takes it out."""
    role: str | None = None
    """What it says it is, for example Leader or Follower; absent when it does not answer."""
    kind: str = "unknown"
    """The program it runs, as the leader knows: ours, js or unknown."""
    term: int | None = None
    """Its term."""
    last_index: int | None = None
    """Last entry in its log."""
    applied_index: int | None = None
    """Last entry that it has applied."""
    lag: int | None = None
    """Entries of the leader's log that it is not known to hold."""


class Members(StrictDocument):
    """All members."""

    leader: str
    """Peer id of the leader."""
    changing: bool
    """Whether a change of members is under way."""
    items: list[Member]
    """In the order of the configuration."""


class TransferRequest(StrictDocument):
    """Who shall lead."""

    to: str | None = Field(None, max_length=253)
    """Peer id of a member; absent: the best."""


class Leader(StrictDocument):
    """Who leads now."""

    leader: str
    """Its peer id."""
