"""Events of a resource as the REST API shows them."""

from pavane_api.documents import Document


class EventNote(Document):
    """One thing that happened, however often."""

    at: str
    """When it was seen last, RFC 3339."""
    about: str
    """Kind and name of what it is about: the resource or one of its pods."""
    type: str
    """Normal or Warning."""
    reason: str
    """Machine-readable reason."""
    message: str
    """The same in words."""
    count: int
    """How often it was seen."""


class EventNotes(Document):
    """The newest events, newest first."""

    items: list[EventNote]
    """Of the resource itself and of its pods."""
