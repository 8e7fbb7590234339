"""What a controller sends and when, with replicas that are scripted (docs/specs/compute.md 10, 19)."""

from collections.abc import Iterable

import pytest

from pavane.compute.core.controller import (
    Answered,
    ControllerCore,
    Effect,
    Ended,
    Hang,
    Quarantined,
    Send,
    SinceAdvanced,
    Updates,
)
from pavane.compute.wire.commands import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    Command,
    CreateDataflow,
    DataflowDescription,
    IndexExport,
    IndexImport,
    InitializationComplete,
    MaterializedView,
    Peek,
    Schedule,
    SinkExport,
    SourceImport,
    Subscribe,
    UpdateConfiguration,
)
from pavane.compute.wire.common import CLOSED, Epoch, Failure, Rows, Token
from pavane.compute.wire.responses import (
    Batch,
    Canceled,
    Frontiers,
    PeekResponse,
    Response,
    RowsPart,
    StageReport,
    Stashed,
    SubscribeResponse,
)
from pavane.wire import LocalProtocolError, Stage

UUID = bytes(range(16))
ROWS = Rows(b"rows", 1, 4)
TABLE = (SourceImport("s1"),)


def index(id_: str = "u1", as_of: int = 5, imports: tuple[str, ...] = ()) -> DataflowDescription:
    indexes = tuple(IndexImport(each) for each in imports)
    return DataflowDescription(as_of, sources=TABLE, indexes=indexes, index_exports=(IndexExport(id_, "t1"),))


def sink(id_: str, connection: MaterializedView | Subscribe, as_of: int = 5) -> DataflowDescription:
    return DataflowDescription(as_of, sources=TABLE, sink_exports=(SinkExport(id_, "t1", connection),))


class Controller:
    """A core with the connections of its replicas; effects are noted in order."""

    def __init__(self, *replicas: str) -> None:
        self.core = ControllerCore(3, 7)
        self.effects: list[Effect] = []
        self.connections: dict[str, Epoch] = {}
        for replica in replicas:
            self.connect(replica)
        self.effects.clear()

    def connect(self, replica: str) -> None:
        self.connections[replica] = self.core.connect(replica)
        self.note(self.core.opened(replica, self.connections[replica]))

    def note(self, effects: Iterable[Effect]) -> None:
        self.effects.extend(effects)

    def say(self, replica: str, response: Response) -> None:
        self.note(self.core.receive(replica, self.connections[replica], response))

    def at(self, replica: str, frontier: int, id_: str = "u1") -> None:
        self.say(replica, Frontiers(id_, frontier, frontier, frontier))

    def sent(self, replica: str = "r0") -> list[Command]:
        sent = [effect.command for effect in self.effects if isinstance(effect, Send) and effect.replica == replica]
        self.effects = [
            effect for effect in self.effects if not (isinstance(effect, Send) and effect.replica == replica)
        ]
        return sent

    def others(self) -> list[Effect]:
        found: list[Effect] = [effect for effect in self.effects if not isinstance(effect, Send)]
        self.effects = [effect for effect in self.effects if isinstance(effect, Send)]
        return found


def peek(tick: int) -> Peek:
    return Peek(UUID, tick, index="u1")


def test_a_dataflow_is_created_scheduled_when_its_inputs_are_there_and_compacted_as_it_moves() -> None:
    c = Controller("r0")
    c.note(c.core.create(index()))
    assert c.sent() == [CreateDataflow(index())]
    c.note(c.core.advance({"s1": 5}))
    assert c.sent() == []
    c.note(c.core.advance({"s1": 6}))
    assert c.sent() == [Schedule("u1")]
    c.at("r0", 9)
    assert c.sent() == [AllowCompaction("u1", 8)]
    assert c.core.collections["u1"].hydrated


def test_a_late_replica_gets_the_reduced_history() -> None:
    c = Controller("r0")
    c.note(c.core.advance({"s1": 6}))
    c.note(c.core.create(index()))
    c.note(c.core.create(index("u2")))
    c.note(c.core.configure({"a": "1"}))
    c.note(c.core.configure({"a": "2"}))
    c.note(c.core.drop(["u2"]))
    c.at("r0", 9)
    c.connect("r1")
    (created, *rest) = c.sent("r1")[1:]
    assert isinstance(created, CreateDataflow)
    assert (created.dataflow.as_of, created.dataflow.sources[0].upper) == (8, 6)
    assert rest == [Schedule("u1"), InitializationComplete()]


