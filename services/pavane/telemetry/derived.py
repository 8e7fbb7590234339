"""Trace contexts that both ends derive from ids which the protocol carries anyway.

The documented messages have no room for a trace context and must not grow by a byte. So sender and receiver of one
request each link their span to the context derived from the request's id, and a trace view joins on the equal link.
"""

import hashlib

from opentelemetry.trace import Link, SpanContext, TraceFlags

DERIVED_ATTRIBUTE = "pavane.trace.derived"


def derived(protocol: str, cluster: str, *ids: bytes) -> SpanContext:
    """Return the same context on both ends, from ids both ends already have (request id, sequence number, …).

    ``cluster`` must not be a secret, because the id is exported: Raft passes the empty string
    (docs/specs/raft.md 15.2).
    """
    digest = hashlib.blake2b(digest_size=24, person=b"pavane-trace-v1")
    for part in (protocol.encode(), cluster.encode(), *ids):
        digest.update(len(part).to_bytes(4, "big") + part)
    raw = digest.digest()
    return SpanContext(
        trace_id=int.from_bytes(raw[:16], "big") or 1,  # all-zero ids are invalid
        span_id=int.from_bytes(raw[16:], "big") or 1,
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def link(context: SpanContext) -> Link:
    """Return the span link to a derived context, marked as derived so that a reader knows where it comes from."""
    return Link(context, {DERIVED_ATTRIBUTE: True})
