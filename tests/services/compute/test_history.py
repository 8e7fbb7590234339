"""Reduction and reconciliation against an interpreter that keeps every command (docs/specs/compute.md 7, 8)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pavane.compute.state.history import History, HistoryError, Regressed, Repeated, StillAlive
from pavane.compute.state.reconcile import Unfit, reconcile, same_runtime
from pavane.compute.wire.commands import (
    AllowCompaction,
    AllowWrites,
    BuildStep,
    CancelPeek,
    Command,
    CopyTo,
    CreateDataflow,
    CreateInstance,
    CreateTimely,
    DataflowDescription,
    IndexExport,
    IndexImport,
    InitializationComplete,
    Introspection,
    MaterializedView,
    Peek,
    RuntimeConfig,
    Schedule,
    SinkExport,
    SourceImport,
    Subscribe,
    UpdateConfiguration,
)
from pavane.compute.wire.common import CLOSED, Epoch, Token

IDS = st.sampled_from(["u1", "u2", "u3", "s1"])
EXPORTS = st.sampled_from([("u1",), ("u2",), ("u3",), ("u1", "u2"), ("u2", "u3")])
TICKS = st.integers(0, 5)
UUIDS = st.sampled_from([bytes([n]) * 16 for n in range(3)])
TOKENS = st.builds(Token, st.just(1), st.integers(0, 3))
INSTANCE = CreateInstance("compute", 1, introspection=Introspection(1000, {"frontiers": "s1"}))
START: tuple[Command, ...] = (CreateTimely(Epoch(1, 1), bytes(16)), INSTANCE)


def dataflow(*exports: str, as_of: int = 0, plan: bytes = b"", imports: tuple[str, ...] = ()) -> CreateDataflow:
    return CreateDataflow(
        DataflowDescription(
            as_of,
            sources=(SourceImport("s9"),),
            indexes=tuple(IndexImport(id_) for id_ in imports),
            steps=(BuildStep("t1", plan),),
            index_exports=tuple(IndexExport(id_, "t1") for id_ in exports),
        )
    )


COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(lambda exports, as_of: dataflow(*exports, as_of=as_of), EXPORTS, TICKS),
    st.builds(Schedule, IDS),
    st.builds(AllowCompaction, IDS, TICKS | st.just(CLOSED)),
    st.builds(AllowCompaction, IDS, TICKS | st.just(CLOSED)),
    st.builds(Peek, UUIDS, TICKS, index=IDS),
    st.builds(CancelPeek, UUIDS),
    st.builds(UpdateConfiguration, st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"), max_size=2)),
    st.builds(AllowWrites, TOKENS, st.none() | IDS),
    st.just(InitializationComplete()),
)
SEQUENCES = st.lists(COMMANDS, max_size=30)


@dataclass
class Incarnation:
    as_of: int
    exports: tuple[str, ...]
    said: dict[str, list[int]] = field(default_factory=dict)
    scheduled: set[str] = field(default_factory=set)
    allowed: dict[str, Token] = field(default_factory=dict)

    def since(self, id_: str) -> int:
        return max(self.as_of, *self.said.get(id_, [0]))

    @property
    def alive(self) -> bool:
        return any(self.since(id_) != CLOSED for id_ in self.exports)


def interpreted(commands: Iterable[Command]) -> object:
    """The state of a replica that forgets nothing: what has to be equal for two histories to be."""
    flows: list[Incarnation] = []
    config: dict[str, str] = {}
    peeks: dict[bytes, Peek] = {}
    introspection = 0
    initialized, allowed = False, None
    for c in commands:
        id_ = getattr(c, "id", None)
        mine = [flow for flow in flows if flow.alive and id_ in flow.exports and flow.since(id_) != CLOSED]
        match c:
            case UpdateConfiguration():
                config |= c.settings
            case CreateDataflow():
                flows.append(Incarnation(c.dataflow.as_of, c.dataflow.exports))
                peeks = {uuid: peek for uuid, peek in peeks.items() if peek.index not in c.dataflow.exports}
            case Schedule():
                for flow in mine:
                    flow.scheduled.add(c.id)
            case AllowCompaction(id="s1"):
                introspection = c.frontier
            case AllowCompaction():
                for flow in mine:
                    flow.said.setdefault(c.id, []).append(c.frontier)
            case Peek():
                peeks[c.uuid] = c
            case CancelPeek():
                peeks.pop(c.uuid, None)
            case InitializationComplete():
                initialized = True
            case AllowWrites(id=None):
                allowed = c.token if allowed is None else max(allowed, c.token)
            case AllowWrites():
                for flow in mine:
                    flow.allowed[c.id or ""] = max(flow.allowed.get(c.id or "", c.token), c.token)
    alive = [flow for flow in flows if flow.alive]
    return (
        config,
        [(flow.exports, min(map(flow.since, flow.exports)), list(map(flow.since, flow.exports))) for flow in alive],
        {id_ for flow in alive for id_ in flow.scheduled if flow.since(id_) != CLOSED},
        {id_: token for flow in alive for id_, token in flow.allowed.items() if flow.since(id_) != CLOSED},
        peeks,
        introspection,
        initialized,
        allowed,
    )


def accepted(sequence: Sequence[Command]) -> tuple[list[Command], History]:
    """Those commands that a history takes, and the history."""
    history, taken = History(START), list(START)
    for command in sequence:
        try:
            history.push(command)
        except HistoryError:
            continue
        taken.append(command)
    return taken, history


@given(SEQUENCES)
def test_a_reduced_history_means_the_same(sequence: list[Command]) -> None:
    taken, history = accepted(sequence)
    assert interpreted(history.commands()) == interpreted(taken)


@given(SEQUENCES)
def test_reduction_is_idempotent_and_small(sequence: list[Command]) -> None:
    _, history = accepted(sequence)
    once = history.commands()
    assert History(once).commands() == once
    flows = history.flows
    # Two kinds of frontiers, schedules and permissions per export; one frontier per introspection id.
    assert len(once) <= 5 + sum(1 + 3 * len(exports) for exports in flows) + len(history.peeks) + 1


@given(SEQUENCES, COMMANDS)
def test_a_refused_command_changes_nothing(sequence: list[Command], command: Command) -> None:
    _, history = accepted(sequence)
    before = history.commands()
    try:
        effect = history.push(command)
    except HistoryError:
        effect = False
    if not effect:
        assert history.commands() == before


@given(SEQUENCES, SEQUENCES, st.booleans())
def test_reconciling_is_the_same_as_beginning_afresh(old: list[Command], new: list[Command], reuse: bool) -> None:
    _, former = accepted(old)
    former.peeks.clear()
    former.initialized, former.allowed, former.configuration = False, None, {}
    _, wanted = accepted(new)
    fresh = wanted.commands()
    plan = reconcile(former, fresh, reuse=reuse)
    if not reuse:
        assert not plan.retained
    state = [each for each in (*former.commands(), *plan.drops, *plan.commands) if not _about_the_replica(each)]
    seen = interpreted(state)
    expected = interpreted(each for each in fresh if not _about_the_replica(each))
    assert _comparable(seen) == _comparable(expected)


def _about_the_replica(command: Command) -> bool:
    return isinstance(command, AllowCompaction) and command.id == "s1"


def _comparable(state: object) -> object:
    # Whoever retains a dataflow keeps its permission and its schedule: they are not taken back.
    assert isinstance(state, tuple)
    config, flows, _, _, *rest = state
    return config, sorted(flows), rest


def test_one_dropped_export_does_not_end_the_others() -> None:
    history = History([*START, dataflow("u1", "u2", as_of=3)])
    history.push(AllowCompaction("u1", CLOSED))
    assert history.commands()[2:] == (dataflow("u1", "u2", as_of=3), AllowCompaction("u1", CLOSED))
    history.push(AllowCompaction("u2", 7))
    assert history.commands()[2:] == (dataflow("u1", "u2", as_of=7), AllowCompaction("u1", CLOSED))
    history.push(AllowCompaction("u2", CLOSED))
    assert history.commands() == START


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (AllowCompaction("u1", 4), Regressed),
        (AllowCompaction("s1", CLOSED), Regressed),
        (dataflow("u1"), StillAlive),
        (dataflow("u3", "u3"), StillAlive),
        (dataflow("s1"), StillAlive),
        (Peek(bytes(16), 9, index="u1"), Repeated),
        (INSTANCE, Repeated),
        (CreateTimely(Epoch(1, 2), bytes(16)), Repeated),
        (InitializationComplete(), Repeated),
    ],
)
def test_what_a_history_refuses(command: Command, error: type[HistoryError]) -> None:
    history = History([*START, dataflow("u1"), AllowCompaction("u1", 5), Peek(bytes(16), 5, index="u1")])
    history.push(InitializationComplete())
    with pytest.raises(error):
        history.push(command)


def test_a_peek_does_not_meet_a_later_incarnation() -> None:
    history = History([*START, dataflow("u1"), Peek(bytes(16), 5, index="u1"), AllowCompaction("u1", CLOSED)])
    assert history.peeks
    history.push(dataflow("u1", as_of=9))
    assert not history.peeks


def test_hints_of_imports_are_refreshed() -> None:
    created = History([dataflow("u1")]).commands({"s9": 77})[0]
    assert isinstance(created, CreateDataflow)
    assert created.dataflow.sources[0].upper == 77


def with_sink(connection: Subscribe | CopyTo | MaterializedView) -> CreateDataflow:
    sink = SinkExport("u1", "t1", connection)
    return CreateDataflow(replace(dataflow("u2").dataflow, index_exports=(), sink_exports=(sink,)))


@pytest.mark.parametrize(
    ("old", "new", "unfit"),
    [
        ((), dataflow("u1"), Unfit.UNKNOWN),
        ((dataflow("u1", "u2"),), dataflow("u1"), Unfit.UNKNOWN),
        ((dataflow("u1", plan=b"x"),), dataflow("u1", plan=b"y"), Unfit.INCOMPATIBLE),
        ((dataflow("u1", as_of=5),), dataflow("u1", as_of=4), Unfit.AS_OF),
        ((dataflow("u1", "u2"), AllowCompaction("u1", 5)), dataflow("u1", "u2", as_of=4), Unfit.COMPACTED),
        ((dataflow("u1", "u2"), AllowCompaction("u1", CLOSED)), dataflow("u1", "u2", as_of=4), Unfit.COMPACTED),
        ((with_sink(Subscribe()),), with_sink(Subscribe()), Unfit.SUBSCRIBE),
        ((with_sink(CopyTo("x")),), with_sink(CopyTo("x")), Unfit.COPY_TO),
        ((dataflow("u1", imports=("u2",)),), dataflow("u1", imports=("u2",)), Unfit.IMPORT),
        ((dataflow("u1"), AllowCompaction("u1", 4)), dataflow("u1", as_of=4), None),
        ((dataflow("u1", "u2"),), dataflow("u2", "u1", as_of=4), None),
        ((with_sink(MaterializedView("c")),), with_sink(MaterializedView("c")), None),
    ],
)
def test_what_is_reused(old: tuple[Command, ...], new: CreateDataflow, unfit: Unfit | None) -> None:
    plan = reconcile(History([*START, *old]), [*START, new])
    exports = new.dataflow.exports
    assert plan.rebuilt == ({} if unfit is None else {exports: unfit})
    assert plan.retained == (frozenset(exports) if unfit is None else frozenset())
    dropped = [command.id for command in plan.drops]
    assert dropped == ([] if unfit is None else [id_ for flow in History(old).flows for id_ in flow if alive(old, id_)])


def alive(commands: tuple[Command, ...], id_: str) -> bool:
    return AllowCompaction(id_, CLOSED) not in commands


def test_internal_ids_do_not_matter() -> None:
    new = dataflow("u1").dataflow
    renumbered = replace(new, steps=(BuildStep("t7"),), index_exports=(IndexExport("u1", "t7"),))
    hinted = replace(renumbered, sources=(SourceImport("s9", upper=3),), debug_name="other")
    assert reconcile(History([*START, CreateDataflow(hinted)]), [dataflow("u1")]).retained == {"u1"}


@pytest.mark.parametrize(
    ("wanted", "same"),
    [
        (RuntimeConfig(engine={"memory": "2"}), True),
        (RuntimeConfig(engine={"memory": "1", "name": "Plain"}), False),
        (RuntimeConfig(workers=2, engine={"memory": "1"}), False),
        (RuntimeConfig(addresses=("a",), engine={"memory": "1"}), False),
    ],
)
def test_which_engine_serves(wanted: RuntimeConfig, same: bool) -> None:
    assert same_runtime(RuntimeConfig(engine={"memory": "1"}), wanted, frozenset({"memory"})) is same