def test_a_peek_is_cancelled_everywhere_before_its_tick_may_be_compacted() -> None:
    c = Controller("r0", "r1")
    c.note(c.core.create(index()))
    c.note(c.core.peek(UUID, "u1", at=6))
    for replica in ("r0", "r1"):
        c.at(replica, 20)
    assert c.sent() == [CreateDataflow(index()), peek(6), AllowCompaction("u1", 6)]
    c.sent("r1")
    c.say("r0", PeekResponse(UUID, ROWS))
    for replica in ("r0", "r1"):
        assert c.sent(replica) == [CancelPeek(UUID), AllowCompaction("u1", 19)]
    c.say("r1", PeekResponse(UUID, ROWS))
    c.say("r1", PeekResponse(UUID, Canceled()))
    assert c.others() == [Answered(UUID, 6, (ROWS,))]


def test_a_peek_at_a_tick_that_is_gone_or_of_nothing() -> None:
    c = Controller("r0")
    c.note(c.core.create(index()))
    with pytest.raises(SinceAdvanced):
        c.core.peek(UUID, "u1", at=4)
    with pytest.raises(LocalProtocolError):
        c.core.peek(UUID, "u9")
    with pytest.raises(LocalProtocolError):
        c.core.peek(UUID, "u1", target="r9")
    c.core.peek(UUID, "u1", at=5)
    with pytest.raises(LocalProtocolError):
        c.core.peek(UUID, "u1", at=5)


def test_now_waits_for_the_first_tick_and_for_what_is_asked_for() -> None:
    c = Controller("r0")
    c.note(c.core.create(index()))
    c.note(c.core.peek(UUID, "u1", after=8))
    c.at("r0", 7)
    c.at("r0", 9)
    assert [command for command in c.sent() if isinstance(command, Peek)] == [peek(8)]


def test_now_is_bounded_by_what_this_leader_minted_and_found() -> None:
    c = Controller("r0")
    c.note(c.core.create(index()))
    c.note(c.core.tick(12, floor=12))
    c.note(c.core.peek(UUID, "u1"))
    c.at("r0", 12)
    assert not [command for command in c.sent() if isinstance(command, Peek)]
    c.at("r0", 20)
    assert [command for command in c.sent() if isinstance(command, Peek)] == [peek(12)]
    assert c.core.now("u1") == 12
    c.note(c.core.tick(15))
    assert c.core.now("u1") == 15


def test_now_does_not_fall_when_a_replica_is_lost() -> None:
    c = Controller("r0")
    c.note(c.core.create(index()))
    c.at("r0", 20)
    c.note(c.core.closed("r0", c.connections["r0"]))
    assert c.core.now("u1") == 19
    c.connect("r0")
    assert c.core.now("u1") == 19
    c.sent()
    c.note(c.core.peek(UUID, "u1"))
    assert c.sent() == [peek(19)]


def test_a_former_connection_says_nothing_any_more() -> None:
    c = Controller("r0")
    c.note(c.core.create(index()))
    former = c.connections["r0"]
    c.connect("r0")
    assert c.connections["r0"] == Epoch(7, 2)
    assert c.core.receive("r0", former, Frontiers("u1", 99)) == ()
    assert c.core.closed("r0", former) == ()
    assert c.core.opened("r0", former) == ()
    assert c.core.collections["u1"].write == 0
    assert c.core.ignored == 1


def test_a_peek_that_named_a_replica_fails_with_it_and_others_survive() -> None:
    c = Controller("r0", "r1")
    c.note(c.core.create(index()))
    other = bytes(16)
    c.note(c.core.peek(UUID, "u1", at=6, target="r0"))
    c.note(c.core.peek(other, "u1", at=6))
    assert peek(6) not in c.sent("r1")
    c.note(c.core.closed("r0", c.connections["r0"]))
    (answer,) = c.others()
    assert isinstance(answer, Answered)
    assert isinstance(answer.result, Failure)
    c.effects.clear()
    c.connect("r0")
    assert [command.uuid for command in c.sent() if isinstance(command, Peek)] == [other]


def test_a_drop_waits_for_peeks_and_importers_and_all_replicas() -> None:
    c = Controller("r0", "r1")
    c.note(c.core.create(index()))
    c.note(c.core.create(index("u2", imports=("u1",))))
    c.note(c.core.peek(UUID, "u1", at=6))
    c.effects.clear()
    c.note(c.core.drop(["u1"]))
    assert c.sent() == []
    c.note(c.core.drop(["u2"]))
    assert c.sent() == [AllowCompaction("u2", CLOSED), AllowCompaction("u1", 6)]
    c.note(c.core.cancel(UUID))
    assert c.sent() == [CancelPeek(UUID), AllowCompaction("u1", CLOSED)]
    for replica in ("r0", "r1"):
        with pytest.raises(LocalProtocolError):
            c.core.create(index())
        for id_ in ("u1", "u2"):
            c.at(replica, CLOSED, id_)
    assert c.core.collections == {}
    c.note(c.core.create(index(as_of=9)))
    assert c.sent() == [CreateDataflow(index(as_of=9))]


