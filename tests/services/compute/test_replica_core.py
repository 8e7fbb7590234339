"""Every command against every state of a replica (docs/specs/compute.md 2.5), and what it owes."""

from collections.abc import Callable, Sequence

import pytest

from pavane.compute.core import outbox as outbox_module
from pavane.compute.core import replica as replica_module
from pavane.compute.core.ports import (
    AllowSink,
    Build,
    Compact,
    Drop,
    Effect,
    EndStream,
    ExitProcess,
    Read,
    Start,
    StopReading,
)
from pavane.compute.core.replica import ReplicaCore
from pavane.compute.wire.commands import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    Command,
    CreateDataflow,
    MaterializedView,
    Peek,
    Schedule,
    UpdateConfiguration,
)
from pavane.compute.wire.common import CLOSED, Failure, Rows, Token
from pavane.compute.wire.responses import (
    Batch,
    Blocker,
    Canceled,
    Frontiers,
    PeekResponse,
    Response,
    RowsPart,
    StageReport,
    SubscribeResponse,
)
from pavane.wire import LocalProtocolError, Stage
from tests.services.compute.replicas import (
    GENERATION,
    OTHER,
    ROWS,
    SUBSCRIBE,
    TOKEN,
    UUID,
    VIEW,
    Replica,
    frontiers,
    index,
    sink,
)

# ---- 2.5, row by row


@pytest.mark.parametrize("first", [(), (index("u1"), AllowCompaction("u1", CLOSED))])
def test_create_of_an_id_that_is_free(first: Sequence[Command]) -> None:
    replica = Replica()
    replica.send(*first)
    replica.said()
    replica.send(index("u1"))
    assert not replica.exits
    assert replica.said() == [frontiers("u1", 5)]


def test_the_old_incarnation_owes_its_last_response_before_the_new_one_speaks() -> None:
    replica = Replica()
    replica.send(index("u1"), AllowCompaction("u1", CLOSED), index("u1", as_of=9))
    assert replica.said() == [frontiers("u1", 5), frontiers("u1", CLOSED), frontiers("u1", 9)]
    flows = [effect.flow for effect in replica.effects if isinstance(effect, Build)]
    assert not replica.core.progress(flows[0], "u1", write=40)
    replica.core.progress(flows[1], "u1", write=12)
    assert replica.said() == [Frontiers("u1", write=12)]


@pytest.mark.parametrize("end", [False, True])
def test_create_of_an_id_that_is_alive_or_ended_by_itself(end: bool) -> None:
    replica = Replica(index("u1"))
    if end:
        replica.core.progress(replica.flow(), "u1", write=CLOSED, input_=CLOSED, computed=CLOSED)
    replica.send(index("u1"))
    assert replica.exits == [4]


@pytest.mark.parametrize("command", [Schedule("u1"), AllowWrites(TOKEN, "u1"), AllowCompaction("u1", 7)])
@pytest.mark.parametrize("first", [(), (index("u1"), AllowCompaction("u1", CLOSED))])
def test_what_names_an_unknown_or_dropped_id_has_no_effect(command: Command, first: Sequence[Command]) -> None:
    replica = Replica()
    replica.send(*first)
    replica.said()
    replica.effects.clear()
    replica.send(command)
    assert replica.take(EndStream, ExitProcess, Start, AllowSink, Compact) == []
    assert replica.said() == []
    assert replica.core.ignored == 1


def test_a_dataflow_starts_when_all_exports_are_scheduled() -> None:
    replica = Replica(index("u1", "u2"))
    replica.effects.clear()
    replica.send(Schedule("u1"), Schedule("u1"))
    assert replica.take(Start) == []
    replica.send(Schedule("u2"))
    assert replica.take(Start) == [Start(1)]


def test_allow_writes_by_id_opens_one_sink() -> None:
    replica = Replica(VIEW, sink("u4", MaterializedView("chain-4")))
    replica.effects.clear()
    replica.send(AllowWrites(TOKEN, "u4"))
    assert replica.take(AllowSink) == [AllowSink(2, "u4", TOKEN)]
    assert replica.core.stage is Stage.READ_WRITE


def test_allow_writes_without_id_opens_all_present_and_future_ones() -> None:
    replica = Replica(VIEW)
    assert replica.core.stage is Stage.READ_ONLY
    replica.effects.clear()
    replica.send(AllowWrites(TOKEN), sink("u4", MaterializedView("chain-4")))
    assert replica.take(AllowSink) == [AllowSink(1, "u2", TOKEN), AllowSink(2, "u4", TOKEN)]
    replica.send(AllowWrites(Token(GENERATION, 0)))
    assert {effect.token for effect in replica.take(AllowSink) if isinstance(effect, AllowSink)} <= {TOKEN}


