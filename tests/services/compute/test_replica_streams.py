"""How a stream to a replica begins, ends and is followed by the next one (docs/specs/compute.md 2, 8)."""

import pytest

from pavane.compute.core.ports import (
    AllowSink,
    Build,
    Configure,
    Drop,
    EndStream,
    ExitProcess,
    Read,
    StopReading,
)
from pavane.compute.core.replica import ReplicaCore
from pavane.compute.wire.commands import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    Command,
    CopyTo,
    CreateInstance,
    CreateTimely,
    InitializationComplete,
    Introspection,
    Peek,
    RuntimeConfig,
    Schedule,
    TickLogRef,
    UpdateConfiguration,
)
from pavane.compute.wire.common import Epoch, Failure
from pavane.compute.wire.responses import Blocker, Frontiers, PeekResponse
from pavane.wire import Stage
from tests.services.compute.replicas import (
    GENERATION,
    OTHER,
    ROWS,
    TOKEN,
    UUID,
    VIEW,
    Replica,
    frontiers,
    index,
    sink,
)

TIMELY = CreateTimely(Epoch(9, 9), bytes(16))
INSTANCE = CreateInstance("compute", GENERATION)


@pytest.mark.parametrize(
    ("commands", "code"),
    [
        ([INSTANCE], "FAILED_PRECONDITION"),
        ([TIMELY, TIMELY], "FAILED_PRECONDITION"),
        ([TIMELY, Schedule("u1")], "FAILED_PRECONDITION"),
        ([TIMELY, INSTANCE, INSTANCE], "FAILED_PRECONDITION"),
        ([TIMELY, INSTANCE, InitializationComplete(), InitializationComplete()], "FAILED_PRECONDITION"),
        ([TIMELY, INSTANCE, sink("u9", CopyTo("file"))], "UNIMPLEMENTED"),
        ([TIMELY, INSTANCE, index("u9"), AllowCompaction("u9", 4), InitializationComplete()], "FAILED_PRECONDITION"),
        ([CreateTimely(Epoch(9, 9), bytes(16), protocol_major=2)], "UNIMPLEMENTED"),
        ([CreateTimely(Epoch(1, 1), bytes(16))], "FAILED_PRECONDITION"),
    ],
)
def test_a_wrong_message_ends_its_stream_and_keeps_the_state(commands: list[Command], code: str) -> None:
    replica = Replica(index("u1"))
    replica.said()
    first = replica.stream
    replica.stream = replica.core.open()
    replica.effects.clear()
    replica.send(*commands)
    ends = [effect for effect in replica.effects if isinstance(effect, EndStream) and effect.stream != first]
    assert [end.code for end in ends] == [code]
    completed = InitializationComplete() in commands[:-1]
    assert replica.take(Drop, ExitProcess) == ([Drop(1)] if completed else [])
    replica.send(Schedule("u1"))
    assert replica.effects == []


def test_a_stale_epoch_leaves_the_running_stream_alone_and_a_greater_one_replaces_it() -> None:
    replica = Replica(index("u1"))
    replica.said()
    first, stale = replica.stream, replica.core.open()
    (end,) = replica.core.receive(stale, CreateTimely(Epoch(1, 1), bytes(16)))
    assert end == EndStream(stale, "FAILED_PRECONDITION", "stale epoch (1, 1)")
    replica.core.progress(1, "u1", write=7)
    assert replica.said() == [Frontiers("u1", write=7)]
    second = replica.core.open()
    assert EndStream(first, "ABORTED", "superseded") in replica.core.receive(second, TIMELY)
    assert replica.core.receive(first, Schedule("u1")) == ()


@pytest.mark.parametrize(
    ("timely", "instance"),
    [
        (CreateTimely(Epoch(9, 9), bytes(16), RuntimeConfig(workers=2)), INSTANCE),
        (TIMELY, CreateInstance("raft", GENERATION)),
        (TIMELY, CreateInstance("compute", GENERATION + 1)),
        (TIMELY, CreateInstance("compute", GENERATION, {"other": "setting"})),
        (TIMELY, CreateInstance("compute", GENERATION, introspection=Introspection(5))),
    ],
)
def test_what_does_not_fit_the_process_ends_it(timely: CreateTimely, instance: CreateInstance) -> None:
    replica = Replica()
    replica.stream = replica.core.open()
    replica.send(timely, instance)
    assert replica.exits == [3]