def test_what_ended_by_itself_owes_nothing_when_it_is_dropped() -> None:
    c = Controller("r0")
    c.note(c.core.create(index()))
    c.note(c.core.create(sink("t3", Subscribe())))
    c.at("r0", CLOSED)
    c.say("r0", SubscribeResponse("t3", Batch(0, CLOSED, ROWS)))
    assert set(c.core.collections) == {"u1", "t3"}
    c.note(c.core.drop(["u1", "t3"]))
    assert c.core.collections == {}


def test_a_dropped_collection_ends_peeks_that_wait_for_now() -> None:
    c = Controller("r0")
    c.note(c.core.create(index()))
    c.note(c.core.peek(UUID, "u1"))
    c.note(c.core.drop(["u1"]))
    assert c.others() == [Answered(UUID, 0, Failure("Dropped", "u1 was dropped"))]


def test_an_importer_holds_what_it_imports() -> None:
    c = Controller("r0")
    c.note(c.core.create(index()))
    c.at("r0", 30)
    with pytest.raises(SinceAdvanced):
        c.core.create(index("u2", as_of=28, imports=("u1",)))
    with pytest.raises(LocalProtocolError):
        c.core.create(index("u2", as_of=29, imports=("u9",)))
    c.note(c.core.create(index("u2", as_of=29, imports=("u1",))))
    c.at("r0", 50)
    assert c.core.collections["u1"].since == 29
    c.at("r0", 40, "u2")
    assert c.core.collections["u1"].since == 39


def test_nothing_is_allowed_to_write_before_the_token_and_then_view_by_view() -> None:
    c = Controller("r0")
    token = Token(3, 7)
    c.note(c.core.create(sink("u2", MaterializedView("c2"))))
    c.note(c.core.create(index()))
    assert not [command for command in c.sent() if isinstance(command, AllowWrites)]
    with pytest.raises(LocalProtocolError):
        c.core.allow_writes(Token(2, 7))
    c.note(c.core.allow_writes(token))
    c.note(c.core.create(sink("u4", MaterializedView("c4"))))
    assert [command for command in c.sent() if isinstance(command, AllowWrites)] == [
        AllowWrites(token, "u2"),
        AllowWrites(token, "u4"),
    ]
    c.note(c.core.peek(UUID, "u2", at=6))
    assert c.sent() == [Peek(UUID, 6, chain="c2")]


def test_parts_of_one_answer_come_from_one_replica() -> None:
    c = Controller("r0", "r1")
    c.note(c.core.create(index()))
    c.note(c.core.peek(UUID, "u1", at=6))
    parts = [Rows(bytes([n])) for n in range(2)]
    for replica in ("r0", "r1"):
        c.say(replica, PeekResponse(UUID, RowsPart(0, False, parts[0])))
    c.say("r1", PeekResponse(UUID, RowsPart(1, True, parts[1])))
    assert c.others() == [Answered(UUID, 6, tuple(parts))]


def test_an_answer_that_lies_elsewhere_is_an_error_and_not_waited_for() -> None:
    c = Controller("r0")
    c.note(c.core.create(index()))
    c.note(c.core.peek(UUID, "u1", at=6))
    c.sent()
    c.say("r0", PeekResponse(UUID, Stashed("s3://there", 1, 4)))
    (answer,) = c.others()
    assert isinstance(answer, Answered)
    assert isinstance(answer.result, Failure)
    assert answer.result.code == "Unsupported"
    assert c.sent() == [CancelPeek(UUID)]


