"""Numbering by the worked example, tables pair by pair (docs/specs/ambrosia.md 6.9, 9, 11.6)."""

import pytest

from pavane.ambrosia.core.coordinator import Coordinator, Settings
from pavane.ambrosia.effects import Effect, EndCheckpoint, StoreMeta, ToBinding
from pavane.ambrosia.errors import Fatal, FatalError
from pavane.ambrosia.state import LB_TABLE, STREAM_TABLE, Diverged, End, Meta, Output, Phase, Sent
from pavane.ambrosia.wire.links import Channel, Hello
from pavane.ambrosia.wire.messages import (
    OUR_INITIAL_MESSAGE,
    Call,
    Commit,
    ReplayFrom,
    RpcType,
    Type,
    attach_to,
    checkpoint,
    frame,
    incoming,
    outgoing,
)

FORK = incoming(Call(1, RpcType.FORK))
IMPULSE = incoming(Call(1, RpcType.IMPULSE))


def recovered() -> Output:
    """X sent F1, I1, F2, died, and produced F1 and F2 again."""
    output = Output()
    output.add(FORK, impulse=False)
    output.add(FORK, impulse=False)
    return output


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [((2, 2), [2]), ((3, 2), [3]), ((4, 3), [])],
)
def test_worked_example(wanted: tuple[int, int], numbers: list[int]) -> None:
    output = recovered()
    output.replay_from(ReplayFrom(*wanted), complete=True)
    assert [message.number for message in output.take(1000)] == numbers
    output.add(FORK, impulse=False)
    assert [message.number for message in output.take(1000)] == [wanted[0] + len(numbers)]


def test_a_peer_that_lost_what_was_only_in_memory_gets_it_again() -> None:
    output = recovered()
    output.replay_from(ReplayFrom(3, 2), complete=True)
    output.take(1000)
    output.stop()
    output.replay_from(ReplayFrom(2, 2), complete=True)  # it crashed before it logged the Impulse
    assert [(message.number, message.replayable) for message in output.take(1000)] == [(2, 2)]


def test_acknowledgements_before_the_stream_are_kept() -> None:
    output = recovered()
    output.commit(Commit(3, 2), complete=True)
    assert len(output) == 2
    output.replay_from(ReplayFrom(4, 3), complete=True)
    assert len(output) == 0


@pytest.mark.parametrize("wanted", [(1, 1), (5, 5)])
def test_contradictions_are_named(wanted: tuple[int, int]) -> None:
    output = recovered()
    output.replay_from(ReplayFrom(3, 3), complete=True)
    output.commit(Commit(2, 2), complete=True)
    with pytest.raises(Diverged):
        output.replay_from(ReplayFrom(*wanted), complete=True)


def test_an_acknowledgement_of_what_was_never_sent_is_named() -> None:
    output = recovered()
    output.replay_from(ReplayFrom(1, 1), complete=True)
    with pytest.raises(Diverged):
        output.commit(Commit(3, 3), complete=True)


def test_what_the_life_before_has_sent_may_be_acknowledged_before_it_is_made_again() -> None:
    output = Output()
    output.add(FORK, impulse=False)
    output.replay_from(ReplayFrom(4, 3), complete=False)  # a follower leads: its application is at the first call still
    assert output.commit(Commit(3, 2), complete=False)
    output.add(FORK, impulse=False)
    output.add(FORK, impulse=False)
    assert [message.number for message in output.take(1000)] == [4]
    with pytest.raises(Diverged):
        output.commit(Commit(5, 4), complete=True)


def test_impulses_do_not_survive_a_checkpoint() -> None:
    output = recovered()
    output.replay_from(ReplayFrom(1, 1), complete=True)
    output.add(IMPULSE, impulse=True)
    output.add(FORK, impulse=False)
    output.commit(Commit(1, 1), complete=True)
    again = Output.restored(output.saved())
    assert (again.last, again.last_replayable, len(again)) == (3, 3, 2)


def core() -> Coordinator:
    return Coordinator(Settings("a"), 7, Meta())


def settle(machine: Coordinator) -> list[Effect]:
    """Make everything durable at once; return all effects."""
    every: list[Effect] = []
    while effects := machine.outputs():
        every += effects
        for effect in effects:
            if not isinstance(effect, ToBinding) and type(effect).__module__ == StoreMeta.__module__:
                machine.stored(effect)  # type: ignore[arg-type]
    return every


