"""Spans of a log (docs/specs/waltz.md 15): client, owner, storage nodes, readers; costs nothing while tracing is off.

No message carries a trace context. Every span links to the context derived from the cluster's name and the append's
ReqId, which all of them know, so that one view joins them.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from time import time_ns
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context, get_current
from opentelemetry.semconv._incubating.attributes import rpc_attributes
from opentelemetry.semconv._incubating.attributes.messaging_attributes import MESSAGING_BATCH_MESSAGE_COUNT
from opentelemetry.trace import Link, Span, SpanKind

from pavane.telemetry import Derivation, FinishedSpans
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.storage import Record

LINKS_MAX = 32  # a batch of a thousand transactions must not make a span of megabytes
OPEN_APPENDS_MAX = 10_000  # whose arrival a server remembers; beyond, the oldest is forgotten
_REQID = struct.Struct(">I4i")  # behind its length, as it is hashed
_REQID_BYTES = 16
# Of a mark. A multiple of this odd number, nearly 65,536 / 1.618, spreads consecutive numbers evenly.
SEQ, CLIENT = 40503, 30011


class Tracing:
    """Makes the spans of one program in ``cluster``; ``on`` tells whether there is anything to do.

    An append that is not sampled pays for its mark and a comparison with ``marks_max``, which therefore are written out
    wherever appends go by: a call would cost as much again.
    """

    def __init__(self, cluster: str) -> None:
        self._derivation = Derivation("waltz", cluster)
        self._spans = FinishedSpans("pavane.waltz")
        self.on = self._derivation.on and self._spans.on
        self.marks_max = self._derivation.marks_max
        self._arrived: dict[ReqId, int] = {}

    # -- client -------------------------------------------------------------------------------------------------

    def began(self) -> tuple[int, Span | None]:
        """Return when an append begins, 0 if it is not to be recorded, and its caller's span; ask only while ``on``."""
        if not (context := get_current()):
            return time_ns(), None
        caller = trace.get_current_span(context)
        if caller is trace.INVALID_SPAN:
            return time_ns(), None
        return (time_ns() if caller.get_span_context().trace_flags.sampled else 0), caller

    def appended(self, caller: Span | None, began_ns: int, reqid: ReqId | None, partition: int, result: object) -> None:
        """Record an append of a client; ``result`` is the txid or the error.

        Where there is no caller, ask only if the mark of ``reqid`` is not above the most.
        """
        links: Sequence[Link] = ()
        if reqid is not None:
            found = self._sampled(reqid) if caller is None else self.link(reqid)
            if found is None:
                return
            links = (found,)
        attributes: dict[str, str | int] = {
            rpc_attributes.RPC_SYSTEM_NAME: "waltz",
            rpc_attributes.RPC_METHOD: "append",
            "pavane.waltz.partition": partition,
        }
        if isinstance(result, int):
            attributes["pavane.waltz.transaction_id"] = result
        if reqid is not None:
            attributes["pavane.waltz.reqid"] = _text(reqid)
        parent = None if caller is None else caller.get_span_context()
        error = "" if isinstance(result, int) else str(result) or type(result).__name__
        self._spans.add("waltz/append", SpanKind.CLIENT, began_ns, links, attributes, parent=parent, error=error)

    def fed(self, partition: int, began_ns: int, last: int, reqids: Sequence[ReqId]) -> None:
        """Record a batch up to ``last`` that a reader of the feed has gone through."""
        self._batch("waltz/feed", partition, began_ns, last, reqids)

    # -- server -------------------------------------------------------------------------------------------------

    def arrived(self, reqid: ReqId) -> None:
        """An append has come in."""
        if (reqid[3] * SEQ + reqid[0] * CLIENT) & 0xFFFF > self.marks_max or self._sampled(reqid) is None:
            return
        if len(self._arrived) >= OPEN_APPENDS_MAX:
            del self._arrived[next(iter(self._arrived))]
        self._arrived[reqid] = time_ns()

    def committed(self, partition: int, records: Iterable[Record]) -> None:
        """Appends are on a quorum."""
        if arrived := self._arrived:
            for record in [record for record in records if record[1] in arrived]:
                attributes = {"pavane.waltz.transaction_id": record.txid}
                self._served(partition, arrived.pop(record.reqid), record.reqid, attributes, "")

    def refused(self, reqid: ReqId, reason: str) -> None:
        """An append was not taken, or its outcome is unknown."""
        if (began_ns := self._arrived.pop(reqid, None)) is not None:
            self._served(reqid.partition, began_ns, reqid, {}, reason or "refused")

    def recovered(self, partition: int, session: int, hwm: int, seconds: float) -> None:
        """A store session is open: the end of a recovery."""
        if self.on:
            attributes = {
                "pavane.waltz.partition": partition,
                "pavane.waltz.session": session,
                "pavane.waltz.transaction_id": hwm,
            }
            began_ns = time_ns() - int(seconds * 1e9)
            tracer = trace.get_tracer("pavane.waltz")
            tracer.start_span("waltz/recover", context=Context(), start_time=began_ns, attributes=attributes).end()

    # -- storage node -------------------------------------------------------------------------------------------

    def stored(self, partition: int, began_ns: int, records: Sequence[Record]) -> None:
        """Records are on this node's disk."""
        if records:
            self._batch("waltz/store", partition, began_ns, records[-1].txid, [record[1] for record in records])

    def links(self, reqids: Iterable[ReqId], count: int) -> list[Link]:
        """Return at most `count` links to appends, those that are sampled."""
        most = self.marks_max
        near = (reqid for reqid in reqids if (reqid[3] * SEQ + reqid[0] * CLIENT) & 0xFFFF <= most)
        return list(islice(filter(None, map(self._sampled, near)), count))

    def now_ns(self) -> int:
        """Return the time for a span that is made later; 0 while tracing is off."""
        return time_ns() if self.on else 0

    # -- parts --------------------------------------------------------------------------------------------------

    def link(self, reqid: ReqId) -> Link:
        """Return the link of an append, sampled or not."""
        return self._derivation.link(*_named(reqid))

    def _sampled(self, reqid: ReqId) -> Link | None:
        return self._derivation.sampled(*_named(reqid))

    def _served(self, partition: int, began_ns: int, reqid: ReqId, attributes: Mapping[str, int], reason: str) -> None:
        all_attributes: dict[str, Any] = {
            "pavane.waltz.partition": partition,
            "pavane.waltz.reqid": _text(reqid),
            **attributes,
        }
        self._spans.add("waltz/append", SpanKind.SERVER, began_ns, (self.link(reqid),), all_attributes, error=reason)

    def _batch(self, name: str, partition: int, began_ns: int, last: int, reqids: Sequence[ReqId]) -> None:
        """Record a batch, unless none of its appends is sampled."""
        if links := self.links(reqids, LINKS_MAX):
            attributes = {
                "pavane.waltz.partition": partition,
                "pavane.waltz.transaction_id": last,
                MESSAGING_BATCH_MESSAGE_COUNT: len(reqids),
            }
            self._spans.add(name, SpanKind.CONSUMER, began_ns, links, attributes)


def _named(reqid: ReqId) -> tuple[bytes, bytes]:
    """Return what is hashed, and the mark."""
    mark = (reqid[3] * SEQ + reqid[0] * CLIENT) & 0xFFFF
    return _REQID.pack(_REQID_BYTES, *reqid), mark.to_bytes(2, "big")


def _text(reqid: ReqId) -> str:
    return ":".join(map(str, reqid))