def test_a_frontier_of_compaction_may_not_fall() -> None:
    replica = Replica(index("u1"), AllowCompaction("u1", 8))
    assert Compact(1, "u1", 8) in replica.effects
    replica.send(AllowCompaction("u1", 7))
    assert replica.ended == ["FAILED_PRECONDITION"]
    replica.begin(index("u1"), AllowCompaction("u1", 8))
    assert not replica.exits


def test_after_the_end_only_a_drop_counts_and_nothing_more_is_owed() -> None:
    replica = Replica(index("u1"))
    replica.core.progress(replica.flow(), "u1", write=CLOSED, input_=CLOSED, computed=CLOSED)
    assert replica.said()[-1] == frontiers("u1", CLOSED)
    replica.send(AllowCompaction("u1", CLOSED))
    assert replica.said() == []
    assert replica.take(Drop) == [Drop(1)]


@pytest.mark.parametrize("command", [Schedule("u2"), AllowWrites(TOKEN, "u2"), AllowCompaction("u2", 9)])
def test_what_ended_by_itself_is_only_read_or_dropped(command: Command) -> None:
    replica = Replica(VIEW, Schedule("u2"))
    replica.core.progress(replica.flow(), "u2", write=CLOSED, input_=CLOSED, computed=CLOSED)
    replica.said()
    replica.effects.clear()
    replica.send(command)
    assert replica.take(EndStream, ExitProcess, Start, AllowSink, Compact, Drop) == []
    assert replica.said() == []
    peek = Peek(UUID, 6, chain="chain-2")
    replica.send(peek)
    assert replica.take(Read) == [Read(1, "u2", peek)]


def test_a_drop_closes_each_kind_that_is_open() -> None:
    replica = Replica(index("u1"))
    replica.core.progress(replica.flow(), "u1", write=CLOSED)
    replica.said()
    replica.send(AllowCompaction("u1", CLOSED))
    assert replica.said() == [Frontiers("u1", input=CLOSED, output=CLOSED)]


@pytest.mark.parametrize(("index_", "chain"), [("u9", None), ("u2", None), ("t3", None), (None, "chain-9")])
def test_a_peek_of_what_cannot_be_read_is_an_error(index_: str | None, chain: str | None) -> None:
    replica = Replica(VIEW, SUBSCRIBE)
    replica.said()
    replica.send(Peek(UUID, 6, index_, chain))
    (answer,) = replica.said()
    assert isinstance(answer, PeekResponse)
    assert isinstance(answer.result, Failure)
    assert answer.result.code == "Unknown"


def test_a_peek_waits_for_its_tick_and_is_answered_once() -> None:
    replica = Replica(index("u1"))
    replica.said()
    flow = replica.flow()
    peek = Peek(UUID, 7, index="u1")
    replica.send(peek)
    assert replica.core.progress(flow, "u1", write=7)
    assert replica.take(Read) == []
    assert Read(flow, "u1", peek) in replica.core.progress(flow, "u1", write=8)
    assert Read(flow, "u1", peek) not in replica.core.progress(flow, "u1", write=9)
    replica.said()
    replica.core.answer(UUID, [ROWS])
    replica.core.answer(UUID, [ROWS])
    assert replica.said() == [PeekResponse(UUID, ROWS)]


def test_a_peek_of_a_chain_waits_for_the_chain() -> None:
    replica = Replica(VIEW)
    peek = Peek(UUID, 7, chain="chain-2")
    replica.send(peek)
    replica.core.progress(1, "u2", computed=20)
    assert Read(1, "u2", peek) in replica.core.progress(1, "u2", write=8)


def test_a_peek_below_since_is_an_error() -> None:
    replica = Replica(index("u1"), AllowCompaction("u1", 8))
    replica.said()
    replica.send(Peek(UUID, 7, index="u1"))
    (answer,) = replica.said()
    assert isinstance(answer, PeekResponse)
    assert isinstance(answer.result, Failure)
    assert answer.result.code == "SinceAdvanced"


def test_cancel_before_after_twice_and_unknown() -> None:
    replica = Replica(index("u1"))
    replica.said()
    replica.send(Peek(UUID, 7, index="u1"), CancelPeek(UUID), CancelPeek(UUID), CancelPeek(OTHER))
    assert replica.said() == [PeekResponse(UUID, Canceled())]
    replica.core.progress(1, "u1", write=9)
    replica.send(Peek(UUID, 7, index="u1"))
    replica.effects.clear()
    replica.send(CancelPeek(UUID))
    assert replica.take(StopReading) == [StopReading(UUID)]
    replica.core.answer(UUID, [ROWS])
    assert replica.said()[1:] == [PeekResponse(UUID, Canceled())]
    replica.send(Peek(UUID, 7, index="u1"))
    replica.core.answer(UUID, [ROWS])
    replica.send(CancelPeek(UUID))
    assert replica.said() == [PeekResponse(UUID, ROWS)]


