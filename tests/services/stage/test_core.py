"""Epochs, stages and the token of one pod, command by command (docs/specs/compute.md 2.3, 6)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pavane.compute.core.ports import EndStream, ExitProcess
from pavane.compute.wire.commands import (
    AllowWrites,
    CreateInstance,
    CreateTimely,
    InitializationComplete,
    Lifecycle,
    RuntimeConfig,
    UpdateConfiguration,
)
from pavane.compute.wire.common import NONCE_BYTES, Epoch, Token
from pavane.compute.wire.responses import Blocker
from pavane.stage.core import (
    OWN,
    Configure,
    Effect,
    EnterReadOnly,
    EnterReadWrite,
    Report,
    StageCore,
)
from pavane.wire import LocalProtocolError, Stage

GENERATION = 3
NONCE = bytes(NONCE_BYTES)
TOKEN = Token(GENERATION, 1)


def core(token: Token | None = None) -> StageCore:
    return StageCore(
        "raft", GENERATION, live=frozenset({"rate"}), told=frozenset({"bootstrap", "initial"}), token=token
    )


def timely(major: int = 1, minor: int = 1) -> CreateTimely:
    return CreateTimely(Epoch(major, minor), NONCE)


def give(pod: StageCore, stream: int, *commands: Lifecycle) -> list[Effect]:
    """Hand in commands as a server does, with a role that enters what it is told to."""
    effects: list[Effect] = []
    for command in commands:
        for effect in pod.receive(stream, command):
            effects.append(effect)
            match effect:
                case EnterReadOnly():
                    pod.entered(Stage.READ_ONLY)
                case EnterReadWrite(token):
                    pod.entered(Stage.READ_WRITE, token)
    return effects


def lead_up(pod: StageCore, major: int = 1, minor: int = 1) -> int:
    stream = pod.open()
    give(pod, stream, timely(major, minor), CreateInstance("raft", GENERATION), InitializationComplete())
    return stream


def test_a_pod_is_led_through_its_stages() -> None:
    pod = core()
    stream = pod.open()
    stages = [pod.stage]
    give(pod, stream, timely())
    stages.append(pod.stage)
    assert not pod.instance_created(stream)
    give(pod, stream, CreateInstance("raft", GENERATION))
    stages.append(pod.stage)
    assert pod.instance_created(stream)
    assert give(pod, stream, InitializationComplete()) == [EnterReadOnly()]
    stages.append(pod.stage)
    assert give(pod, stream, AllowWrites(TOKEN)) == [EnterReadWrite(TOKEN, {})]
    stages.append(pod.stage)
    assert stages == [Stage.CREATION, *Stage]
    assert pod.token == TOKEN


def test_permission_before_the_end_of_initialization_is_remembered() -> None:
    pod = core()
    stream = pod.open()
    give(pod, stream, timely(), CreateInstance("raft", GENERATION))
    assert give(pod, stream, AllowWrites(Token(GENERATION, 2)), AllowWrites(TOKEN)) == []
    assert pod.stage is Stage.INITIALIZATION
    assert give(pod, stream, InitializationComplete()) == [EnterReadOnly(), EnterReadWrite(Token(GENERATION, 2), {})]


def test_remembered_permission_ends_with_its_stream() -> None:
    pod = core()
    stream = pod.open()
    give(pod, stream, timely(1, 1), CreateInstance("raft", GENERATION), AllowWrites(TOKEN))
    pod.close(stream)
    lead_up(pod, 1, 2)
    assert pod.stage is Stage.READ_ONLY


def test_repeated_permission_has_no_effect_but_a_report() -> None:
    pod = core()
    stream = lead_up(pod)
    give(pod, stream, AllowWrites(TOKEN))
    assert give(pod, stream, AllowWrites(TOKEN), AllowWrites(Token(GENERATION, 9))) == [Report(), Report()]


def test_a_smaller_token_of_the_own_generation_changes_nothing() -> None:
    pod = core(Token(GENERATION, 5))
    stream = lead_up(pod)
    assert give(pod, stream, AllowWrites(TOKEN)) == [Report()]
    assert (pod.stage, pod.token, pod.blockers) == (Stage.READ_ONLY, Token(GENERATION, 5), ())


def test_a_token_of_another_generation_ends_the_stream() -> None:
    pod = core()
    for minor, generation in enumerate((GENERATION - 1, GENERATION + 1), start=1):
        stream = lead_up(pod, 1, minor)
        (end,) = give(pod, stream, AllowWrites(Token(generation, 1)))
        assert isinstance(end, EndStream)
        assert end.code == "FAILED_PRECONDITION"
    assert pod.stage is Stage.READ_ONLY


def test_a_greater_stored_fence_holds_the_pod_back_and_is_named() -> None:
    pod = core(Token(GENERATION + 1, 7))
    stream = lead_up(pod)
    assert give(pod, stream, AllowWrites(TOKEN)) == [Report()]
    (blocker,) = pod.blockers
    assert isinstance(blocker, Blocker)
    assert (blocker.reason, blocker.detail) == ("FenceTooLow", {"stored": "(4, 7)"})
    assert pod.stage is Stage.READ_ONLY


def test_permission_for_one_collection_is_refused() -> None:
    pod = core()
    stream = lead_up(pod)
    (end,) = give(pod, stream, AllowWrites(TOKEN, "u1"))
    assert isinstance(end, EndStream)
    assert end.code == "UNIMPLEMENTED"


def test_a_greater_epoch_replaces_the_running_stream() -> None:
    pod = core()
    old = lead_up(pod, 1, 9)
    new = pod.open()
    assert give(pod, new, timely(2, 1)) == [EndStream(old, "ABORTED", "superseded")]
    assert give(pod, old, AllowWrites(TOKEN)) == []
    assert pod.stage is Stage.READ_ONLY


@pytest.mark.parametrize("epoch", [(1, 9), (1, 8), (0, 99), (0, 0)])
def test_an_epoch_that_is_not_greater_is_refused_by_name(epoch: tuple[int, int]) -> None:
    pod = core()
    running = lead_up(pod, 1, 9)
    late = pod.open()
    assert give(pod, late, timely(*epoch)) == [EndStream(late, "FAILED_PRECONDITION", "stale epoch (1, 9)")]
    assert give(pod, running, AllowWrites(TOKEN)) == [EnterReadWrite(TOKEN, {})]


def test_an_epoch_stays_accepted_after_its_stream() -> None:
    pod = core()
    pod.close(lead_up(pod, 4, 1))
    late = pod.open()
    assert give(pod, late, timely(4, 1)) == [EndStream(late, "FAILED_PRECONDITION", "stale epoch (4, 1)")]


def test_a_pod_that_runs_answers_a_new_stream_with_its_present_stage() -> None:
    pod = core()
    give(pod, lead_up(pod, 1, 1), AllowWrites(TOKEN))
    stream = pod.open()
    effects = give(pod, stream, timely(1, 2), CreateInstance("raft", GENERATION), InitializationComplete())
    assert not any(isinstance(effect, EnterReadOnly | EnterReadWrite | ExitProcess) for effect in effects)
    assert pod.stage is Stage.READ_WRITE


@pytest.mark.parametrize(
    "command",
    [
        CreateInstance("swim", GENERATION),
        CreateInstance("raft", GENERATION + 1),
        CreateInstance("raft", GENERATION, {"machine": "KeyValue"}),
    ],
)
def test_a_pod_that_is_taken_for_another_ends_with_code_3(command: CreateInstance) -> None:
    pod = core()
    lead_up(pod, 1, 1)
    stream = pod.open()
    (*_, end) = give(pod, stream, timely(1, 2), command)
    assert isinstance(end, ExitProcess)
    assert end.code == 3


def test_another_engine_ends_it_with_code_3_but_not_for_a_stale_epoch() -> None:
    pod = core()
    lead_up(pod, 1, 1)
    stale, fresh = pod.open(), pod.open()
    two_workers = RuntimeConfig(workers=2)
    (end,) = give(pod, stale, CreateTimely(Epoch(1, 1), NONCE, two_workers))
    assert isinstance(end, EndStream)
    (*_, exiting) = give(pod, fresh, CreateTimely(Epoch(1, 2), NONCE, two_workers))
    assert isinstance(exiting, ExitProcess)


def test_another_version_of_the_protocol_is_refused() -> None:
    pod = core()
    stream = pod.open()
    (end,) = give(pod, stream, CreateTimely(Epoch(1, 1), NONCE, protocol_major=2))
    assert isinstance(end, EndStream)
    assert end.code == "UNIMPLEMENTED"
    assert pod.accepted is None


def test_settings_are_applied_told_or_counted() -> None:
    pod = core()
    stream = pod.open()
    give(pod, stream, timely(), CreateInstance("raft", GENERATION))
    settings = {"rate": "5", "bootstrap": "entry", "initial": "[]", "unknown": "1"}
    assert give(pod, stream, UpdateConfiguration(settings)) == [Configure({"rate": "5"})]
    assert pod.ignored_settings == 1
    give(pod, stream, InitializationComplete(), UpdateConfiguration({"bootstrap": "seed"}))
    assert pod.ignored_settings == 2
    told = {"bootstrap": "entry", "initial": "[]"}
    assert give(pod, stream, AllowWrites(TOKEN)) == [EnterReadWrite(TOKEN, told)]


def test_what_one_stream_told_does_not_count_for_the_next() -> None:
    pod = core()
    first = pod.open()
    give(pod, first, timely(1, 1), CreateInstance("raft", GENERATION), UpdateConfiguration({"bootstrap": "entry"}))
    second = lead_up(pod, 1, 2)
    assert give(pod, second, AllowWrites(TOKEN)) == [EnterReadWrite(TOKEN, {})]


def test_the_own_walk_ends_in_read_write() -> None:
    pod = core(Token(GENERATION, 6))
    effects = give(pod, OWN, *pod.own_walk(to_read_write=True))
    assert EnterReadWrite(Token(GENERATION, 6), {}) in effects
    assert pod.stage is Stage.READ_WRITE


def test_the_own_walk_of_a_pod_that_must_not_write_ends_in_read_only() -> None:
    pod = core()
    give(pod, OWN, *pod.own_walk(to_read_write=False))
    assert pod.stage is Stage.READ_ONLY
    give(pod, OWN, *pod.own_walk(to_read_write=True))
    assert (pod.stage, pod.token) == (Stage.READ_WRITE, Token(GENERATION, 0))


def test_the_own_walk_heeds_a_greater_fence() -> None:
    pod = core(Token(GENERATION + 1, 0))
    give(pod, OWN, *pod.own_walk(to_read_write=True))
    assert pod.stage is Stage.READ_ONLY
    assert [blocker.reason for blocker in pod.blockers] == ["FenceTooLow"]


def test_any_stream_follows_the_own_walk_and_the_own_walk_ends_no_stream() -> None:
    pod = core()
    give(pod, OWN, *pod.own_walk(to_read_write=False))
    stream = lead_up(pod, 0, 1)
    effects = give(pod, OWN, *pod.own_walk(to_read_write=True))
    assert not any(isinstance(effect, EndStream) for effect in effects)
    assert give(pod, stream, AllowWrites(TOKEN)) == [Report()]


def test_stages_only_go_forward() -> None:
    pod = core()
    give(pod, lead_up(pod), AllowWrites(TOKEN))
    for stage in Stage:
        with pytest.raises(LocalProtocolError):
            pod.entered(stage)


COMMANDS = st.one_of(
    st.builds(timely, st.integers(0, 2), st.integers(0, 2)),
    st.builds(CreateInstance, st.just("raft"), st.just(GENERATION)),
    st.just(InitializationComplete()),
    st.builds(UpdateConfiguration, st.dictionaries(st.sampled_from(["rate", "bootstrap", "x"]), st.just("1"))),
    st.builds(AllowWrites, st.builds(Token, st.integers(2, 4), st.integers(0, 3))),
)


@given(st.lists(st.tuples(st.integers(0, 2), COMMANDS), max_size=40))
def test_whatever_three_streams_send_stage_epoch_and_token_only_grow(commands: list[tuple[int, Lifecycle]]) -> None:
    pod = core()
    streams = [pod.open() for _ in range(3)]
    stage, epoch, token = pod.stage, Epoch(0, 0), Token(0, 0)
    for index, command in commands:
        for effect in give(pod, streams[index], command):
            if isinstance(effect, EndStream):
                streams = [pod.open() if stream == effect.stream else stream for stream in streams]
        assert (pod.stage >= stage, (pod.accepted or epoch) >= epoch, (pod.token or token) >= token) == (True,) * 3
        assert pod.token is None or pod.token.generation == GENERATION
        assert pod.stage < Stage.READ_WRITE or pod.token is not None
        stage, epoch, token = pod.stage, pod.accepted or epoch, pod.token or token
