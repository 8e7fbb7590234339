"""OTLP/HTTP trace requests, decoded into spans of the store.

The receiver takes what any OpenTelemetry exporter sends (protobuf, plain or gzip) with a token of the cluster, so that
a stranger displaces nobody's spans. Size and rate are bounded.
"""

import itertools
import re
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterable, Iterable

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from pavane.parts.rates import Bucket
from pavane_api.auth import Authority
from pavane_api.problems import BadRequest, TooLarge, TooManyRequests, Unauthenticated
from pavane_api.traces.schemas import Span, SpanLink
from pavane_api.traces.store import TraceStore

BODY_BYTES_MAX = 4 * 1024 * 1024  # exporters batch 512 spans; even large ones stay far below
SPANS_MAX = 10_000  # per request
UNDER_WAY_MAX = 16  # requests: one that waits for the store keeps all its spans in memory, whoever still waits for it
ATTRIBUTES_MAX = 64  # per span; the rest is dropped
ATTRIBUTE_CHARACTERS_MAX = 1024
LINKS_MAX = 128  # per span; a batch span links to at most 32 requests

ACCEPTED = ExportTraceServiceResponse().SerializeToString()
"""The answer to a request that was taken wholly."""

NAMESPACE_ATTRIBUTE = "k8s.namespace.name"
NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
ACCOUNT = re.compile(r"system:serviceaccount:([^:]+):[^:]+")
PATH = re.compile(r"/api/v1/namespaces/([^/]+)/")
UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"

_TRACE_ID_BYTES = 16
_SPAN_ID_BYTES = 8
_KINDS = {
    OtlpSpan.SPAN_KIND_SERVER: "SERVER",
    OtlpSpan.SPAN_KIND_CLIENT: "CLIENT",
    OtlpSpan.SPAN_KIND_PRODUCER: "PRODUCER",
    OtlpSpan.SPAN_KIND_CONSUMER: "CONSUMER",
}

Attribute = str | int | float | bool | list[str]


class Receiver:
    """Takes OTLP requests into ``store``.

    Args:
        store: Where the spans go.
        authority: Who knows the tokens.
        audience: What a token must be made for; None = nobody is asked for one.
        home: Namespace of the platform, whose programs send spans about other namespaces.
        rate: Requests taken, from all senders together.
        exports: Counts the requests by the status code of the answer.

    """

    def __init__(
        self,
        store: TraceStore,
        authority: Authority,
        audience: str | None,
        home: str,
        rate: Bucket,
        exports: Counter[int],
    ) -> None:
        self.exports = exports
        self._store = store
        self._authority = authority
        self._audience = audience
        self._home = home
        self._rate = rate
        self._under_way = 0

    async def admit(self, token: str) -> str | None:
        """Return the namespace that the sender's spans count as, None = that which each names.

        Raises ``Unauthenticated`` for a stranger, ``TooManyRequests``, and errors of the API server.
        """
        namespace = None
        if self._audience is not None:
            if not token:
                raise Unauthenticated(
                    f"Spans need a token for audience {self._audience}: "
                    f"set OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20TOKEN, with a TOKEN made by "
                    f"`kubectl create token NAME --audience {self._audience}`.",
                    headers={"WWW-Authenticate": "Bearer"},
                )
            account = ACCOUNT.fullmatch((await self._authority.identify(token, self._audience)).user)
            namespace = account.group(1) if account is not None and account.group(1) != self._home else None
        # After the token: what a stranger sends costs nobody else his turn.
        if not self._rate.take(time.monotonic()):
            raise TooManyRequests("Too many trace exports at once.", headers={"Retry-After": "1"})
        return namespace

    async def take(self, body: AsyncIterable[bytes], encoding: str, namespace: str | None) -> None:
        """Store the spans of a request that was admitted. Raises as ``decode`` does, and ``TooManyRequests``."""
        whole = bytearray()
        async for piece in body:
            whole += piece
            if len(whole) > BODY_BYTES_MAX:
                raise TooLarge(f"More than {BODY_BYTES_MAX} bytes in one request: export smaller batches.")
        if self._under_way >= UNDER_WAY_MAX:  # not of those that are still sent: a slow sender holds up nobody
            raise TooManyRequests("The store is behind with what came before.", headers={"Retry-After": "1"})
        self._under_way += 1
        try:
            spans = decode(bytes(whole), encoding)
            if namespace is not None:
                spans = [span.model_copy(update={"namespace": namespace}) for span in spans]
            await self._store.add(spans, now_ns=time.time_ns())
        finally:
            self._under_way -= 1
        self.exports[200] += 1


