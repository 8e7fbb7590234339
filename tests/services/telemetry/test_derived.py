"""Contexts that two ends derive alike; the numbers are fixed, because releases of both ends may differ."""

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, ParentBasedTraceIdRatio, StaticSampler, TraceIdRatioBased

from pavane.telemetry import Derivation, current_traceparent, derived, framed, link, parse_traceparent, remote_parent
from pavane.telemetry.sdk import LinkedSampler

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_context_of_a_request_id_never_changes() -> None:
    context = derived("raft", "", bytes(range(12)))
    assert (context.trace_id, context.span_id) == (0x0C8433D2F70D9D08E0C05698DBE5DA0B, 0x93AE603A946CE614)
    assert context.is_remote
    assert context.trace_flags.sampled


def test_parts_do_not_run_into_each_other() -> None:
    contexts = {
        derived("raft", "", b"ab", b"c").trace_id,
        derived("raft", "", b"a", b"bc").trace_id,
        derived("raft", "", b"abc").trace_id,
        derived("raft", "abc").trace_id,
        derived("raftabc", "").trace_id,
        derived("waltz", "", b"abc").trace_id,
    }
    assert len(contexts) == 6


def test_a_link_says_that_it_is_derived() -> None:
    context = derived("raft", "", b"id")
    made = link(context)
    assert made.context == context
    assert dict(made.attributes or {}) == {"pavane.trace.derived": True}


def test_traceparent_of_no_span_is_empty() -> None:
    assert current_traceparent() == ""


def test_traceparent_goes_there_and_back() -> None:
    context = parse_traceparent(TRACEPARENT)
    assert context is not None
    assert (context.trace_id, context.span_id) == (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    with trace.use_span(trace.NonRecordingSpan(context)):
        assert current_traceparent() == TRACEPARENT
        assert trace.get_current_span(remote_parent("")).get_span_context().is_valid is False
    assert trace.get_current_span(remote_parent(TRACEPARENT)).get_span_context() == context


def test_what_is_no_traceparent_names_nothing() -> None:
    for text in ("", "nonsense", TRACEPARENT[:-4], "00-" + "0" * 32 + "-b7ad6b7169203331-01", "\N{SNOWMAN}" * 55):
        assert parse_traceparent(text) is None


def test_many_links_of_one_cluster_are_those_made_one_by_one() -> None:
    made = Derivation("waltz", "ledger")
    assert not made.on
    for found in (made.link(framed(b"id")), made.sampled(framed(b"id"))):
        assert found is not None
        assert found.context == derived("waltz", "ledger", b"id")
        assert dict(found.attributes or {}) == {"pavane.trace.derived": True}


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_who_asks_before_making_a_span_is_told_what_the_sampler_says(
    monkeypatch: pytest.MonkeyPatch, ratio: float
) -> None:
    for by in (ParentBasedTraceIdRatio(ratio), TraceIdRatioBased(ratio), StaticSampler(Decision.RECORD_AND_SAMPLE)):
        provider = TracerProvider(sampler=LinkedSampler(by), shutdown_on_exit=False)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        made, tracer = Derivation("waltz", "ledger"), provider.get_tracer("test")
        assert made.on
        for number in range(50):
            for mark in (b"", (number * 40503 & 0xFFFF).to_bytes(2, "big")):
                found = made.link(framed(bytes([number])), mark)
                recorded = tracer.start_span("span", context=Context(), links=[found]).is_recording()
                assert (made.sampled(framed(bytes([number])), mark) is not None) == recorded
                if recorded and mark:
                    assert int.from_bytes(mark, "big") <= made.marks_max
