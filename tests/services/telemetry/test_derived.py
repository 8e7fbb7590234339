"""Contexts that two ends derive alike; the numbers are fixed, because releases of both ends may differ."""

from opentelemetry import trace

from pavane.telemetry import current_traceparent, derived, link, parse_traceparent, remote_parent

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_context_of_a_request_id_never_changes() -> None:
    context = derived("raft", "", bytes(range(12)))
    assert (context.trace_id, context.span_id) == (0x0C8433D2F70D9D0879584498DBE5DA0B, 0x93AE603A946CE614)
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
