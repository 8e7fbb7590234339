"""Roles that belong to the resource: no retirement deletes them, and their pods are replaced one at a time."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pavane_operator.crds.status import State
from pavane_operator.plan.model import (
    TEMPLATE_ANNOTATION,
    Action,
    ApplyChild,
    Child,
    DeleteChild,
    Facts,
    Manifest,
    Plan,
    Pod,
    Problem,
    Resource,
)
from pavane_operator.plan.planner import plan
from tests.operator.model_cluster_kind import KIND, NAME, ModelRenderer, body_of
from tests.operator.test_plan_status import Lab, conditions_of, reasons_of

STORE = f"{NAME}-store"
CLAIMS = [{"metadata": {"name": "data"}, "spec": {"size": 1}}]


class StandingRenderer(ModelRenderer):
    """Beside its generations this kind has three storage nodes, of the image that the generation recorded."""

    def standing(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        config, stateful_set = body_of("ConfigMap", STORE, None), body_of("StatefulSet", STORE, None)
        mark = {"annotations": {TEMPLATE_ANNOTATION: f"of {revision.body['data']['image']}"}}
        claims = copy.deepcopy(CLAIMS)
        stateful_set["spec"] = {"replicas": 3, "template": {"metadata": mark}, "volumeClaimTemplates": claims}
        return Manifest.of(config), Manifest.of(stateful_set)


STANDING = dataclasses.replace(KIND, renderer=StandingRenderer())


class StoreLab(Lab):
    """A model cluster whose planner knows the standing kind; storage is what the test says it is."""

    def look(self, pods: Sequence[Pod] = (), exchange: Problem | None = None, **changes: Any) -> Plan:
        children = changes.pop("children", None)
        seen = self.operator.observe()
        facts = dataclasses.replace(seen.facts, exchange=exchange)
        present = {"children": (*seen.children, *(self.live() if children is None else children)), "facts": facts}
        observed = dataclasses.replace(seen, standing=tuple(pods), **{**present, **changes})
        return plan(STANDING, self.world.resource(), observed, self.world.now)

    def live(self, claims: Any = None) -> tuple[Child, ...]:
        """The objects as the active generation wants them."""
        revision = next(
            child for child in self.world.children() if child.name == f"{NAME}-g{self.world.status.active_generation}"
        )
        found = []
        for manifest in STANDING.renderer.standing(self.world.resource(), revision):
            body = copy.deepcopy(dict(manifest.body))
            body["metadata"] |= {"uid": f"uid-{manifest.name}", "resourceVersion": "1"}
            if manifest.kind == "StatefulSet" and claims is not None:
                body["spec"]["volumeClaimTemplates"] = claims
            found.append(Child(manifest.kind, manifest.name, f"uid-{manifest.name}", "1", body))
        return tuple(found)


def store_pods(*templates: str, **changes: Mapping[int, Any]) -> list[Pod]:
    """Ready pods of these templates, by ordinal; a change is given per ordinal."""
    return [
        dataclasses.replace(
            Pod(f"{STORE}-{ordinal}", f"uid-{ordinal}", "1", 0, address="127.0.0.1", ready=True, template=template),
            **{name: by_ordinal[ordinal] for name, by_ordinal in changes.items() if ordinal in by_ordinal},
        )
        for ordinal, template in enumerate(templates)
    ]


def deleted(actions: Sequence[Action]) -> list[str]:
    """Names of what is deleted, but volumes: they follow rules of their own."""
    gone = [action for action in actions if isinstance(action, DeleteChild)]
    return [action.name for action in gone if action.kind != "PersistentVolumeClaim"]


def store_set(actions: Sequence[Action]) -> Mapping[str, Any] | None:
    applied = [action.manifest for action in actions if isinstance(action, ApplyChild)]
    return next((each.body["spec"] for each in applied if (each.kind, each.name) == ("StatefulSet", STORE)), None)


@pytest.fixture
def lab() -> StoreLab:
    lab = StoreLab()
    lab.world.change(image="a")
    lab.active(1)
    return lab


def test_what_is_missing_is_made(lab: StoreLab) -> None:
    made = store_set(lab.look(children=()).actions)
    assert made is not None
    assert made["replicas"] == 3


def test_no_retirement_and_no_abort_deletes_storage(lab: StoreLab) -> None:
    lab.world.change(image="b")
    seen = set()
    for _ in range(400):
        planned = lab.look(store_pods("of a", "of a", "of a"), Problem("NotLeading"))
        assert not [name for name in deleted(planned.actions) if name.startswith(STORE)], lab.world.state
        seen.add(lab.world.state)
        if lab.world.state is State.IDLE and lab.world.status.active_generation == 2:
            break
        if lab.operator.turn().empty:
            lab.world.tick()
    assert {State.PROMOTING, State.RETIRING} <= seen
    lab.world.change(image="c")
    lab.until(lambda world: world.state is State.CATCHING_UP)
    lab.world.rollout(abort=3)
    lab.until(lambda world: world.state is State.ABORTING)
    assert not [
        name for name in deleted(lab.look(store_pods("of b", "of b", "of b")).actions) if name.startswith(STORE)
    ]


def test_pods_of_a_former_template_are_replaced_one_at_a_time_as_the_store_allows(lab: StoreLab) -> None:
    old = store_pods("old", "old", "old")
    assert deleted(lab.look(old).actions) == [f"{STORE}-2"]
    assert lab.look(old).critical
    assert deleted(lab.look(old, Problem("ReplicasMissing")).actions) == []
    assert deleted(lab.look(old, facts=Facts()).actions) == [], "the store has not been asked"
    assert deleted(lab.look(store_pods("old", "old", "of a", ready={2: False})).actions) == []
    assert deleted(lab.look(store_pods("old", "old", "of a")).actions) == [f"{STORE}-1"]
    assert deleted(lab.look(old[:2]).actions) == [], "the third is not there yet"
    assert deleted(lab.look(store_pods("old", "old", "old", deleting={0: True})).actions) == []
    assert deleted(lab.look(store_pods("of a", "of a", "of a")).actions) == []


def test_a_pod_that_serves_nobody_is_replaced_first(lab: StoreLab) -> None:
    pods = store_pods("old", "old", "old", ready={0: False})
    assert deleted(lab.look(pods, Problem("ReplicasMissing")).actions) == [f"{STORE}-0"]


def test_the_template_is_applied_before_a_pod_is_replaced(lab: StoreLab) -> None:
    former = lab.live()
    lab.world.change(image="b")
    lab.active(2)
    planned = lab.look(store_pods("of a", "of a", "of a"), children=former)
    assert deleted(planned.actions) == []
    changed = store_set(planned.actions)
    assert changed is not None
    assert changed["template"]["metadata"]["annotations"] == {TEMPLATE_ANNOTATION: "of b"}


def test_while_pods_are_replaced_the_resource_says_so(lab: StoreLab) -> None:
    status = lab.look(store_pods("old", "old", "old"), Problem("ReplicasMissing", "1 of 4 partitions")).status
    assert status is not None
    assert conditions_of(status)["Reconciling"] == ("True", "Replacing")
    assert conditions_of(status)["Ready"] == ("True", "Serving")
    assert (None, "ReplicasMissing") in reasons_of(status)


def test_claims_of_a_set_stay_as_they_are(lab: StoreLab) -> None:
    smaller = [{"metadata": {"name": "data"}, "spec": {"size": 0}}]
    children = lab.live(claims=smaller)
    lab.world.change(image="b")
    lab.active(2)
    applied = store_set(lab.look(children=children).actions)
    assert applied is not None
    assert applied["volumeClaimTemplates"] == smaller


def test_storage_stops_after_the_generation_that_it_serves(lab: StoreLab) -> None:
    lab.world.change(suspend=True)
    planned = lab.look(store_pods("of a", "of a", "of a"))
    assert (store_set(planned.actions) or {"replicas": 3})["replicas"] == 3
    lab.until(lambda world: not world.pods)
    stopped = store_set(lab.look(store_pods("of a", "of a", "of a")).actions)
    assert stopped is not None
    assert stopped["replicas"] == 0


def test_a_deletion_takes_storage_last(lab: StoreLab) -> None:
    pods = store_pods("of a", "of a", "of a")
    lab.world.delete()
    assert deleted(lab.look(pods).actions) == [f"{NAME}-server-g1"]
    own = lab.live()
    lab.until(lambda world: not world.pods or world.gone)
    planned = lab.look(pods, children=own)
    assert deleted(planned.actions) == [STORE]
    assert not [action for action in lab.look(pods, children=()).actions], "its pods still run"


@pytest.mark.parametrize(("standing", "kept"), [(None, 5), (5, 5), (4, 4), (3, 3), (0, 3)])
def test_a_set_gets_smaller_when_the_store_counts_on_none_of_the_pods_that_go(
    lab: StoreLab, standing: int | None, kept: int
) -> None:
    """The spec asks for three by now, five are there; while nobody knows what the store counts on, none goes."""
    children = lab.live()
    five = next(child for child in children if child.kind == "StatefulSet")
    five.body["spec"]["replicas"] = 5
    seen = lab.operator.observe()
    facts = dataclasses.replace(seen.facts, exchange=None, standing=standing)
    actions = lab.look(store_pods("of a", "of a", "of a", "of a", "of a"), children=children, facts=facts).actions
    sets = [each.manifest for each in actions if isinstance(each, ApplyChild) and each.manifest.name == STORE]
    found = [manifest.body["spec"]["replicas"] for manifest in sets if manifest.kind == "StatefulSet"]
    assert found == [kept]
