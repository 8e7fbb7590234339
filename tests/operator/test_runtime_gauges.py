"""What the operator counts at any moment, and the alerts that fire on it (docs/specs/operator.md 5.11)."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from pavane_operator.runtime.cache import Cache
from pavane_operator.runtime.operator import Operator
from pavane_operator.runtime.reconcile import Shared
from tests.operator.operator_cluster import RAFT_CLUSTERS

NOW = datetime(2030, 1, 1, tzinfo=UTC)
RULES = yaml.safe_load((Path(__file__).parents[2] / "charts/pavane/files/alerts.yaml").read_text())["groups"][0][
    "rules"
]
SELECTOR = re.compile(r"(pavane_[a-z_]+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
WELL = [("Ready", "True", "Serving"), ("UpToDate", "True", "Applied"), ("VolumesHaveRoom", "True", "HasRoom")]


async def series(conditions: list[tuple[str, str, str]], **status: Any) -> list[tuple[str, dict[str, str], float]]:
    """What one resource with these conditions is told as."""
    shared = SimpleNamespace(cache=Cache(), now=lambda: NOW, rng=None, metrics=None)
    operator = Operator((), cast("Shared", shared))
    told = [{"type": kind, "status": truth, "reason": reason} for kind, truth, reason in conditions]
    metadata = {"name": "q", "namespace": "data", "uid": "u", "resourceVersion": "1"}
    body = {"kind": "RaftCluster", "metadata": metadata, "status": {"conditions": told, **status}}
    shared.cache.seen(RAFT_CLUSTERS, body)
    operator._uids["raftcluster", "data", "q"] = "u"
    return [(each.name, dict(each.labels), each.value) for each in operator.gauges()]


def fires(alert: str, told: list[tuple[str, dict[str, str], float]]) -> bool:
    """Whether a series is one that the rule's selector chooses."""
    (rule,) = (each for each in RULES if each["alert"] == alert)
    name, matchers = SELECTOR.findall(rule["expr"])[0]

    def chosen(labels: dict[str, str]) -> bool:
        return all(
            (re.fullmatch(value, labels.get(label, "")) is not None) != how.startswith("!")
            for label, how, value in MATCHER.findall(matchers)
        )

    return any(metric == name and chosen(labels) for metric, labels, _ in told)


@pytest.mark.parametrize(
    ("alert", "condition"),
    [
        ("PavaneNotReady", ("Ready", "False", "NoQuorum")),
        ("PavaneNotReady", ("Ready", "Unknown", "ActiveDown")),
        ("PavaneStalled", ("Stalled", "True", "InvalidConfig")),
        ("PavaneVolumeFull", ("VolumesHaveRoom", "False", "VolumeFull")),
    ],
)
async def test_a_condition_fires_its_alert_and_what_is_well_does_not(
    alert: str, condition: tuple[str, str, str]
) -> None:
    assert not fires(alert, await series(WELL))
    others = [each for each in WELL if each[0] != condition[0]]
    told = await series([*others, condition])
    assert fires(alert, told)
    kind, truth, reason = condition
    labels = {"kind": "RaftCluster", "namespace": "data", "name": "q", "type": kind, "status": truth, "reason": reason}
    assert ("pavane_operator_condition", labels, 1) in told


def test_another_reason_for_the_same_trouble_does_not_begin_the_wait_anew() -> None:
    """A series of another reason is another one: pods that crash in a loop would put the alert off for ever."""
    waiting = [each["expr"] for each in RULES if "pavane_operator_condition" in each["expr"] and "for" in each]
    assert len(waiting) == 2
    assert all(expression.startswith("max by (kind, namespace, name) (") for expression in waiting)


@pytest.mark.parametrize("reason", ["Suspended", "Bootstrapping"])
async def test_who_is_meant_to_serve_nobody_yet_is_no_alert(reason: str) -> None:
    assert not fires("PavaneNotReady", await series([("Ready", "False", reason)]))


async def test_the_end_of_a_certificate_is_a_number_that_the_alert_compares() -> None:
    end = NOW + timedelta(days=3)
    told = await series(WELL, certificateExpiresAt=end.strftime("%Y-%m-%dT%H:%M:%SZ"))
    labels = {"kind": "RaftCluster", "namespace": "data", "name": "q"}
    assert ("pavane_operator_certificate_expires_seconds", labels, end.timestamp()) in told
    (rule,) = (each for each in RULES if each["alert"] == "PavaneCertificateExpires")
    assert rule["expr"] == "pavane_operator_certificate_expires_seconds - time() < 14 * 86400"
    assert not any("certificate" in name for name, _, _ in await series(WELL))