def test_the_drop_of_its_target_ends_a_peek() -> None:
    replica = Replica(index("u1"))
    replica.said()
    replica.send(Peek(UUID, 7, index="u1"), AllowCompaction("u1", CLOSED))
    closed, answer = replica.said()
    assert closed == frontiers("u1", CLOSED)
    assert isinstance(answer, PeekResponse)
    assert isinstance(answer.result, Failure)


def test_the_uuid_of_an_open_peek_is_a_violation() -> None:
    replica = Replica(index("u1"))
    replica.send(Peek(UUID, 7, index="u1"), Peek(UUID, 8, index="u1"))
    assert replica.ended == ["FAILED_PRECONDITION"]


def test_a_token_of_a_former_generation_is_a_violation() -> None:
    for complete in (False, True):
        replica = Replica()
        replica.begin(complete=complete)
        replica.effects.clear()
        replica.send(AllowWrites(Token(GENERATION - 1, 1)))
        assert replica.ended == ["FAILED_PRECONDITION"]


# ---- dataflows, frontiers, subscribes


@pytest.mark.parametrize("expected", [index("u4", imports=("u1",)), index("u4", imports=("u2",))])
def test_an_import_that_is_no_index_here_ends_the_process(expected: CreateDataflow) -> None:
    assert Replica(VIEW, expected).exits == [4]


def test_an_import_that_is_not_readable_at_as_of_ends_the_process() -> None:
    replica = Replica(index("u1"), AllowCompaction("u1", 8))
    replica.send(index("u4", as_of=8, imports=("u1",)))
    assert replica.exits == []
    replica.send(index("u5", as_of=7, imports=("u1",)))
    assert replica.exits == [4]


def test_an_imported_index_lives_on_for_its_importer() -> None:
    replica = Replica(index("u1"), index("u4", imports=("u1",)))
    replica.effects.clear()
    replica.said()
    replica.send(AllowCompaction("u1", CLOSED))
    assert replica.take(Drop) == []
    assert replica.said() == [frontiers("u1", CLOSED)]
    replica.send(AllowCompaction("u4", CLOSED))
    assert replica.take(Drop) == [Drop(2), Drop(1)]


def test_frontiers_only_rise_and_only_news_are_told() -> None:
    replica = Replica(index("u1"))
    assert replica.said() == [frontiers("u1", 5)]
    replica.core.progress(1, "u1", write=3, input_=9, computed=12)
    assert replica.said() == [Frontiers("u1", input=9)]
    replica.core.progress(1, "u1", write=8, input_=4, computed=7)
    assert replica.said() == [Frontiers("u1", write=8, output=8)]


def test_output_of_a_read_only_view_does_not_wait_for_its_chain() -> None:
    replica = Replica(VIEW)
    replica.said()
    replica.core.progress(1, "u2", write=6, computed=20)
    assert replica.said() == [Frontiers("u2", write=6, output=20)]
    replica.send(AllowWrites(TOKEN))
    assert replica.said() == []
    replica.core.progress(1, "u2", write=19)
    assert replica.said() == [Frontiers("u2", write=19)]
    replica.core.progress(1, "u2", write=30, computed=25)
    assert replica.said() == [Frontiers("u2", write=30, output=25)]


def test_batches_of_a_subscribe_are_contiguous_from_zero() -> None:
    replica = Replica(SUBSCRIBE)
    assert replica.said() == []
    replica.core.batch(1, "t3", 4, ROWS)
    replica.core.batch(1, "t3", 7, ROWS)
    replica.core.batch(1, "t3", 7, ROWS)
    replica.core.batch(1, "t3", 9, ROWS)
    assert [each.kind for each in replica.said() if isinstance(each, SubscribeResponse)] == [
        Batch(0, 7, ROWS),
        Batch(7, 9, ROWS),
    ]
    replica.send(AllowCompaction("t3", CLOSED))
    assert replica.said() == [SubscribeResponse("t3", 9)]


def test_a_subscribe_that_ended_owes_nothing_and_an_error_stays() -> None:
    replica = Replica(SUBSCRIBE)
    failure = Failure("Bad")
    replica.core.batch(1, "t3", 7, failure)
    replica.core.batch(1, "t3", CLOSED, ROWS)
    assert replica.said() == [
        SubscribeResponse("t3", Batch(0, 7, failure)),
        SubscribeResponse("t3", Batch(7, CLOSED, failure)),
    ]
    replica.send(AllowCompaction("t3", CLOSED))
    assert replica.said() == []


