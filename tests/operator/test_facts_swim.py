"""What members say of a SwimGroup, judged (docs/specs/operator.md 3.2)."""

from dataclasses import replace
from typing import Any

import pytest

from pavane.swim.wire.values import NodeStage, State
from pavane.wire.stages import Stage
from pavane_operator.crds.swimgroup import SwimMembers
from pavane_operator.kinds.swim.facts import ACTIVATE, ALLOW_WRITES, facts
from pavane_operator.kinds.swim.members import Entry, Table, table_of
from pavane_operator.kinds.swim.names import member_id
from pavane_operator.plan.model import Child, Observed, Pod, StageView
from tests.operator.test_render_swim import resource

FOREIGN = 7


def pods(generation: int, stage: Stage, count: int = 2, *, leads: bool = True) -> list[Pod]:
    view = StageView(stage, connected=True, leads=leads)
    names = [f"crew-member-g{generation}-{ordinal}" for ordinal in range(count)]
    return [Pod(name, name, "1", generation, address="10.0.0.1", stage=view) for name in names]


def child(kind: str, name: str, generation: int | None = None, **body: Any) -> Child:
    labels = {} if generation is None else {"pavane.dev/generation": str(generation)}
    return Child(kind, name, "uid", "1", {"metadata": {"labels": labels}, **body})


def active(number: int) -> Child:
    return child("ConfigMap", "crew-active", data={"generation": f"{number}\n"})


def table(of: list[Pod], digest: str = "d", *others: int, dead: int = 0) -> Table:
    ids = [*(member_id("data", pod.name) for pod in of), *others]
    entries = {one: Entry(one, 1, None, State.ALIVE, NodeStage.READ_WRITE, 1) for one in ids}
    return Table(ids[0], digest, dead, (), entries)


OLD, NEW = pods(1, Stage.READ_WRITE), pods(2, Stage.READ_WRITE)
ROLLING = resource(1, 2, replicas=2)


def test_a_generation_leads_when_all_are_full_members_whom_everybody_asked_knows() -> None:
    observed = Observed(fresh=True, children=(active(2),), pods=(*OLD, *NEW))
    everybody = table([*OLD, *NEW])
    found = facts(ROLLING, observed, [everybody, everybody])
    assert found.leads
    assert found.steps_done == {ACTIVATE, ALLOW_WRITES}
    assert found.fence == 2
    assert not facts(ROLLING, observed, []).leads
    assert not facts(ROLLING, observed, [everybody, table([*OLD, *NEW], "other")]).leads
    assert not facts(ROLLING, observed, [table([*OLD, NEW[0]])]).leads, "one is in a group of its own"
    late = replace(NEW[1], stage=StageView(Stage.READ_ONLY, connected=True))
    missing = facts(ROLLING, replace(observed, pods=(*OLD, NEW[0], late)), [everybody])
    assert (missing.leads, missing.steps_done) == (False, frozenset({ACTIVATE}))


def test_the_fence_is_the_number_in_the_object_before_anybody_writes() -> None:
    observed = Observed(fresh=True, children=(active(1),), pods=(*OLD, *pods(2, Stage.READ_ONLY)))
    found = facts(ROLLING, observed, [table(OLD)])
    assert (found.fence, found.steps_done) == (1, frozenset())
    activated = facts(ROLLING, replace(observed, children=(active(2),)), [table(OLD)])
    assert (activated.fence, activated.steps_done) == (2, frozenset({ACTIVATE}))


def test_one_full_member_has_to_be_known_anybodys() -> None:
    observers = Observed(fresh=True, pods=(*pods(1, Stage.READ_ONLY), *pods(2, Stage.READ_ONLY)))
    lost = facts(ROLLING, observers, [])
    assert lost.safety is not None
    assert lost.safety.reason == "NoFullMember"
    assert lost.down is not None
    assert facts(ROLLING, observers, [table([], "d", FOREIGN)]).safety is None
    assert facts(resource(None, 1), observers, []).safety is None, "a bootstrap has none"


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ([], "MembersUnknown"),
        ([[*NEW, OLD[0], OLD[1]]], "LeaveNotVisible"),
        ([[*NEW, OLD[0]]], None),
    ],
)
def test_the_next_old_members_leave_when_those_before_are_gone_everywhere(
    tables: list[list[Pod]], reason: str | None
) -> None:
    shrunk = child("StatefulSet", "crew-member-g1", 1, spec={"replicas": 1})
    shrunk.body["metadata"]["annotations"] = {"pavane.dev/replicas": "2"}
    observed = Observed(fresh=True, children=(active(2), shrunk), pods=(*NEW, OLD[0]))
    found = facts(resource(2, None, replicas=2), observed, [table(each) for each in tables])
    assert (found.parting.reason if found.parting else None) == reason


def test_old_members_wait_for_those_who_do_not_agree_yet() -> None:
    observed = Observed(fresh=True, pods=(*pods(2, Stage.READ_WRITE, leads=False), *OLD))
    found = facts(resource(2, None), observed, [table([*NEW, *OLD])])
    assert found.parting is not None
    assert found.parting.reason == "DigestDisagrees"


def test_the_status_counts_members_and_tells_those_of_others_apart() -> None:
    told = table(OLD, "0011223344556677", FOREIGN, dead=3)
    told.members[FOREIGN] = replace(told.members[FOREIGN], state=State.SUSPECT)  # type: ignore[index]
    found = facts(resource(1), Observed(fresh=True, pods=tuple(OLD)), [told])
    assert found.own_status["members"] == SwimMembers(alive=2, suspect=1, dead=3, foreign=1)
    assert found.own_status["digest"] == "0011223344556677"
    assert [one.status for one in found.conditions] == [True]
    unheard = facts(resource(1), Observed(fresh=True, pods=tuple(OLD)), [])
    assert [one.status for one in unheard.conditions] == [None]


def test_what_will_change_within_seconds_is_looked_at_again() -> None:
    observed = Observed(fresh=True, pods=tuple(OLD))
    suspecting = table(OLD, "d", FOREIGN)
    suspecting.members[FOREIGN] = replace(suspecting.members[FOREIGN], state=State.SUSPECT)  # type: ignore[index]
    assert facts(resource(1), observed, [table(OLD), table(OLD, "other")]).settling
    assert facts(resource(1), observed, [suspecting]).settling
    assert not facts(resource(1), observed, [table(OLD), table(OLD)]).settling
    assert not facts(resource(1), observed, []).settling, "nobody tells, so nothing is known to change"


@pytest.mark.parametrize("document", [None, {}, {"members": [{}]}, {"members": [], "id": "x"}])
def test_what_is_no_table_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match=r"members|invalid literal"):
        table_of(document)
