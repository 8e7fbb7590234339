"""Who leads, when a generation has caught up, and where dataflows start (docs/specs/compute.md 10.7, 11)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pavane.compute.core.controller import ControllerCore
from pavane.compute.core.leading import (
    AllowSinks,
    CaughtUp,
    Exit,
    FenceTicks,
    Leadership,
    Outcome,
    PutToken,
    ReadDefinitions,
)
from pavane.compute.state.as_of import Stored, choose_as_of
from pavane.compute.wire import (
    CLOSED,
    DataflowDescription,
    Frontiers,
    IndexExport,
    IndexImport,
    MaterializedView,
    SinkExport,
    SourceImport,
    Token,
)
from pavane.wire import LocalProtocolError

OWN = Token(3, 7)


@pytest.mark.parametrize("stored", [None, Token(3, 6), Token(3, 9)])
def test_a_controller_of_the_catalogs_generation_leads_at_once(stored: Token | None) -> None:
    lead = Leadership(3, 7)
    assert lead.found(stored, 11) == (PutToken(OWN, 11),)
    assert lead.token_put(Outcome.PUT) == (FenceTicks(OWN),)
    assert not lead.writes
    assert lead.ticks_fenced(40) == (AllowSinks(OWN, 40),)
    assert lead.writes


def test_an_older_generation_goes() -> None:
    lead = Leadership(3, 7)
    assert [type(effect) for effect in lead.found(Token(4, 1), 11)] == [Exit]
    assert lead.gone
    assert lead.permitted() == ()


def test_a_newer_generation_waits_for_permission_and_until_it_has_caught_up() -> None:
    for permitted_first in (True, False):
        lead = Leadership(3, 7)
        assert lead.found(Token(2, 5), 11) == ()
        if permitted_first:
            assert lead.permitted() == ()
            assert lead.definitions(11, ready=False) == ()
            assert lead.definitions(11, ready=True) == (PutToken(OWN, 11),)
        else:
            assert lead.definitions(11, ready=True) == ()
            assert lead.permitted() == (PutToken(OWN, 11),)
        assert lead.permitted() == ()


def test_a_definition_accepted_meanwhile_is_not_lost() -> None:
    lead = Leadership(3, 7)
    lead.found(Token(2, 5), 11)
    lead.definitions(11, ready=True)
    lead.permitted()
    assert lead.token_put(Outcome.DEFINITIONS_MOVED) == (ReadDefinitions(),)
    assert lead.definitions(12, ready=False) == ()
    assert lead.definitions(12, ready=True) == (PutToken(OWN, 12),)
    assert lead.token_put(Outcome.PUT) == (FenceTicks(OWN),)
    assert lead.token_put(Outcome.FENCED) == ()


def test_who_is_fenced_goes_at_once_and_once() -> None:
    lead = Leadership(3, 7)
    lead.found(None, 1)
    assert [type(effect) for effect in lead.token_put(Outcome.FENCED)] == [Exit]
    lead = Leadership(3, 7)
    lead.found(None, 1)
    lead.token_put(Outcome.PUT)
    assert lead.seen(OWN) == ()
    assert lead.seen(Token(2, 99)) == ()
    assert [type(effect) for effect in lead.seen(Token(3, 8))] == [Exit]
    assert lead.seen(Token(4, 1)) == ()
    assert lead.ticks_fenced(3) == ()
    assert not lead.writes


def test_nobody_asks_before_the_catalog_was_read() -> None:
    lead = Leadership(3, 7)
    lead.permitted()
    lead._ready = True  # what no caller can bring about
    with pytest.raises(LocalProtocolError):
        lead.permitted()


def test_blockers_until_all_has_been_well_for_some_time() -> None:
    core = ControllerCore(3, 7)
    core.create(DataflowDescription(5, index_exports=(IndexExport("u1", "t1"),)))
    caught = CaughtUp(allowed_lag=10, stability_s=5)

    def reasons(now: float, live: int = 100) -> list[str]:
        return [each.reason for each in caught.blockers(core, {"u1": live}, 200, frozenset({"r0"}), now)]

    assert reasons(0) == ["ReplicaOffline", "Lagging"]
    connection = core.connect("r0")
    core.opened("r0", connection)
    assert reasons(0) == ["NotHydrated"]
    core.receive("r0", connection, Frontiers("u1", output=89))
    assert reasons(0) == ["Lagging"]
    core.receive("r0", connection, Frontiers("u1", output=90))
    assert reasons(1) == ["WithinStabilityPeriod"]
    assert reasons(4, live=101) == ["Lagging"]
    assert reasons(5) == ["WithinStabilityPeriod"]
    assert reasons(9.9) == ["WithinStabilityPeriod"]
    assert reasons(10) == []
    assert reasons(11, live=CLOSED) == []
    assert [each.reason for each in caught.blockers(core, {}, 101, frozenset(), 12)] == ["Lagging"]


# ---- as_of


def flow(
    id_: str, *, source: str = "", imports: tuple[str, ...] = (), chain: str = "", initial: int = 0
) -> DataflowDescription:
    return DataflowDescription(
        0,
        sources=(SourceImport(source),) if source else (),
        indexes=tuple(IndexImport(each) for each in imports),
        index_exports=() if chain else (IndexExport(id_, "t1"),),
        sink_exports=(SinkExport(id_, "t1", MaterializedView(chain, initial_as_of=initial)),) if chain else (),
    )


def test_a_view_starts_at_its_chains_end_or_where_the_chain_is_to_begin() -> None:
    stored = {"s1": Stored(2, 50)}
    flows = [flow("u1", source="s1", chain="c1"), flow("u2", source="s1", chain="c2", initial=9)]
    choices = choose_as_of(flows, stored, {"c1": 20}, tick=40)
    assert [choice.as_of for choice in choices] == [20, 9]


def test_an_index_starts_as_late_as_it_can_and_no_later_than_who_imports_it() -> None:
    stored = {"s1": Stored(2, 50)}
    flows = [flow("u1", source="s1"), flow("u2", imports=("u1",), chain="c2")]
    assert [choice.as_of for choice in choose_as_of(flows[:1], stored, {}, tick=60)] == [49]
    assert [choice.as_of for choice in choose_as_of(flows, stored, {"c2": 20}, tick=60)] == [20, 20]


def test_what_can_no_longer_be_read_fails_with_who_imports_it_and_what_is_finished_rests() -> None:
    stored = {"s1": Stored(30, 50)}
    flows = [
        flow("u1", source="s1", chain="c1"),
        flow("u2", source="s1"),
        flow("u3", imports=("u2",), chain="c3"),
        flow("u4", source="s1", chain="c4"),
    ]
    choices = choose_as_of(flows, stored, {"c1": 20, "c3": 35, "c4": CLOSED}, tick=60)
    assert [choice.as_of for choice in choices] == [None, 35, 35, None]
    assert choices[0].reason.startswith("SinceAdvanced")
    assert choices[3].reason == ""


@given(st.data())
def test_no_hard_bound_is_broken(draw: st.DataObject) -> None:
    number = st.integers(0, 20)
    stored = {id_: Stored(draw.draw(number), draw.draw(number) + 1) for id_ in ("s1", "s2")}
    flows: list[DataflowDescription] = []
    chains: dict[str, int] = {}
    for n in range(draw.draw(st.integers(1, 5))):
        earlier = [each.exports[0] for each in flows if each.index_exports]
        imports = tuple(draw.draw(st.lists(st.sampled_from(earlier), max_size=2, unique=True))) if earlier else ()
        chain = f"c{n}" if draw.draw(st.booleans()) else ""
        source = draw.draw(st.sampled_from(["", "s1", "s2"]))
        flows.append(flow(f"u{n}", source=source, imports=imports, chain=chain, initial=draw.draw(number)))
        if chain and draw.draw(st.booleans()):
            chains[chain] = draw.draw(number | st.just(CLOSED))
    choices = choose_as_of(flows, stored, chains, tick=draw.draw(number))
    chosen = {each.exports[0]: choice.as_of for each, choice in zip(flows, choices, strict=True)}
    for each, choice in zip(flows, choices, strict=True):
        if choice.as_of is None:
            continue
        assert all(choice.as_of >= stored[source.id].since for source in each.sources)
        for sink in each.sink_exports:
            assert isinstance(sink.connection, MaterializedView)
            assert choice.as_of <= chains.get(sink.connection.chain, sink.connection.initial_as_of)
        for imported in each.indexes:
            other = chosen[imported.id]
            assert other is not None
            assert other <= choice.as_of