def test_a_subscribe_is_told_once_though_its_replica_starts_it_afresh() -> None:
    c = Controller("r0")
    c.note(c.core.create(sink("t3", Subscribe())))
    assert c.sent() == [CreateDataflow(sink("t3", Subscribe())), Schedule("t3")]
    former = c.connections["r0"]
    c.connect("r0")  # before its first batch
    assert c.sent() == [CreateDataflow(sink("t3", Subscribe())), Schedule("t3"), InitializationComplete()]
    assert c.core.receive("r0", former, SubscribeResponse("t3", Batch(0, 7, ROWS))) == ()
    c.say("r0", SubscribeResponse("t3", Batch(0, 9, ROWS)))
    assert c.others() == [Updates("t3", 5, 9, ROWS)]
    assert c.sent() == [AllowCompaction("t3", 8)]
    c.connect("r0")
    created = c.sent()[0]
    assert isinstance(created, CreateDataflow)
    assert created.dataflow.as_of == 8
    c.say("r0", SubscribeResponse("t3", Batch(0, 9, ROWS)))
    assert c.others() == []
    c.say("r0", SubscribeResponse("t3", Batch(9, 12, ROWS)))
    assert c.others() == [Updates("t3", 9, 12, ROWS)]
    c.note(c.core.drop(["t3"]))
    c.say("r0", SubscribeResponse("t3", 12))
    assert c.others() == []
    assert c.core.collections == {}


@pytest.mark.parametrize("kind", [9, Batch(0, 9, Failure("Bad"))])
def test_a_subscribe_that_cannot_go_on_tells_its_user(kind: int | Batch) -> None:
    c = Controller("r0")
    c.note(c.core.create(sink("t3", Subscribe())))
    c.say("r0", SubscribeResponse("t3", kind))
    (ended,) = c.others()
    assert isinstance(ended, Ended)
    assert AllowCompaction("t3", CLOSED) in c.sent()


@pytest.mark.parametrize(
    "said",
    [
        [Frontiers("u1", write=9), Frontiers("u1", write=8)],
        [Frontiers("u1", write=4)],
        [Frontiers("u1", write=CLOSED), Frontiers("u1", write=CLOSED)],
        [Frontiers("t3", write=9)],
        [SubscribeResponse("t3", Batch(1, 9, ROWS))],
        [SubscribeResponse("t3", Batch(0, 9, ROWS)), SubscribeResponse("t3", Batch(8, 12, ROWS))],
        [SubscribeResponse("t3", Batch(0, 4, ROWS))],
        [SubscribeResponse("t3", Batch(0, CLOSED, ROWS)), SubscribeResponse("t3", 9)],
        [PeekResponse(UUID, RowsPart(1, False, ROWS))],
    ],
)
def test_a_replica_that_says_what_cannot_be_is_broken(said: list[Response]) -> None:
    c = Controller("r0")
    c.note(c.core.create(index()))
    c.note(c.core.create(sink("t3", Subscribe())))
    c.note(c.core.peek(UUID, "u1", at=6))
    for response in said[:-1]:
        c.say("r0", response)
    assert not [effect for effect in c.effects if isinstance(effect, Hang)]
    c.say("r0", said[-1])
    assert [effect.replica for effect in c.effects if isinstance(effect, Hang)] == ["r0"]
    assert c.core.connected == {}


@pytest.mark.parametrize(
    "late", [Frontiers("u9", 1), PeekResponse(bytes(16), ROWS), SubscribeResponse("t9", Batch(0, 9, ROWS))]
)
def test_what_is_not_known_any_more_is_ignored(late: Response) -> None:
    c = Controller("r0")
    c.say("r0", late)
    assert c.effects == []
    assert c.core.ignored == 1


def test_reports_are_kept_by_replica() -> None:
    c = Controller("r0")
    report = StageReport(Stage.READ_ONLY, 3)
    c.say("r0", report)
    assert c.core.connected == {"r0": report}
    c.note(c.core.configure({"a": "b"}))
    assert c.sent() == [UpdateConfiguration({"a": "b"})]
    c.note(c.core.remove("r0"))
    assert c.core.connected == {}


def test_only_exits_in_a_row_and_on_account_of_one_dataflow_leave_it_out() -> None:
    c = Controller("r0")
    assert c.core.exited(4, "why", 0) == ()
    c.note(c.core.create(index()))
    for at, code in ((0, 4), (1, 3), (2, 1), (3, 5), (121, 4)):
        assert c.core.exited(code, "why", at) == ()
    c.note(c.core.create(index("u2")))
    c.note(c.core.peek(UUID, "u2", at=6))
    assert c.core.exited(4, "why", 122) == ()
    assert c.core.exited(4, "why", 123) == ()
    c.effects.clear()
    c.note(c.core.exited(4, "why", 124))
    assert c.others() == [Answered(UUID, 6, Failure("Quarantined", "why")), Quarantined(("u2",), "why")]
    assert c.sent() == [CancelPeek(UUID), AllowCompaction("u2", CLOSED)]
    assert c.core.collections["u1"].wanted
