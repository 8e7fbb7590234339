"""Spans of immortals and coordinators (docs/specs/ambrosia.md 19); costs nothing while tracing is off.

No message carries a trace context. All who see a call link to the context derived from caller, callee and call number,
and whoever handles a request from outside to the one of the request's token, so that one view joins them.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from time import time_ns
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context, get_current
from opentelemetry.semconv._incubating.attributes import rpc_attributes
from opentelemetry.semconv._incubating.attributes.messaging_attributes import MESSAGING_BATCH_MESSAGE_COUNT
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from pavane.ambrosia.wire.batches import calls_of
from pavane.ambrosia.wire.messages import RpcKind, call_of
from pavane.telemetry import Derivation, framed
from pavane.wire import RemoteProtocolError

LINKS_MAX = 32  # a record of thousands of calls must not make a span of megabytes
CALLS_OPEN_MAX = 10_000  # with a span; of further ones only the receiver tells
REPLAY: Final = "pavane.replay"


class _Tracing:
    """What both have: ``name`` is the instance's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._derivation = Derivation("ambrosia", "")
        self.on = self._derivation.on
        self._tracer = trace.get_tracer("pavane.ambrosia")

    def _start(
        self,
        name: str,
        kind: SpanKind,
        links: Sequence[Link],
        parent: Context | None = None,
        attributes: Mapping[str, str | int] | None = None,
        began_ns: int | None = None,
    ) -> Span:
        return self._tracer.start_span(
            name,
            context=Context() if parent is None else parent,
            kind=kind,
            links=links,
            start_time=began_ns,
            attributes={"pavane.ambrosia.instance": self._name, **(attributes or {})},
        )


def _call_ids(caller: str, callee: str, number: int) -> bytes:
    return framed(caller.encode(), callee.encode(), number.to_bytes(8, "little", signed=True))


class EngineTracing(_Tracing):
    """Spans of one immortal. Who waits for an answer is named by ``token`` or by ``sender`` and ``number``."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._calls: dict[int, Span] = {}
        self._restored_ns = 0
        self._replayed = 0
        self._replayed_links: deque[Link] = deque(maxlen=LINKS_MAX)

    def request(self, title: str, token: str) -> Span | None:
        """Begin the span of a request from outside, within the caller's."""
        context = get_current()
        ids = framed(self._name.encode(), token.encode())
        within = trace.get_current_span(context).get_span_context().is_valid
        found = self._derivation.link(ids) if within else self._derivation.sampled(ids)
        if found is None:
            return None
        attributes = {rpc_attributes.RPC_SYSTEM_NAME: "ambrosia", rpc_attributes.RPC_METHOD: title}
        return self._start("ambrosia/request", SpanKind.CLIENT, (found,), context, attributes)

    def handle(
        self, title: str, token: str, sender: str, number: int, cause: Span | None, *, resumed: bool = False
    ) -> Span | None:
        """Begin the span of a handler or flow; ``None`` if nothing says what it belongs to, or it is not sampled."""
        attributes: dict[str, str | int] = {rpc_attributes.RPC_METHOD: title}
        if resumed:
            attributes[REPLAY] = True
        if cause is not None:
            return self._start("ambrosia/handle", SpanKind.SERVER, (), _within(cause), attributes)
        found = self._origin(token, sender, number)
        return None if found is None else self._start("ambrosia/handle", SpanKind.SERVER, (found,), None, attributes)

    def joined(self, span: Span, token: str) -> None:
        """Another request waits for the same flow."""
        found = self._derivation.link(framed(self._name.encode(), token.encode()))
        span.add_link(found.context, found.attributes)

    def call(self, span: Span, callee: str, title: str, number: int, *, resumed: bool = False) -> None:
        """Begin the span of a call that the flow of ``span`` makes."""
        if len(self._calls) < CALLS_OPEN_MAX:
            attributes: dict[str, str | int] = {
                rpc_attributes.RPC_SYSTEM_NAME: "ambrosia",
                rpc_attributes.RPC_METHOD: title,
                "pavane.ambrosia.callee": callee,
                "pavane.ambrosia.sequence_id": number,
            }
            if resumed:
                attributes[REPLAY] = True
            found = self._derivation.link(_call_ids(self._name, callee, number))
            self._calls[number] = self._start("ambrosia/call", SpanKind.CLIENT, (found,), _within(span), attributes)

    def answered(self, number: int, failed: bool) -> None:
        """End the span of a call."""
        if (span := self._calls.pop(number, None)) is not None:
            ended(span, "the callee raised" if failed else "")

    def restored(self) -> None:
        """A checkpoint was read: what follows is a replay."""
        self._restored_ns = time_ns()

    def replayed(self, token: str, sender: str, number: int) -> None:
        """A message was handled that had been handled before."""
        self._replayed += 1
        if (found := self._origin(token, sender, number)) is not None:
            self._replayed_links.append(found)

    def primary(self) -> None:
        """The replay has ended."""
        if self._replayed:
            attributes: dict[str, str | int] = {REPLAY: True, MESSAGING_BATCH_MESSAGE_COUNT: self._replayed}
            began_ns = self._restored_ns or None
            links = tuple(self._replayed_links)
            self._start("ambrosia/replay", SpanKind.INTERNAL, links, None, attributes, began_ns).end()
        self._replayed = 0
        self._replayed_links.clear()

    def close(self) -> None:
        """End what nobody will answer in this life."""
        for span in self._calls.values():
            span.end()
        self._calls.clear()

    def _origin(self, token: str, sender: str, number: int) -> Link | None:
        if number >= 0:
            return self._derivation.sampled(_call_ids(sender, self._name, number))
        return self._derivation.sampled(framed(self._name.encode(), token.encode())) if token else None


class CoordinatorTracing(_Tracing):
    """Spans of one coordinator, of the calls and answers that it sees go by."""

    def logged(self, body: bytes, began_ns: int) -> None:
        """A record is durable."""
        links, count = self._links(body, self._name)
        if links:
            attributes = {MESSAGING_BATCH_MESSAGE_COUNT: count}
            self._start("ambrosia/log", SpanKind.CONSUMER, links, None, attributes, began_ns).end()

    def sent(self, peer: str, data: bytes) -> None:
        """Bytes were given to the stream to ``peer``."""
        links, count = self._links(data, peer)
        if links:
            attributes: dict[str, str | int] = {MESSAGING_BATCH_MESSAGE_COUNT: count, "pavane.ambrosia.peer": peer}
            self._start("ambrosia/send", SpanKind.PRODUCER, links, None, attributes).end()

    def now_ns(self) -> int:
        """Return the time for a span that is made later; 0 while tracing is off."""
        return time_ns() if self.on else 0

    def _links(self, data: bytes, receiver: str) -> tuple[list[Link], int]:
        """Return links to the sampled calls and answers in ``data`` on their way to ``receiver``, and how many."""
        links: list[Link] = []
        count = 0
        try:
            for message in calls_of(data):
                count += 1
                if len(links) < LINKS_MAX and (call := call_of(message.data)) is not None:
                    kind, sender, number = call
                    ends = (sender, receiver) if kind is RpcKind.CALL else (receiver, sender)
                    if (found := self._derivation.sampled(_call_ids(*ends, number))) is not None:
                        links.append(found)
        except RemoteProtocolError:
            pass  # what an application wrote wrongly is its receiver's to refuse
        return links, count


def ended(span: Span, error: str = "") -> None:
    """End a span, as a failed one if there is an ``error``."""
    if error:
        span.set_status(StatusCode.ERROR, error)
    span.end()


def _within(span: Span) -> Context:
    return trace.set_span_in_context(span, Context())
