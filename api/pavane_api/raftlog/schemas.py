"""Log info and entries as the REST API shows them."""

from typing import Literal

from pydantic import Field

from pavane_api.documents import StrictDocument


class Peer(StrictDocument):
    """One member of the configuration."""

    id: str
    """Peer id, which is the pod's name."""
    url: str
    """Where it listens for peers and clients."""


class LogInfo(StrictDocument):
    """The state of the log as the leader sees it."""

    leader: str
    """Peer id of the leader."""
    term: int
    """Its term."""
    first_index: int
    """First entry that is still in the log."""
    last_index: int
    """Last entry in the leader's log."""
    commit_index: int
    """Last committed entry."""
    applied_index: int
    """Last applied entry."""
    peers: list[Peer]
    """Members; while a change of members is under way, those of both configurations."""


class LogEntry(StrictDocument):
    """One committed entry."""

    index: int
    """Position in the log, from 1."""
    type: Literal["State", "Config", "Checkpoint", "Unknown"]
    """State: a client's data. Config: a configuration. Checkpoint: a new leader's mark. Unknown: of a newer program."""
    term: int
    """Term in which it was appended."""
    request_id: str
    """The 12-byte id of the request that appended it, 24 hexadecimal digits."""
    data: str
    """The data in base64."""


class LogEntries(StrictDocument):
    """Committed entries in order."""

    items: list[LogEntry]
    """At most ``limit`` entries after ``after``."""
    next_after: int
    """Pass it as ``after`` to go on."""


class Appended(StrictDocument):
    """An acknowledged append: it is on the disks of a majority."""

    index: int
    """Position of the entry in the log."""
    request_id: str = Field(pattern="^[0-9a-f]{24}$")
    """The id under which a repetition of this request is recognised."""