@pytest.mark.parametrize(
    "instance",
    [
        CreateInstance("compute", GENERATION, introspection=Introspection(5, {"peeks": "s1"})),
        CreateInstance("compute", GENERATION, result_store="s3://there"),
        CreateInstance("compute", GENERATION, tick_log=TickLogRef("main", 5)),
        CreateInstance("compute", GENERATION, sink_root="/there"),
    ],
)
def test_what_a_replica_cannot_do_ends_its_process_also_when_it_is_new(instance: CreateInstance) -> None:
    core = ReplicaCore(GENERATION)
    stream = core.open()
    core.receive(stream, TIMELY)
    core.receive(stream, instance)
    assert core.exiting is not None
    assert core.exiting.code == 3


def test_a_live_engine_option_fits() -> None:
    replica = Replica()
    replica.stream = replica.core.open()
    replica.send(CreateTimely(Epoch(9, 9), bytes(16), RuntimeConfig(engine={"memory": "2"})))
    assert replica.exits == []


def test_nothing_is_said_before_the_expected_state_is_complete() -> None:
    replica = Replica(index("u1"))
    replica.stream = replica.core.open()
    for commands in ((TIMELY,), (INSTANCE,), (index("u1"), Peek(UUID, 6, index="u9"))):
        replica.send(*commands)
        replica.core.progress(1, "u1", write=9)
        replica.core.blocked((Blocker("MemoryFull"),))
        assert len(replica.core.outbox(replica.stream)) == 0
    replica.send(InitializationComplete())
    gone = PeekResponse(UUID, Failure("Unknown", "there is no index u9 to read"))
    assert replica.said() == [frontiers("u1", 5), gone]


def test_configuration_works_on_receipt() -> None:
    replica = Replica(settings=frozenset({"sink.maxLag"}))
    replica.begin(complete=False)
    replica.effects.clear()
    replica.send(UpdateConfiguration({"sink.maxLag": "2", "unheard": "of"}))
    assert replica.take(Configure) == [Configure({"sink.maxLag": "2"})]
    assert replica.core.ignored_settings == 1


def test_permission_in_the_expected_state_works_at_its_end() -> None:
    replica = Replica()
    replica.begin(AllowWrites(TOKEN), VIEW, complete=False)
    before = replica.core.stage
    assert replica.take(AllowSink) == []
    replica.send(InitializationComplete())
    assert AllowSink(1, "u2", TOKEN) in replica.effects
    assert (before, replica.core.stage) == (Stage.READ_ONLY, Stage.READ_WRITE)


def test_a_stream_cut_in_the_expected_state_changes_nothing() -> None:
    replica = Replica(index("u1"), VIEW, Peek(UUID, 9, index="u1"))
    replica.effects.clear()
    replica.begin(index("u4"), AllowWrites(TOKEN), CancelPeek(UUID), complete=False)
    replica.core.close(replica.stream)
    assert replica.take(Drop, Build, AllowSink) == []
    assert (replica.core.stage, replica.core.token) == (Stage.READ_ONLY, None)
    assert [type(each) for each in replica.core.progress(1, "u1", write=20)] == [Read]
    replica.begin(index("u1"), VIEW)
    rebuilt = [Build(3, index("u1").dataflow), Build(4, VIEW.dataflow)]
    assert replica.take(Drop, Build, AllowSink) == [Drop(2), Drop(1), *rebuilt]


def test_a_reconnect_drops_first_importers_before_imports_and_silently() -> None:
    replica = Replica(index("u1"), index("u4", imports=("u1",)))
    replica.core.progress(1, "u1", write=20)
    replica.send(Peek(UUID, 9, index="u1"), Peek(OTHER, 30, index="u1"), AllowWrites(TOKEN))
    replica.effects.clear()
    replica.begin(index("u1", as_of=9), VIEW, Peek(UUID, 9, index="u1"))
    order = replica.take(Drop, Build, StopReading, AllowSink)
    assert order == [
        StopReading(UUID),
        Drop(2),
        Drop(1),
        Build(3, index("u1", as_of=9).dataflow),
        Build(4, VIEW.dataflow),
        AllowSink(4, "u2", TOKEN),
    ]
    assert replica.said() == [frontiers("u1", 9), frontiers("u2", 5)]
    replica.core.progress(1, "u1", write=30)
    replica.core.answer(OTHER, [ROWS])
    assert replica.said() == []
    for _ in range(2):
        replica.core.answer(UUID, [ROWS])
    assert replica.said() == [PeekResponse(UUID, ROWS)]


def test_a_permission_by_id_ends_with_its_dataflow() -> None:
    replica = Replica(VIEW)
    replica.send(AllowWrites(TOKEN, "u2"))
    replica.effects.clear()
    replica.begin(VIEW)
    assert replica.take(AllowSink) == []
    assert replica.core.stage is Stage.READ_WRITE
