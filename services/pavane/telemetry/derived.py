"""Trace contexts that both ends derive from ids which the protocol carries anyway.

The documented messages have no room for a trace context and must not grow by a byte. So sender and receiver of one
request each link their span to the context derived from the request's id, and a trace view joins on the equal link.
"""

import hashlib
from typing import Any, Final
from zlib import crc32

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, ProxyTracerProvider, SpanContext, TraceFlags

DERIVED_ATTRIBUTE = "pavane.trace.derived"
_ROOT: Final = Context()
_CHECKSUM_MAX = (1 << 32) - 1


def derived(protocol: str, cluster: str, *ids: bytes) -> SpanContext:
    """Return the same context on both ends, from ids both ends already have (request id, sequence number, …).

    ``cluster`` must not be a secret, because the id is exported: Raft passes the empty string
    (docs/specs/raft.md 15.2).
    """
    return _context(_raw(_seed(protocol, cluster), _checksum(protocol, cluster), framed(*ids)))


def link(context: SpanContext) -> Link:
    """Return the span link to a derived context, marked as derived so that a reader knows where it comes from."""
    return Link(context, {DERIVED_ATTRIBUTE: True})


def framed(*ids: bytes) -> bytes:
    """Return ids as they are hashed: each behind its length in four bytes, big-endian."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in ids)


class Derivation:
    """Links to the contexts of one protocol and cluster, for those who make very many of them.

    It asks the sampler before there is a span; where that is a ratio, a message that is not sampled costs a checksum,
    which is a tenth of the hash. While no tracer provider is installed, ``on`` is false and nothing is to be asked. Ids
    are given as ``framed`` makes them.

    A protocol whose ids are numbers gives a ``mark`` with them: two bytes that it computes from the numbers, evenly
    spread. They take the place of the checksum, so that it need not ask about ids whose mark is above ``marks_max``.
    """

    def __init__(self, protocol: str, cluster: str) -> None:
        provider = trace.get_tracer_provider()
        self.on = not isinstance(provider, ProxyTracerProvider)
        self._seed = _seed(protocol, cluster)
        self._checksum = _checksum(protocol, cluster)
        sampler = getattr(provider, "sampler", None)
        self._sampler: Any = sampler
        # The judge of traces without parent has no public name; where it is a ratio, a comparison says as much.
        root = getattr(sampler, "by", sampler)
        bound = getattr(getattr(root, "_root", root), "bound", None)
        self._bound = _bound_bytes(bound) if isinstance(bound, int) else None
        self._most = bound >> 32 if isinstance(bound, int) else _CHECKSUM_MAX
        self.marks_max = self._most >> 16

    def link(self, ids: bytes, mark: bytes = b"") -> Link:
        """Return the link for these ids, sampled or not."""
        return link(_context(_raw(self._seed, self._checksum, ids, mark)))

    def sampled(self, ids: bytes, mark: bytes = b"") -> Link | None:
        """Return the link for these ids, ``None`` if a span without parent that has it would not be recorded."""
        if not mark and crc32(ids, self._checksum) > self._most:
            return None
        raw = _raw(self._seed, self._checksum, ids, mark)
        return link(_context(raw)) if self._judged(raw) else None

    def _judged(self, raw: bytes) -> bool:
        # The ratio sampler compares the 64 low bits of the trace id, too.
        return raw[8:16] < self._bound if self._bound is not None else self._asked(raw)

    def _asked(self, raw: bytes) -> bool:
        if self._sampler is None:
            return True
        decision = self._sampler.should_sample(_ROOT, int.from_bytes(raw[:16], "big") or 1, "").decision
        return bool(decision.is_sampled())


def _bound_bytes(bound: int) -> bytes:
    """Return what eight bytes are compared with; nine bytes are more than all of them."""
    return bound.to_bytes(8, "big") if bound < 1 << 64 else b"\xff" * 9


def _checksum(protocol: str, cluster: str) -> int:
    return crc32(framed(protocol.encode(), cluster.encode()))


def _raw(seed: "hashlib.blake2b", checksum: int, ids: bytes, mark: bytes = b"") -> bytes:
    """Return trace id and span id. Mark or checksum, which are cheap, are where a ratio is compared with a trace id."""
    digest = seed.copy()
    digest.update(ids)
    raw = digest.digest()
    judged = mark or crc32(ids, checksum).to_bytes(4, "big")
    return raw[:8] + judged + raw[8 + len(judged) :]


def _seed(protocol: str, cluster: str) -> "hashlib.blake2b":
    seed = hashlib.blake2b(digest_size=24, person=b"pavane-trace-v1")
    seed.update(framed(protocol.encode(), cluster.encode()))
    return seed


def _context(raw: bytes) -> SpanContext:
    return SpanContext(
        trace_id=int.from_bytes(raw[:16], "big") or 1,  # all-zero ids are invalid
        span_id=int.from_bytes(raw[16:], "big") or 1,
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
