"""The rollout id: golden values, and what does and does not change it (docs/specs/operator.md 2.2)."""

from typing import Any

import pytest

from pavane_operator.crds.common import rollout_id
from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.crds.values import (
    DURATION_MAX_SECONDS,
    parse_duration,
    parse_quantity,
    usual_duration,
    usual_quantity,
)

LEAST: dict[str, Any] = {"stateMachine": "Broadcast"}


def _id(**fields: Any) -> str:
    return rollout_id("RaftCluster", RaftClusterSpec.read({**LEAST, **fields}))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "73e66a65e655fce1"),
        ({"image": "pavane:1.2"}, "8bef6f34fc995a85"),
        ({"rollout": {"restart": "über"}}, "962b8a461865dfba"),
        (
            {
                "electionTimeout": {"min": "150ms", "max": "250ms"},
                "config": {"rpc_timeout": 50},
                "extraEnv": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            },
            "11075052f703fa84",
        ),
    ],
)
def test_ids_never_change_from_release_to_release(fields: dict[str, Any], expected: str) -> None:
    assert _id(**fields) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"resources": {"limits": {"cpu": 1}}}, "b18bc6bf412e47f2"),
        ({"resources": {"limits": {"memory": "1024Mi"}}}, "eedea0a6550bb937"),
        ({"resources": {"limits": {"cpu": "0.5"}}}, "8ea88977c0c311dd"),
        ({"resources": {"requests": {"memory": "128Mi", "cpu": "100m"}}}, "73e66a65e655fce1"),
        ({"terminationGracePeriod": "1m"}, "b435d963eb3b1656"),
        ({"electionTimeout": {"min": "1000ms", "max": "2000ms"}}, "2421374eb93d69ad"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 30}]}, "be648c6e1a16bb8e"),
        ({"topologySpreadConstraints": [{"topologyKey": "zone"}]}, "a87f8a8d88f045a4"),
    ],
)
def test_ids_of_generations_of_the_first_release_are_known_again(fields: dict[str, Any], expected: str) -> None:
    assert rollout_id("RaftCluster", RaftClusterSpec.read({**LEAST, **fields}), as_written=True) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"image": ""},
        {"replicas": 5},
        {"storage": {"size": "5Gi"}},
        {"deletionPolicy": "Delete"},
        {"electionTimeout": {"min": "200ms"}},
        {"resources": {"requests": {"memory": "128Mi", "cpu": "100m"}}},
        {"rollout": {"paused": True, "promote": 3, "abort": 4, "deadline": "1h", "restart": ""}},
        {"rollout": {"gates": [{"name": "up", "for": "5s", "prometheus": {"query": "up", "min": 1}}]}},
        {"rollout": {"windows": [{"schedule": "0 22 * * *", "duration": "2h"}]}},
        {"terminationGracePeriod": "30s", "extraEnv": [], "config": {}},
    ],
)
def test_defaults_and_fields_that_touch_no_pod_do_not_roll(fields: dict[str, Any]) -> None:
    assert _id(**fields) == _id()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"resources": {"limits": {"cpu": "1"}}}, {"resources": {"limits": {"cpu": "1000m"}}}),
        ({"resources": {"limits": {"cpu": "1"}}}, {"resources": {"limits": {"cpu": 1}}}),
        ({"resources": {"limits": {"memory": "256Mi"}}}, {"resources": {"limits": {"memory": "0.25Gi"}}}),
        ({"resources": {"requests": {"memory": "0.125Gi", "cpu": "0.1"}}}, {}),
        ({"terminationGracePeriod": "45s"}, {"terminationGracePeriod": "45000ms"}),
        ({"terminationGracePeriod": "30000ms"}, {}),
        ({"terminationGracePeriod": "1h"}, {"terminationGracePeriod": "60m"}),
        ({"electionTimeout": {"min": "0s200ms"}}, {}),
    ],
)
def test_equal_values_in_another_notation_do_not_roll(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert _id(**one) == _id(**other)
    spec = RaftClusterSpec.read({**LEAST, **one})
    assert one.items() <= spec.model_dump(mode="json", by_alias=True, exclude_unset=True).items(), (
        "readers see it as is"
    )


@pytest.mark.parametrize("text", ["1", "100m", "1500m", "2Gi", "128Mi", "1536Mi", "1G", "1500M", "0", "0.00001"])
def test_a_quantity_in_the_usual_notation_stays_as_it_is(text: str) -> None:
    assert usual_quantity(text) == text


@pytest.mark.parametrize("value", ["9" * 31, "9" * 29 + "Ei", 10**30])
def test_a_quantity_that_no_server_can_have_has_an_id_as_well(value: int | str) -> None:
    assert parse_quantity(usual_quantity(value)) == parse_quantity(value)


@pytest.mark.parametrize("text", ["30s", "90s", "200ms", "1500ms", "3600s"])
def test_a_duration_in_the_usual_notation_stays_as_it_is(text: str) -> None:
    assert usual_duration(text) == text


@pytest.mark.parametrize(
    "fields",
    [
        {"image": "pavane:2"},
        {"rollout": {"restart": "1"}},
        {"config": {"heartbeat": 70}},
        {"electionTimeout": {"max": "400ms"}},
        {"resources": {"limits": {"cpu": 1}}},
        {"extraEnv": [{"name": "A", "value": "1"}]},
        {"terminationGracePeriod": "31s"},
        {"storage": {"storageClassName": "fast"}},
        {"clusterId": "other"},
        {"secretRef": {"name": "mine"}},
    ],
)
def test_fields_of_the_pod_roll(fields: dict[str, Any]) -> None:
    assert _id(**fields) != _id()


def test_the_order_of_keys_and_the_kind() -> None:
    assert _id(config={"a": 1, "b": 2}) == _id(config={"b": 2, "a": 1})
    spec = RaftClusterSpec.read(LEAST)
    assert rollout_id("RaftCluster", spec) != rollout_id("SwimGroup", spec)


@pytest.mark.parametrize(("text", "seconds"), [("0s", 0), ("250ms", 0.25), ("1h30m", 5400), ("90s", 90), ("1m1m", 120)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text).total_seconds() == seconds


def test_an_absurd_duration_is_cut_and_a_wrong_one_refused() -> None:
    assert parse_duration("9" * 30 + "h").total_seconds() == DURATION_MAX_SECONDS
    with pytest.raises(ValueError, match="write for example 30s"):
        parse_duration("30 seconds")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        (5, 5),
        ("1.5", 1.5),
        ("250m", 0.25),
        ("3k", 3000),
        ("2Ki", 2048),
        ("1.5Gi", 1610612736),
        ("1E", 10**18),
    ],
)
def test_quantities(text: int | str, number: float) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize("text", ["", "-1", "1e3", "1gi", "Gi", "1 Gi"])
def test_what_is_no_quantity_of_ours_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write for example 2Gi"):
        parse_quantity(text)
