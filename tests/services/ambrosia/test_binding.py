"""Every message in every state of the binding (docs/specs/ambrosia.md 18.2)."""

import pytest

from pavane.ambrosia.core.binding import (
    BecamePrimary,
    Binding,
    CheckpointDue,
    Event,
    FirstStart,
    Life,
    Received,
    Restore,
    Upgrade,
)
from pavane.ambrosia.wire.messages import (
    OUR_INITIAL_MESSAGE,
    PROGRESS,
    Call,
    RpcType,
    Type,
    attach_to,
    batch,
    checkpoint,
    frame,
    incoming,
    outgoing,
)
from pavane.ambrosia.wire.primitives import i64
from pavane.ambrosia.wire.records import Header, checkpoint_record, control_record, xxh64
from pavane.wire import LocalProtocolError, RemoteProtocolError

COMMITTER = -5
FORK = incoming(Call(7, RpcType.FORK, b"AB"))


def record(seq: int, *messages: bytes) -> bytes:
    body = b"".join(messages)
    return Header(COMMITTER, 24 + len(body), xxh64(body), seq).encode() + body


def events(binding: Binding, data: bytes = b"") -> list[Event]:
    binding.feed(data)
    found = []
    while (event := binding.next()) is not None:
        found.append(event)
    return found


def primary() -> Binding:
    binding = Binding("alice")
    events(binding, control_record(COMMITTER, Type.TAKE_BECOMING_PRIMARY_CHECKPOINT))
    binding.checkpoint(b"")
    events(binding, record(0, OUR_INITIAL_MESSAGE))
    binding.take()
    return binding


def replaying() -> Binding:
    binding = Binding("alice")
    events(binding, checkpoint_record(COMMITTER, checkpoint(3)) + b"abc")
    return binding


def fresh() -> Binding:
    return Binding("alice")


STATES = {Life.FRESH: fresh, Life.REPLAYING: replaying, Life.PRIMARY: primary}


def control(type_: Type, data: bytes = b"") -> bytes:
    return record(-1, frame(type_, data))


LEGAL = {
    (Type.TAKE_BECOMING_PRIMARY_CHECKPOINT, Life.FRESH): CheckpointDue,
    (Type.TAKE_CHECKPOINT, Life.FRESH): CheckpointDue,
    (Type.TAKE_CHECKPOINT, Life.REPLAYING): CheckpointDue,
    (Type.TAKE_CHECKPOINT, Life.PRIMARY): CheckpointDue,
    (Type.TAKE_BECOMING_PRIMARY_CHECKPOINT, Life.REPLAYING): CheckpointDue,
    (Type.BECOMING_PRIMARY, Life.REPLAYING): BecamePrimary,
    (Type.UPGRADE_TAKE_CHECKPOINT, Life.REPLAYING): Upgrade,
    (Type.UPGRADE_SERVICE, Life.REPLAYING): Upgrade,
}


@pytest.mark.parametrize("life", STATES)
@pytest.mark.parametrize("type_", sorted(set(Type) - {Type.RPC, Type.PING, Type.PING_RETURN, Type.CHECKPOINT}))
def test_every_control_message_in_every_state(type_: Type, life: Life) -> None:
    binding = STATES[life]()
    if type_ in {Type.RPC_BATCH, Type.COUNT_REPLAYABLE_RPC_BATCH}:
        data = batch([FORK, FORK]) if type_ == Type.RPC_BATCH else frame(type_, b"\4\4" + FORK + FORK)
        if life is not Life.FRESH:
            assert [type(each) for each in events(binding, record(1, data))] == [Received, Received]
            return
        message = record(1, data)
    else:
        message = control(type_)
    if (expected := LEGAL.get((type_, life))) is not None:
        assert isinstance(events(binding, message)[0], expected)
        return
    with pytest.raises(RemoteProtocolError, match=f"{int(type_)} after record .* {life.value}"):
        events(binding, message)


def test_a_first_start_sends_initial_message_and_checkpoint_before_anything_else() -> None:
    binding = fresh()
    assert events(binding, control(Type.TAKE_BECOMING_PRIMARY_CHECKPOINT)) == [CheckpointDue()]
    binding.checkpoint(b"state")
    assert binding.take() == OUR_INITIAL_MESSAGE + checkpoint(5) + b"state"
    assert events(binding, record(0, OUR_INITIAL_MESSAGE)) == [BecamePrimary(), FirstStart(0)]
    assert binding.life is Life.PRIMARY


def test_a_recovery_restores_replays_and_answers_with_a_checkpoint_behind_its_outputs() -> None:
    binding = fresh()
    stream = checkpoint_record(COMMITTER, checkpoint(3)) + b"abc" + record(7, FORK)
    stream += control(Type.TAKE_BECOMING_PRIMARY_CHECKPOINT)
    found: list[Event] = []
    for byte in stream:  # however the bytes are cut
        found += events(binding, bytes([byte]))
    assert found == [Restore(b"abc"), Received(7, 0, Call(7, RpcType.FORK, b"AB")), CheckpointDue()]
    binding.fork("bob", 9, b"x")
    binding.fork("bob", 9, b"y")
    binding.checkpoint(b"new")
    out = outgoing("bob", Call(9, RpcType.FORK, b"x")), outgoing("bob", Call(9, RpcType.FORK, b"y"))
    assert binding.take() == attach_to("bob") + batch(list(out)) + checkpoint(3) + b"new"
    assert events(binding) == [BecamePrimary()]


def test_nothing_follows_a_checkpoint_that_is_due() -> None:
    binding = primary()
    assert events(binding, control(Type.TAKE_CHECKPOINT) + record(1, FORK)) == [CheckpointDue()]
    binding.checkpoint(b"")
    assert len(events(binding)) == 1


def test_a_gap_and_another_committer_are_named() -> None:
    binding = replaying()
    events(binding, record(4, FORK))
    with pytest.raises(RemoteProtocolError, match="record 6 follows record 4"):
        events(binding, record(6, FORK))
    with pytest.raises(RemoteProtocolError, match="committer"):
        events(replaying(), control_record(1, Type.TAKE_CHECKPOINT))


def test_a_replay_tells_the_last_record_of_which_all_is_handled() -> None:
    binding = replaying()
    binding.feed(record(4, FORK + FORK))
    for handled in (3, 4):
        binding.next()
        binding.progress()
        assert binding.take() == outgoing("", Call(PROGRESS, RpcType.IMPULSE, i64(handled)))


def test_impulses_wait_for_the_lead() -> None:
    binding = replaying()
    with pytest.raises(LocalProtocolError, match="replaying"):
        binding.impulse("", 1, b"")
    with pytest.raises(LocalProtocolError, match="nobody asked"):
        binding.checkpoint(b"")


def test_a_call_to_oneself_has_no_destination_and_no_attachment() -> None:
    binding = primary()
    binding.fork("alice", 3, b"")
    assert binding.take() == outgoing("", Call(3, RpcType.FORK))
