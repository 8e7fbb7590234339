"""When a client tries again, without a loop: the time is what the test says (docs/specs/waltz.md 9.2)."""

import pytest

from pavane.waltz.core.client import (
    RETRY_SECONDS,
    RETRY_SECONDS_MAX,
    TICK_SECONDS,
    Appender,
    Done,
    Mount,
    Pending,
    Send,
)
from pavane.waltz.errors import OutcomeUnknown, RejectCode
from pavane.waltz.wire import messages as m


def sent(appender: Appender) -> list[m.AppendIdempotent]:
    return [
        output.message
        for output in appender.outputs()
        if isinstance(output, Send) and isinstance(output.message, m.AppendIdempotent)
    ]


def mounted(appender: Appender, generation: int, now: float) -> None:
    """Attach and mount."""
    appender.attached(generation, 1, now)
    [asked] = [output.message for output in appender.outputs() if isinstance(output, Send)]
    appender.received(m.HighWaterMarkResponse(asked.reqid, -1), now)
    [mount] = [output.message for output in appender.outputs() if isinstance(output, Send)]
    appender.received(m.MountResponse(mount.reqid, m.MountState.READY), now)


def append(appender: Appender, now: float) -> m.AppendIdempotent:
    appender.append(Pending(None, 0, b"data", (), (), None, now + 30.0), now)
    [message] = sent(appender)
    return message


def refuse(appender: Appender, message: m.AppendIdempotent, now: float) -> None:
    appender.received(m.Reject(message.reqid, 37, RejectCode.UNAVAILABLE, -1, 1, "it moves"), now)


@pytest.fixture
def appender() -> Appender:
    made = Appender(0, 1)
    mounted(made, 1, 0.0)
    return made


def test_a_refused_append_is_tried_again_soon_then_later_each_time(appender: Appender) -> None:
    now, waited = 10.0, []
    message = append(appender, now)
    for _ in range(6):
        refuse(appender, message, now)
        began = now
        while not (again := sent(appender)):
            due = appender.next_timer()
            assert due is not None
            now = due
            appender.handle_timer(now)
        [message] = again
        waited.append(now - began)
    assert waited == pytest.approx([RETRY_SECONDS * 2**n for n in range(4)] + [RETRY_SECONDS_MAX] * 2)
    appender.received(m.AppendAck(message.reqid, 0, 0), now)
    refuse(appender, append(appender, now), now)
    assert appender.next_timer() == pytest.approx(now + RETRY_SECONDS), "a commit begins it anew"


def test_a_new_owner_is_not_made_to_wait_for_what_the_last_one_refused(appender: Appender) -> None:
    refuse(appender, append(appender, 10.0), 10.0)
    appender.detached()
    mounted(appender, 2, 10.001)
    assert appender.mount is Mount.MOUNTED
    assert [message.reqid.generation for message in sent(appender)] == [2]


def test_an_owner_with_a_new_generation_is_not_made_to_wait_either(appender: Appender) -> None:
    refuse(appender, append(appender, 10.0), 10.0)
    appender.outputs()
    mounted(appender, 2, 10.001)
    assert [message.reqid.generation for message in sent(appender)] == [2]


def test_appends_one_after_the_other_share_a_timer(appender: Appender) -> None:
    now, fired = 10.0, 0
    for txid in range(1000):
        message = append(appender, now)
        now += 0.001
        appender.received(m.AppendAck(message.reqid, txid, 0), now)
        due = appender.next_timer()
        if due is not None and due <= now:
            fired += 1
            appender.handle_timer(now)
    assert fired <= 1.0 / TICK_SECONDS
    appender.handle_timer(now + 1.0)
    assert appender.next_timer() is None, "nothing is under way"


def test_what_became_of_an_append_is_unknown_at_once_to_a_client_that_may_not_read(appender: Appender) -> None:
    message = append(appender, 10.0)
    appender.detached()
    appender.attached(2, 2, 10.0)
    for _ in range(3):
        [asked] = [output.message for output in appender.outputs() if isinstance(output, Send)]
        if isinstance(asked, m.MountRequest):
            appender.received(m.MountResponse(asked.reqid, m.MountState.READY), 10.0)
        else:
            appender.received(m.HighWaterMarkResponse(asked.reqid, 3), 10.0)
    [lookup] = [output.message for output in appender.outputs() if isinstance(output, Send)]
    assert isinstance(lookup, m.FeedBatchRequest)
    appender.received(m.Reject(lookup.reqid, 32, RejectCode.NOT_PERMITTED, -1, -1, "no right to read"), 10.0)
    [done] = [output for output in appender.outputs() if isinstance(output, Done)]
    assert isinstance(done.result, OutcomeUnknown)
    assert done.result.reqid == message.reqid
    assert appender.mount is Mount.MOUNTED
