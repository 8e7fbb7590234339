"""Spans of a peer (docs/specs/raft.md 15.2), made from the core's events; costs nothing while tracing is off.

Requests carry no trace context. Spans link to the context derived from the request id, as the client's span does, so
that one view joins client, leader and followers.
"""

from collections.abc import Iterable, Mapping
from time import time_ns

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.semconv._incubating.attributes.messaging_attributes import MESSAGING_BATCH_MESSAGE_COUNT
from opentelemetry.trace import Link, ProxyTracerProvider, Span, SpanKind, StatusCode

from pavane.raft.core.outputs import (
    Appended,
    Apply,
    ConfigurationChanged,
    Event,
    FollowChanged,
    LeasesEnded,
    RoleChanged,
    SnapshotChanged,
    Standing,
    TransferChanged,
    UpdateDone,
    VoteGranted,
    VoteReceived,
)
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import ZERO_REQID, entry_reqid
from pavane.telemetry import derived, link

LINKS_MAX = 32  # a batch of thousands of entries must not make a span of megabytes
OPEN_APPENDS_MAX = 1024  # spans of batches that wait for the disk: STORAGE_QUEUE of 14.4


class Tracing:
    """Turns events into spans. Every method returns at once when no tracer provider is installed."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._on = not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)
        self._tracer = trace.get_tracer("pavane.raft")
        self._appends: dict[int, Span] = {}
        self._election: Span | None = None
        self._votes = 0  # of the candidacy under way
        self._follow: Span | None = None
        self._configuration: Span | None = None
        self._steps: dict[int, Span] = {}  # of it, by the index of the entry
        self._transfer: Span | None = None

    def event(self, event: Event, term: int) -> None:
        """Begin, mark or end the span that ``event`` belongs to; ``term`` is the current one."""
        if not self._on:
            return
        match event:
            case Appended():
                self._appended(event, term)
            case UpdateDone():
                self._updated(event, term)
            case RoleChanged():
                self._role(event)
            case VoteGranted(vote_term, candidate) if self._election is not None:
                self._election.add_event("vote", {"pavane.raft.term": vote_term, "pavane.raft.candidate": candidate})
            case Standing(kinds) if self._election is not None:
                self._votes = 0
                self._election.set_attribute("pavane.raft.kinds", ", ".join(map("=".join, kinds)))
            case VoteReceived():
                self._votes += 1
            case FollowChanged():
                self._followed(event, term)
            case ConfigurationChanged():
                self._configured(event, term)
            case TransferChanged():
                self._transferred(event, term)
            case SnapshotChanged():
                self._snapshot(event, term)
            case LeasesEnded():
                self._leases_ended(event, term)

    def stored(self, ticket: int) -> None:
        """End the spans of the batches that ``ticket`` made durable."""
        while self._appends and (first := next(iter(self._appends))) <= ticket:
            self._appends.pop(first).end()

    def applied(self, apply: Apply, started_ns: int, term: int) -> None:
        """Record that entries were applied."""
        if not self._on:
            return
        reqids = [entry_reqid(entry) for entry in apply.entries[:LINKS_MAX]]
        attributes = {"pavane.raft.index": apply.first + len(apply.entries) - 1}
        span = self._start("raft/apply", SpanKind.INTERNAL, reqids, term, attributes, started_ns)
        span.end()

    def close(self) -> None:
        """End what is still open."""
        alone = (self._election, self._configuration, self._transfer, self._follow)
        for span in (*self._appends.values(), *self._steps.values(), *alone):
            if span is not None:
                span.end()

    def _start(
        self,
        name: str,
        kind: SpanKind,
        reqids: Iterable[bytes],
        term: int,
        attributes: Mapping[str, str | int],
        started_ns: int | None = None,
        parent: Span | None = None,
    ) -> Span:
        links: list[Link] = [link(derived("raft", "", reqid)) for reqid in reqids if reqid != ZERO_REQID]
        return self._tracer.start_span(
            name,
            context=Context() if parent is None else trace.set_span_in_context(parent, Context()),
            kind=kind,
            links=links,
            start_time=started_ns,
            attributes={"pavane.raft.peer": self._peer, "pavane.raft.term": term, **attributes},
        )

    def _appended(self, event: Appended, term: int) -> None:
        if event.origin != "follower" or len(self._appends) >= OPEN_APPENDS_MAX:
            return
        attributes = {"pavane.raft.index": event.first + event.count - 1, MESSAGING_BATCH_MESSAGE_COUNT: event.count}
        reqids = event.reqids[:LINKS_MAX]
        self._appends[event.ticket] = self._start("raft/append", SpanKind.CONSUMER, reqids, term, attributes)

    def _updated(self, event: UpdateDone, term: int) -> None:
        started = time_ns() - int(event.seconds * 1e9)
        attributes: dict[str, str | int] = {"pavane.raft.reqid": event.reqid.hex(), "pavane.raft.index": event.index}
        span = self._start(f"raft/{event.method}", SpanKind.SERVER, (event.reqid,), term, attributes, started)
        if event.result not in ("done", "repeat"):
            span.set_status(StatusCode.ERROR, event.result)
        span.end()

    def _role(self, event: RoleChanged) -> None:
        stands = event.new in (Role.PRE_CANDIDATE, Role.CANDIDATE)
        if stands and self._election is None:
            self._election = self._start("raft/election", SpanKind.INTERNAL, (), event.term, {})
        if self._election is None:
            return
        asked_before = event.old is Role.PRE_CANDIDATE
        if event.new is Role.CANDIDATE:
            self._election.set_attribute("pavane.raft.prevote", "passed" if asked_before else "skipped")
        elif asked_before:
            self._election.set_attribute("pavane.raft.prevote", "refused")
        if not stands:
            attributes = {"pavane.raft.role": event.new.title, "pavane.raft.reason": event.reason}
            self._election.set_attributes(attributes)
            self._election.set_attributes({"pavane.raft.votes": self._votes, "pavane.raft.term": event.term})
            self._election.end()
            self._election = None

    def _configured(self, event: ConfigurationChanged, term: int) -> None:
        joint = event.configuration.transitional
        if event.what == "effective":
            if joint and self._configuration is None:
                self._configuration = self._start("raft/configuration", SpanKind.INTERNAL, (), term, {})
            if self._configuration is not None:
                name = "raft/configuration-joint" if joint else "raft/configuration-final"
                attributes = {"pavane.raft.index": event.index}
                step = self._start(name, SpanKind.INTERNAL, (), term, attributes, parent=self._configuration)
                self._steps[event.index] = step
            return
        taken_back = event.what == "rolled_back"
        # Of several that are committed at once only the last is told.
        for index in [at for at in self._steps if at == event.index or (at < event.index and not taken_back)]:
            _end(self._steps.pop(index), taken_back)
        if self._configuration is not None and taken_back == joint:
            _end(self._configuration, taken_back)
            self._configuration = None

    def _snapshot(self, event: SnapshotChanged, term: int) -> None:
        name = "raft/snapshot" if event.what == "taken" else "raft/install"
        started = time_ns() - int(event.seconds * 1e9)
        attributes: dict[str, str | int] = {"pavane.raft.index": event.index, "pavane.raft.step": event.what}
        span = self._start(name, SpanKind.INTERNAL, (), term, attributes, started)
        if event.what == "bad":
            span.set_status(StatusCode.ERROR, "the file is damaged")
        span.end()

    def _leases_ended(self, event: LeasesEnded, term: int) -> None:
        started = time_ns() - int(event.seconds * 1e9)
        attributes: dict[str, str | int] = {"pavane.raft.index": event.index, "pavane.raft.leases": event.count}
        self._start("raft/lease-expire", SpanKind.INTERNAL, (event.reqid,), term, attributes, started).end()

    def _followed(self, event: FollowChanged, term: int) -> None:
        if event.what == "begun":
            attributes = {"pavane.raft.index": event.index}
            self._follow = self._start("raft/follow", SpanKind.INTERNAL, (), term, attributes)
        elif self._follow is not None:
            self._follow.set_attributes({"pavane.raft.index": event.index, "pavane.raft.step": event.what})
            self._follow.end()
            self._follow = None

    def _transferred(self, event: TransferChanged, term: int) -> None:
        if event.result == "started":
            if self._transfer is None:
                attributes = {"pavane.raft.target": event.target}
                self._transfer = self._start("raft/transfer", SpanKind.INTERNAL, (), term, attributes)
        elif self._transfer is not None:
            if event.result == "failed":
                self._transfer.set_status(StatusCode.ERROR, "failed")
            self._transfer.end()
            self._transfer = None

    def now_ns(self) -> int:
        """Return the time for a span that is made later; 0 while tracing is off."""
        return time_ns() if self._on else 0


def _end(change: Span, taken_back: bool) -> None:
    if taken_back:
        change.set_status(StatusCode.ERROR, "rolled back")
    change.end()
