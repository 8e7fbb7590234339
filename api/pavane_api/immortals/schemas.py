"""An immortal as the REST API shows it."""

from typing import Any

from pydantic import Field

from pavane_api.documents import Document


class PeerInfo(Document):
    """Another immortal, as a coordinator sees the link to it."""

    name: str
    """Its name."""
    link: str
    """`connected`, or what keeps the link from being there."""


class CoordinatorInfo(Document):
    """One coordinator; the pods of two generations have one each."""

    pod: str
    """The pod that was asked."""
    generation: int
    """Its generation."""
    live: bool
    """Whether it leads and its links are open."""
    stage: str
    """Initialization, ReadOnly (it replays what another one writes) or ReadWrite."""
    phase: str | None = None
    """What it does at the moment, as docs/specs/ambrosia.md names it."""
    next_record: int | None = None
    """Number of the record that it writes next; absent before it leads."""
    log: int | None = None
    """Number of the log file that is written."""
    checkpoint: int | None = None
    """Number of the last checkpoint."""
    replayed_bytes: int | None = None
    """How much of the log it has replayed since it began."""
    behind_bytes: int | None = None
    """How much of the log it has not replayed yet."""
    impulses_dropped: int | None = None
    """Messages that nobody could be told of any more."""
    peers: list[PeerInfo] = Field(default_factory=list)
    """Whom it has met, by name."""


class OpenFlow(Document):
    """A handler that waits."""

    number: int
    """Flows are numbered as they begin."""
    method: str
    """What runs."""
    caller: str
    """Name of the immortal that waits for its end; empty for a request from outside, and where nobody waits."""
    attributes: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """By which the application lets people find it."""
    steps: int
    """How many steps it has asked for."""
    waits_for: list[str]
    """What it waits for, for example `call bob deposit`."""


class FoundFlows(Document):
    """Open flows that were looked for."""

    items: list[OpenFlow]
    """The oldest of them, by number."""
    found: int
    """How many there are from the first number on."""
    next_from: int | None = None
    """Where the next request goes on; absent when these are all."""


class FlowStep(Document):
    """Something that a flow asked for."""

    step: int
    """Its place in the history, from 0."""
    kind: str
    """`call`, `fork`, `start`, `sleep`, `now`, `run`, `own` (its method), `read` (its state) or `restart`."""
    target: str
    """Which other immortal; empty for itself."""
    name: str
    """Of the method, function or attribute, or for how many seconds."""
    state: str
    """`open`, `done` or `failed`."""
    result: Any = None
    """What came of it, as JSON; the beginning of the text where that is long."""
    error: str | None = None
    """How it failed."""
    arrived: int | None = None
    """Which result of the flow it was, in the order of the log."""
    due: int | None = None
    """When its time is over or the next attempt begins, in milliseconds since 1970."""
    attempts: int | None = None
    """Of a run: how many were begun."""


class FlowHistory(OpenFlow):
    """One open flow with what it has done so far."""

    version: int
    """The application's version with which it began."""
    arguments: dict[str, Any]
    """With which it began, as JSON."""
    history: list[FlowStep]
    """Its steps, at most 200 from the one that was asked for."""


class Parameter(Document):
    """A parameter of a method or query."""

    name: str
    """Its name."""
    required: bool
    """Whether it has no default."""
    kind: dict[str, Any] = Field(alias="schema")
    """JSON Schema of its values."""


class Handler(Document):
    """A method or a query."""

    name: str
    """Its name."""
    text: str
    """What it does, in the application's words."""
    flow: bool
    """Whether it may wait."""
    parameters: list[Parameter]
    """In their order."""


class ImmortalApplication(Document):
    """What the leading application says of itself."""

    name: str
    """Its name, which is its address."""
    kind: str = Field(alias="class")
    """The class that it is an object of."""
    life: str
    """fresh, replaying or primary."""
    seq: int
    """The last record of the log of which it handled a message."""
    called: int
    """Calls that it has handled since it leads."""
    failed: int
    """Handlers that ended with an exception since the process began, those of its replay among them."""
    late: int
    """Answers and results since then for which no flow waited any more."""
    flows_open: int
    """Flows under way."""
    flows_long: int = 0
    """Those whose history is longer than half of what it may be: they should begin anew, with `self.restart`."""
    flows: list[OpenFlow]
    """The oldest of them."""
    methods: list[Handler]
    """What can be called."""
    queries: list[Handler]
    """What can be asked."""


class ImmortalInfo(Document):
    """An immortal: its application and its coordinators."""

    application: ImmortalApplication | None = None
    """The application that leads; absent when none answers, or it has no such document."""
    coordinators: list[CoordinatorInfo]
    """By generation; those that answer."""