def at(phase: Phase) -> Coordinator:
    """Return a coordinator in ``phase``."""
    machine = core()
    machine.first_start()
    settle(machine)
    if phase is Phase.INIT:
        return machine
    machine.binding_received(OUR_INITIAL_MESSAGE)
    if phase is Phase.FIRST:
        return machine
    machine.binding_received(checkpoint(1) + b"x")
    settle(machine)
    if phase is Phase.CHECKPOINT:
        machine.binding_received(frame(Type.TAKE_CHECKPOINT))
        settle(machine)
    elif phase in (Phase.REPLAY, Phase.DEBUG):
        machine.phase = phase
    assert machine.phase is phase
    return machine


MESSAGES = {
    Sent.INITIAL: OUR_INITIAL_MESSAGE,
    Sent.CHECKPOINT: checkpoint(1) + b"x",
    Sent.REPLAYABLE: outgoing("b", Call(1, RpcType.FORK)),
    Sent.IMPULSE: outgoing("b", Call(1, RpcType.IMPULSE)),
    Sent.ATTACH: attach_to("b"),
    Sent.TAKE_CHECKPOINT: frame(Type.TAKE_CHECKPOINT),
    Sent.OTHER: frame(Type.COMMIT, b"\0\0"),
}


@pytest.mark.parametrize(("sent", "phase"), LB_TABLE)
def test_every_message_of_the_application_in_every_phase(sent: Sent, phase: Phase) -> None:
    machine = at(phase)
    action = LB_TABLE[sent, phase].value

    def act() -> None:
        machine.binding_closed() if sent is Sent.CLOSED else machine.binding_received(MESSAGES[sent])

    if action.startswith("fatal"):
        with pytest.raises(FatalError) as raised:
            act()
        assert raised.value.fatal == (Fatal.STORAGE if action == "fatal 4" else Fatal.UNEXPECTED)
        assert sent is Sent.CLOSED or phase.value in str(raised.value)
        return
    act()
    numbered = sum(output.last for name, output in machine.links.outputs.items() if name)
    assert numbered == (1 if action == "number and send" else 0)
    assert ("b" in machine.links.attached) == (action in ("attach", "number and send"))
    ends = [effect for effect in settle(machine) if isinstance(effect, EndCheckpoint)]
    assert len(ends) == (1 if action == "store the checkpoint" else 0)
    assert machine.meta.last_log == (2 if phase is Phase.CHECKPOINT or action.startswith("begin") else 1)
    assert machine.impulses_dropped == (1 if action == "drop and count" and sent is Sent.IMPULSE else 0)


STREAM_MESSAGES = {
    Type.REPLAY_FROM: ReplayFrom(1, 1).encode(),
    Type.TRIM_TO: frame(Type.TRIM_TO, b"\1"),
    Type.COMMIT: Commit(0, 0).encode(),
    Type.RPC: FORK,
    Type.RPC_BATCH: frame(Type.RPC_BATCH, b"\4" + FORK * 2),
    Type.CHECKPOINT: checkpoint(0),
    Type.ATTACH_TO: attach_to("c"),
}


@pytest.mark.parametrize("type_", STREAM_MESSAGES)
@pytest.mark.parametrize(("end", "greeted"), STREAM_TABLE)
def test_every_message_of_a_stream_at_every_end(end: End, greeted: bool, type_: Type) -> None:
    machine = at(Phase.LIVE)
    channel = Channel.DATA if end in (End.DATA_SENDER, End.DATA_RECEIVER) else Channel.CONTROL
    if end in (End.DATA_SENDER, End.COMMIT_SENDER):
        machine.links.attach("b")
        machine.links.dialled(1, "b", channel)
        if greeted:
            machine.received(1, STREAM_MESSAGES[Type.REPLAY_FROM if channel is Channel.DATA else Type.TRIM_TO])
    else:
        machine.links.accept(1, Hello("b", "a", channel, "p", (0, 0), 1))
        if greeted:
            machine.links.begin(1)
    machine.outputs()
    machine.received(1, STREAM_MESSAGES[type_])
    closed = [effect for effect in machine.outputs() if type(effect).__name__ == "CloseStream"]
    assert bool(closed) == (type_ not in STREAM_TABLE[end, greeted])
    assert machine.links.faults.get("type", 0) == len(closed)
    assert machine.live