def test_a_failed_dataflow_answers_peeks_with_its_reason_and_is_a_blocker() -> None:
    replica = Replica(index("u1"), index("u4"))
    replica.send(Peek(UUID, 9, index="u1"))
    replica.said()
    failure = Failure("HistoryTrimmed", "the log no longer has it")
    replica.core.failed(1, failure)
    replica.send(Peek(OTHER, 9, index="u1"))
    assert replica.said() == [PeekResponse(UUID, failure), PeekResponse(OTHER, failure)]
    detail = {"id": "u1", "code": "HistoryTrimmed"}
    assert replica.core.report().blockers == (Blocker("DataflowFailed", failure.text, detail),)
    replica.send(AllowCompaction("u1", CLOSED))
    assert replica.core.report().blockers == ()


def test_reports_travel_when_something_changes() -> None:
    replica = Replica()

    def reports() -> list[Response]:
        box = replica.core.outbox(replica.stream)
        return [box.take() or StageReport(Stage.CREATION, 0) for _ in range(len(box))]

    assert reports() == [StageReport(Stage.READ_ONLY, GENERATION)]
    replica.send(AllowWrites(TOKEN))
    assert reports() == [StageReport(Stage.READ_WRITE, GENERATION, TOKEN)]
    blocker = Blocker("MemoryFull")
    replica.core.blocked((blocker,))
    assert reports() == [StageReport(Stage.READ_WRITE, GENERATION, TOKEN, blockers=(blocker,))]


def test_what_ends_the_process() -> None:
    calls: tuple[tuple[Callable[[ReplicaCore], tuple[Effect, ...]], int], ...] = (
        (lambda core: core.broken(1, "import"), 4),
        (lambda core: core.fenced(Token(GENERATION + 1, 0)), 0),
        (lambda core: core.engine_failed("ten times"), 5),
    )
    for call, code in calls:
        replica = Replica(index("u1"))
        exits = [effect for effect in call(replica.core) if isinstance(effect, ExitProcess)]
        assert [each.code for each in exits] == [code]
        replica.effects.clear()
        replica.send(Schedule("u1"))
        assert replica.effects == []
    assert Replica(index("u1")).core.fenced(Token(GENERATION, 99)) == ()


# ---- limits


def test_a_large_answer_travels_in_parts_that_do_not_count_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "UNSENT_BYTES_MAX", 1000)
    replica = Replica(index("u1"))
    replica.core.progress(1, "u1", write=9)
    replica.said()
    replica.send(Peek(UUID, 7, index="u1"))
    part = Rows(bytes(900))
    replica.core.answer(UUID, [part, part, part])
    assert replica.said() == [PeekResponse(UUID, RowsPart(n, n == 2, part)) for n in range(3)]


def test_unread_responses_end_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "UNSENT_BYTES_MAX", 2000)
    replica = Replica(index("u1"))
    assert replica.ended == []
    effects: list[Effect] = []
    for tick in range(10, 30):
        effects.extend(replica.core.progress(1, "u1", write=tick))
    assert [effect.code for effect in effects if isinstance(effect, EndStream)] == ["RESOURCE_EXHAUSTED"]


def test_an_answer_above_the_limit_is_an_error() -> None:
    replica = Replica(index("u1"))
    replica.core.progress(1, "u1", write=9)
    replica.send(UpdateConfiguration({"result.maxSize": "3"}), Peek(UUID, 7, index="u1"))
    replica.said()
    replica.core.answer(UUID, [ROWS])
    (answer,) = replica.said()
    assert isinstance(answer, PeekResponse)
    assert isinstance(answer.result, Failure)
    assert answer.result.code == "TooLarge"


def test_a_part_that_no_message_can_carry_is_our_own_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "PART_BYTES_MAX", 3)
    replica = Replica(index("u1"))
    replica.core.progress(1, "u1", write=9)
    replica.send(Peek(UUID, 7, index="u1"))
    with pytest.raises(LocalProtocolError):
        replica.core.answer(UUID, [ROWS])


def test_too_many_peeks_dataflows_and_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "PEEKS_MAX", 1)
    monkeypatch.setattr(replica_module, "DATAFLOWS_MAX", 1)
    monkeypatch.setattr(replica_module, "COMMANDS_MAX", 1)
    replica = Replica(index("u1"))
    replica.said()
    replica.send(Peek(UUID, 7, index="u1"), Peek(OTHER, 7, index="u1"))
    (answer,) = replica.said()
    assert isinstance(answer, PeekResponse)
    assert isinstance(answer.result, Failure)
    replica.send(index("u4"))
    assert replica.ended == ["RESOURCE_EXHAUSTED"]
    replica.effects.clear()
    replica.begin(index("u1"), Schedule("u1"), complete=False)
    assert replica.ended == ["RESOURCE_EXHAUSTED"]
