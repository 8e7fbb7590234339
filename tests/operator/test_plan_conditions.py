"""What a user reads while nothing is rolled out and something live cannot be applied (docs/specs/operator.md 2.9)."""

from __future__ import annotations

import pytest

from pavane_operator.plan.model import ActionFailure, Certificates, Problem
from tests.operator.test_plan_status import Lab, conditions_of


@pytest.mark.parametrize(("reason", "condition"), [("InvalidConfig", "Stalled"), ("ReferenceNotReady", "Reconciling")])
def test_what_cannot_be_taken_live_is_told_although_nothing_is_rolled_out(reason: str, condition: str) -> None:
    lab = Lab()
    lab.active(1)
    told = lab.status(certificates=Certificates(problem=Problem(reason, "Secret mine does not exist")))
    assert conditions_of(told)["UpToDate"] == ("False", reason)
    assert conditions_of(told)[condition] == ("True", reason)
    assert conditions_of(told)["Ready"] == ("True", "Serving")


@pytest.mark.parametrize(
    ("rejected", "up_to_date", "condition"),
    [(True, ("False", "Invalid"), "Stalled"), (False, ("True", "Applied"), "Reconciling")],
)
def test_an_object_that_cannot_be_written_is_told_although_nothing_is_rolled_out(
    rejected: bool, up_to_date: tuple[str, str], condition: str
) -> None:
    lab = Lab()
    lab.active(1)
    told = lab.status(failure=ActionFailure("Invalid", "ports: must be unique", rejected=rejected))
    assert conditions_of(told)["UpToDate"] == up_to_date
    assert conditions_of(told)[condition] == ("True", "Invalid")
    assert {"Stalled", "Reconciling"} & conditions_of(told).keys() == {condition}
