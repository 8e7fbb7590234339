"""What the planner makes of what it is told about certificates and users' Secrets (docs/specs/operator.md 2.4, 4.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from pavane_operator.crds.status import State, Truth
from pavane_operator.plan.model import ApplyChild, Certificates, CreateChild, Manifest, Plan, Problem
from pavane_operator.plan.planner import plan
from tests.operator.model_cluster import World
from tests.operator.model_cluster_kind import KIND, NAME, body_of
from tests.operator.model_operator import Operator

SECRET = Manifest.of(body_of("Secret", f"{NAME}-tls", None), create_only=True)
CREATED = CreateChild(SECRET)
RENEWED = ApplyChild(Manifest.of(body_of("Secret", f"{NAME}-tls", None)), "7")
MISSING = Problem("ReferenceNotReady", "Secret mine does not exist")
ROUNDS_MAX = 100
NOTHING = Certificates()
NO_SECRETS: Mapping[str, Any] = MappingProxyType({})


class Lab:
    """A model cluster, driven up to a state."""

    def __init__(self) -> None:
        self.world = World()
        self.operator = Operator(self.world, lambda: None, set())

    def until(self, state: State) -> None:
        for _ in range(ROUNDS_MAX):
            for _ in range(50):
                if self.world.state is state and self.world.stored_status:
                    return
                if self.operator.turn().empty:
                    break
            self.world.tick()
        raise AssertionError(f"never {state}")

    def plan(self, certificates: Certificates = NOTHING, references: Mapping[str, Any] = NO_SECRETS) -> Plan:
        seen = dataclasses.replace(self.operator.observe(), certificates=certificates, references=references)
        return plan(KIND, self.world.resource(), seen, self.world.now)


def test_the_end_of_a_users_certificate_stands_in_the_status_and_is_warned_of_in_time() -> None:
    lab = Lab()
    lab.until(State.IDLE)
    for left, told in ((timedelta(days=15), []), (timedelta(days=13), ["CertificateExpires"])):
        end = lab.world.now + left
        found = lab.plan(Certificates(expires_at=end))
        assert found.status is not None
        assert found.status.certificate_expires_at == end
        assert [event.reason for event in found.lasting] == told
    assert all(event.warning and f"{end:%Y-%m-%d}" in event.note for event in found.lasting)


def test_certificates_come_before_the_pods_that_mount_them() -> None:
    lab = Lab()
    lab.until(State.CREATING_NEXT)
    for _ in range(ROUNDS_MAX):
        found = lab.plan(Certificates(actions=(CREATED,)))
        if found.actions == (CREATED,):
            break
        assert all(getattr(action, "manifest", SECRET).kind != "StatefulSet" for action in found.actions)
        lab.operator.turn()
    else:
        raise AssertionError("the Secret is never created")


def test_a_renewal_is_written_in_every_state_that_has_pods() -> None:
    lab = Lab()
    for state in (State.INITIALIZING, State.IDLE):
        lab.until(state)
        assert RENEWED in lab.plan(Certificates(actions=(RENEWED,))).actions, state


def test_the_next_renewal_wakes_an_idle_resource() -> None:
    lab = Lab()
    lab.until(State.IDLE)
    soon = lab.world.now + timedelta(seconds=7)
    assert lab.plan(Certificates(again_at=soon)).wake_at == soon


def test_a_missing_reference_holds_back_a_new_generation_and_says_so() -> None:
    lab = Lab()
    found = lab.plan(Certificates(problem=MISSING))
    while found.row == "A4":
        lab.operator.turn()
        found = lab.plan(Certificates(problem=MISSING))
    assert found.row == "B4"
    assert found.status is not None
    told = {one.type: (one.status, one.reason, one.message) for one in found.status.conditions}
    assert told["UpToDate"] == (Truth.FALSE, "ReferenceNotReady", MISSING.message)
    assert told["Reconciling"][0] is Truth.TRUE


def test_a_secret_that_the_kind_refers_to_is_waited_for() -> None:
    lab = Lab()
    lab.world.change(config={"references": ["mine"]})
    found = lab.plan()
    while found.row == "A4":
        lab.operator.turn()
        found = lab.plan()
    assert found.row == "B4"
    assert found.status is not None
    told = {one.type: (one.status, one.reason, one.message) for one in found.status.conditions}
    assert told["UpToDate"] == (Truth.FALSE, "ReferenceNotReady", "Secret mine does not exist")
    assert told["Reconciling"][0] is Truth.TRUE
    assert lab.plan(references={"mine": {}}).row == "B8"


def test_a_reference_that_vanishes_during_an_attempt_is_its_blocker() -> None:
    lab = Lab()
    lab.until(State.INITIALIZING)
    found = lab.plan(Certificates(problem=MISSING)).status
    assert found is not None
    assert found.rollout is not None
    assert "ReferenceNotReady" in {blocker.reason for blocker in found.rollout.blockers}
