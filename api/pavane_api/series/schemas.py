"""Series as the REST API shows them."""

from pydantic import Field

from pavane_api.documents import Document


class SeriesMark(Document):
    """Something that happened to a pod."""

    at: int
    """When, seconds since 1970."""
    text: str
    """What, in words."""


class OneSeries(Document):
    """One number over time."""

    name: str
    """What to ask for it."""
    title: str
    """What it is, in words."""
    unit: str
    """Of the values."""
    values: list[float | None]
    """One per step; null where no pod told it."""


class ResourceSeries(Document):
    """Numbers of a resource over time."""

    from_: int = Field(alias="from")
    """Where the first step begins, seconds since 1970."""
    step: int
    """Seconds from one value to the next; more than asked for where they would be too many."""
    retention: int
    """Seconds for which numbers are kept, at most."""
    series: list[OneSeries]
    """Those asked for; all without `names`."""
    marks: list[SeriesMark]
    """Pods that started again or were replaced since `from`, oldest first."""


class SeriesLine(Document):
    """The first number of a resource over time."""

    plural: str
    """Its kind."""
    namespace: str
    """Where it is."""
    name: str
    """Its name; it may be gone since."""
    unit: str
    """Of the values."""
    values: list[float | None]
    """One per step; null where no pod told it."""


class SeriesLines(Document):
    """A line per resource."""

    from_: int = Field(alias="from")
    """Where the first step begins, seconds since 1970."""
    step: int
    """Seconds from one value to the next."""
    items: list[SeriesLine]
    """By kind, namespace and name."""
