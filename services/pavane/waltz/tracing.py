"""Spans of a log (docs/specs/waltz.md 15): client, owner, storage nodes, readers; costs nothing while tracing is off.

No message carries a trace context. Every span links to the context derived from the cluster's name and the append's
ReqId, which all of them know, so that one view joins them.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from time import time_ns

from opentelemetry import trace
from opentelemetry.context import Context, get_current
from opentelemetry.semconv._incubating.attributes import rpc_attributes
from opentelemetry.semconv._incubating.attributes.messaging_attributes import MESSAGING_BATCH_MESSAGE_COUNT
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from pavane.telemetry import Derivation
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.storage import Record

LINKS_MAX = 32  # a batch of a thousand transactions must not make a span of megabytes
OPEN_APPENDS_MAX = 10_000  # whose arrival a server remembers; beyond, the oldest is forgotten
_REQID = struct.Struct(">I4i")  # behind its length, as it is hashed
_REQID_BYTES = 16


class Tracing:
    """Makes the spans of one program in ``cluster``; ``on`` tells whether there is anything to do."""

    def __init__(self, cluster: str) -> None:
        self._derivation = Derivation("waltz", cluster)
        self.on = self._derivation.on
        self._tracer = trace.get_tracer("pavane.waltz")
        self._arrived: dict[ReqId, int] = {}

    # -- client -------------------------------------------------------------------------------------------------

    def began(self) -> tuple[int, Span | None]:
        """Return when an append begins, 0 if it is not to be recorded, and its caller's span; ask only while ``on``."""
        context = get_current()
        caller = trace.get_current_span(context) if context else trace.INVALID_SPAN
        if caller is trace.INVALID_SPAN:
            return time_ns(), None
        return (time_ns() if caller.get_span_context().trace_flags.sampled else 0), caller

    def appended(self, caller: Span | None, began_ns: int, reqid: ReqId | None, partition: int, result: object) -> None:
        """Record an append of a client; ``result`` is the txid or the error."""
        links: Sequence[Link] = ()
        if reqid is not None:
            packed = _REQID.pack(_REQID_BYTES, *reqid)
            if caller is None and not self._derivation.keeps(packed):
                return
            links = (self._derivation.link(packed),)
        span = self._tracer.start_span(
            "waltz/append",
            context=Context() if caller is None else trace.set_span_in_context(caller, Context()),
            kind=SpanKind.CLIENT,
            links=links,
            start_time=began_ns,
            attributes={
                rpc_attributes.RPC_SYSTEM_NAME: "waltz",
                rpc_attributes.RPC_METHOD: "append",
                "pavane.waltz.partition": partition,
            },
        )
        if isinstance(result, int):
            span.set_attribute("pavane.waltz.transaction_id", result)
        else:
            span.set_status(StatusCode.ERROR, str(result))
        if reqid is not None:
            span.set_attribute("pavane.waltz.reqid", _text(reqid))
        span.end()

    def fed(self, partition: int, began_ns: int, last: int, reqids: Sequence[ReqId]) -> None:
        """Record a batch up to ``last`` that a reader of the feed has gone through."""
        self._batch("waltz/feed", SpanKind.CONSUMER, partition, began_ns, last, reqids)

    # -- server -------------------------------------------------------------------------------------------------

    def arrived(self, reqid: ReqId) -> None:
        """An append has come in."""
        if not self._derivation.keeps(_REQID.pack(_REQID_BYTES, *reqid)):
            return
        if len(self._arrived) >= OPEN_APPENDS_MAX:
            del self._arrived[next(iter(self._arrived))]
        self._arrived[reqid] = time_ns()

    def committed(self, partition: int, records: Iterable[Record]) -> None:
        """Appends are on a quorum."""
        if self._arrived:
            for record in records:
                if (began_ns := self._arrived.pop(record.reqid, None)) is not None:
                    self._served(partition, began_ns, record.reqid, {"pavane.waltz.transaction_id": record.txid}, "")

    def refused(self, reqid: ReqId, reason: str) -> None:
        """An append was not taken, or its outcome is unknown."""
        if (began_ns := self._arrived.pop(reqid, None)) is not None:
            self._served(reqid.partition, began_ns, reqid, {}, reason)

    def recovered(self, partition: int, session: int, hwm: int, seconds: float) -> None:
        """A store session is open: the end of a recovery."""
        if self.on:
            attributes = {
                "pavane.waltz.partition": partition,
                "pavane.waltz.session": session,
                "pavane.waltz.transaction_id": hwm,
            }
            began_ns = time_ns() - int(seconds * 1e9)
            self._tracer.start_span(
                "waltz/recover", context=Context(), start_time=began_ns, attributes=attributes
            ).end()

    # -- storage node -------------------------------------------------------------------------------------------

    def stored(self, partition: int, began_ns: int, records: Sequence[Record]) -> None:
        """Records are on this node's disk."""
        if records:
            reqids = [record.reqid for record in records]
            self._batch("waltz/store", SpanKind.CONSUMER, partition, began_ns, records[-1].txid, reqids)

    def links(self, reqids: Iterable[ReqId], count: int) -> list[Link]:
        """Return at most `count` links to appends, those that are sampled."""
        return self._derivation.first([_REQID.pack(_REQID_BYTES, *reqid) for reqid in reqids], count)

    def now_ns(self) -> int:
        """Return the time for a span that is made later; 0 while tracing is off."""
        return time_ns() if self.on else 0

    # -- parts --------------------------------------------------------------------------------------------------

    def _served(self, partition: int, began_ns: int, reqid: ReqId, attributes: Mapping[str, int], reason: str) -> None:
        span = self._tracer.start_span(
            "waltz/append",
            context=Context(),
            kind=SpanKind.SERVER,
            links=[self._derivation.link(_REQID.pack(_REQID_BYTES, *reqid))],
            start_time=began_ns,
            attributes={
                "pavane.waltz.partition": partition,
                "pavane.waltz.reqid": _text(reqid),
                **attributes,
            },
        )
        if reason:
            span.set_status(StatusCode.ERROR, reason)
        span.end()

    def _batch(
        self, name: str, kind: SpanKind, partition: int, began_ns: int, last: int, reqids: Sequence[ReqId]
    ) -> None:
        """Record a batch, unless none of its appends is sampled."""
        links = self.links(reqids, LINKS_MAX)
        if not links:
            return
        self._tracer.start_span(
            name,
            context=Context(),
            kind=kind,
            links=links,
            start_time=began_ns,
            attributes={
                "pavane.waltz.partition": partition,
                "pavane.waltz.transaction_id": last,
                MESSAGING_BATCH_MESSAGE_COUNT: len(reqids),
            },
        ).end()


def _text(reqid: ReqId) -> str:
    return ":".join(map(str, reqid))
