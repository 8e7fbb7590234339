"""An operator works once the server knows every field that it may meet (docs/specs/operator.md 5.12)."""

import copy
from typing import Any

from pavane_operator.crds.definitions import definitions
from pavane_operator.runtime.definitions import lacking

NAME = "raftclusters.pavane.dev"


def expected() -> Any:
    return next(copy.deepcopy(each) for each in definitions() if each["metadata"]["name"] == NAME)


def properties(definition: Any, *path: str) -> Any:
    found = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    for name in path:
        found = found[name]["properties"]
    return found


def test_what_this_release_makes_is_enough_also_without_rules_or_with_more_fields() -> None:
    (without_rules,) = (each for each in definitions(cel=False) if each["metadata"]["name"] == NAME)
    assert lacking(expected(), expected()) is None
    assert lacking(expected(), without_rules) is None
    later = expected()
    properties(later, "spec")["brandNew"] = {"type": "string"}
    assert lacking(expected(), later) is None


def test_an_absent_definition_is_named_with_what_to_do() -> None:
    told = lacking(expected(), None)
    assert told is not None
    assert told.startswith(f"CustomResourceDefinition {NAME}: install the chart pavane-crds")


def test_a_definition_of_an_earlier_release_lacks_a_field_which_is_named() -> None:
    earlier = expected()
    del properties(earlier, "spec", "rollout")["deadline"]
    assert str(lacking(expected(), earlier)).startswith("field spec.rollout.deadline of CustomResourceDefinition")
    earlier = expected()
    conditions = properties(earlier, "status")["conditions"]
    del conditions["items"]["properties"]["reason"]
    assert str(lacking(expected(), earlier)).startswith("field status.conditions[].reason of")


def test_a_version_that_is_not_served_is_no_use() -> None:
    other = expected()
    other["spec"]["versions"][0]["served"] = False
    assert str(lacking(expected(), other)).startswith("version v1alpha1 of")
