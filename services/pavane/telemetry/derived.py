"""Trace contexts that both ends derive from ids which the protocol carries anyway.

The documented messages have no room for a trace context and must not grow by a byte. So sender and receiver of one
request each link their span to the context derived from the request's id, and a trace view joins on the equal link.
"""

import hashlib
from collections.abc import Callable
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, ProxyTracerProvider, SpanContext, TraceFlags

DERIVED_ATTRIBUTE = "pavane.trace.derived"
_ROOT: Final = Context()


def derived(protocol: str, cluster: str, *ids: bytes) -> SpanContext:
    """Return the same context on both ends, from ids both ends already have (request id, sequence number, …).

    ``cluster`` must not be a secret, because the id is exported: Raft passes the empty string
    (docs/specs/raft.md 15.2).
    """
    return _context(_digest(_seed(protocol, cluster), ids))


def link(context: SpanContext) -> Link:
    """Return the span link to a derived context, marked as derived so that a reader knows where it comes from."""
    return Link(context, {DERIVED_ATTRIBUTE: True})


class Derivation:
    """Links to the contexts of one protocol and cluster, for those who make very many of them.

    It asks the sampler before there is a span, so a message that is not sampled costs one hash; while no tracer
    provider is installed, ``on`` is false and nothing is to be asked.
    """

    def __init__(self, protocol: str, cluster: str) -> None:
        provider = trace.get_tracer_provider()
        self.on = not isinstance(provider, ProxyTracerProvider)
        self._seed = _seed(protocol, cluster)
        self._keeps = _keeping(provider) if self.on else None

    def link(self, *ids: bytes) -> Link:
        """Return the link for these ids, sampled or not."""
        return link(_context(_digest(self._seed, ids)))

    def sampled(self, *ids: bytes) -> Link | None:
        """Return the link for these ids, ``None`` if a span without parent that has it would not be recorded."""
        raw = _digest(self._seed, ids)
        if self._keeps is not None and not self._keeps(int.from_bytes(raw[:16], "big") or 1):
            return None
        return link(_context(raw))


def _seed(protocol: str, cluster: str) -> "hashlib.blake2b":
    seed = hashlib.blake2b(digest_size=24, person=b"pavane-trace-v1")
    for part in (protocol.encode(), cluster.encode()):
        seed.update(len(part).to_bytes(4, "big") + part)
    return seed


def _digest(seed: "hashlib.blake2b", ids: tuple[bytes, ...]) -> bytes:
    digest = seed.copy()
    for part in ids:
        digest.update(len(part).to_bytes(4, "big") + part)
    return digest.digest()


def _context(raw: bytes) -> SpanContext:
    return SpanContext(
        trace_id=int.from_bytes(raw[:16], "big") or 1,  # all-zero ids are invalid
        span_id=int.from_bytes(raw[16:], "big") or 1,
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def _keeping(provider: trace.TracerProvider) -> Callable[[int], bool] | None:
    """Return what says whether a span without parent in a trace of that id is recorded; ``None``: every one is."""
    sampler = getattr(provider, "sampler", None)
    if sampler is None:
        return None
    if (keeps := getattr(sampler, "keeps", None)) is not None:
        return keeps  # type: ignore[no-any-return]  # of LinkedSampler
    return lambda trace_id: sampler.should_sample(_ROOT, trace_id, "").decision.is_sampled()