def decode(body: bytes, encoding: str) -> list[Span]:
    """Return the spans of an OTLP request ``body``; ``encoding`` is its Content-Encoding.

    Raises:
        BadRequest: the body is not what its headers say.
        TooLarge: it is larger, plain or unpacked, than BODY_BYTES_MAX, or has more than SPANS_MAX spans.

    """
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(_unpacked(body, encoding))
    except DecodeError as error:
        raise BadRequest("The body is not an OTLP trace request in protobuf.") from error
    spans: list[Span] = []
    for resource_spans in request.resource_spans:
        resource = _attributes(resource_spans.resource.attributes)
        service, instance = str(resource.get("service.name", "")), str(resource.get("service.instance.id", ""))
        for scope_spans in resource_spans.scope_spans:
            if len(spans) + len(scope_spans.spans) > SPANS_MAX:
                raise TooLarge(f"More than {SPANS_MAX} spans in one request: export smaller batches.")
            namespace = resource.get(NAMESPACE_ATTRIBUTE, "")
            spans += [_span(item, service, instance, namespace) for item in scope_spans.spans if _is_valid(item)]
    return spans


def _unpacked(body: bytes, encoding: str) -> bytes:
    if len(body) > BODY_BYTES_MAX:
        raise TooLarge(f"More than {BODY_BYTES_MAX} bytes in one request: export smaller batches.")
    if encoding in {"", "identity"}:
        return body
    if encoding != "gzip":
        raise BadRequest(f"Content-Encoding {encoding} is not known here: use gzip or none.")
    inflater = zlib.decompressobj(wbits=31)
    try:
        plain = inflater.decompress(body, BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise BadRequest("The body is not gzip, though its header says so.") from error
    if len(plain) > BODY_BYTES_MAX:
        raise TooLarge(f"More than {BODY_BYTES_MAX} bytes in one request: export smaller batches.")
    if not inflater.eof:
        raise BadRequest("The gzip body is cut off.")
    return plain


def _is_valid(span: OtlpSpan) -> bool:
    ids = len(span.trace_id) == _TRACE_ID_BYTES and len(span.span_id) == _SPAN_ID_BYTES
    return ids and len(span.parent_span_id) in {0, _SPAN_ID_BYTES}


def _namespace(attributes: dict[str, Attribute], of_resource: Attribute) -> str:
    """The namespace that a span is about: by attribute, or in the path of the REST request."""
    found = attributes.get(NAMESPACE_ATTRIBUTE) or of_resource
    if not found:
        in_path = PATH.match(str(attributes.get("url.path", "")))
        found = in_path.group(1) if in_path is not None else ""
    return str(found) if NAMESPACE.fullmatch(str(found)) else ""


def _printable(text: str) -> str:
    """At most ATTRIBUTE_CHARACTERS_MAX of ``text``, without what a terminal would obey."""
    text = text[:ATTRIBUTE_CHARACTERS_MAX]
    return text if text.isprintable() else "".join(each if each.isprintable() else UNPRINTABLE for each in text)


def _span(item: OtlpSpan, service: str, instance: str, namespace: Attribute) -> Span:
    failed = item.status.code == Status.STATUS_CODE_ERROR
    attributes = _attributes(item.attributes)
    return Span(
        trace_id=item.trace_id.hex(),
        span_id=item.span_id.hex(),
        parent_span_id=item.parent_span_id.hex(),
        name=_printable(item.name),
        kind=_KINDS.get(item.kind, "INTERNAL"),
        service=service,
        instance=instance,
        start_ns=item.start_time_unix_nano,
        end_ns=max(item.start_time_unix_nano, item.end_time_unix_nano),
        error=_printable(item.status.message or "failed") if failed else "",
        attributes=attributes,
        namespace=_namespace(attributes, namespace),
        links=[
            SpanLink(trace_id=link.trace_id.hex(), span_id=link.span_id.hex())
            for link in item.links[:LINKS_MAX]
            if len(link.trace_id) == _TRACE_ID_BYTES and len(link.span_id) == _SPAN_ID_BYTES
        ],
    )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Attribute]:
    items = itertools.islice(pairs, ATTRIBUTES_MAX)
    return {_printable(item.key): _value(item.value) for item in items}


def _value(value: AnyValue) -> Attribute:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_printable(str(_value(item))) for item in value.array_value.values[:ATTRIBUTES_MAX]]
    if kind == "bool_value":
        return value.bool_value
    if kind == "int_value":
        return value.int_value
    if kind == "double_value":
        return value.double_value
    text = value.string_value if kind == "string_value" else str(value).strip()
    return _printable(text)
