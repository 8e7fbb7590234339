"""Logs of pods: the embedded server, and a real one with our kubelet as its node (docs/specs/operator.md 6.8)."""

import pytest

from e2e.contract.target import Differs, KubeTarget
from pavane_operator.kube.resources import PODS, Object

pytestmark = pytest.mark.contract(since="1.29")

PROGRAM = "import signal; print('one', flush=True); print('two', flush=True); signal.pause()"


def ready(found: Object | None) -> bool:
    conditions = (found or {}).get("status", {}).get("conditions") or ()
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def run(target: KubeTarget) -> None:
    """A pod that prints two lines and stays."""
    container = {"name": "main", "image": "pavane:1", "command": ["python", "-c", PROGRAM]}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    target.create(PODS, {"metadata": {"name": "p"}, "spec": spec}).ok()
    target.until(PODS, "p", ready)
    with target.http.stream("GET", target.path(PODS, "p", "log"), params={"follow": "true"}) as response:
        lines = response.iter_lines()
        assert [next(lines), next(lines)] == ["one", "two"]


def test_a_log_is_read_followed_and_cut(node_target: KubeTarget) -> None:
    run(node_target)
    assert node_target.kubectl("logs", "p") == "one\ntwo\n"
    assert node_target.kubectl("logs", "p", "--tail=1") == "two\n"
    stamped = node_target.kubectl("logs", "p", "--timestamps", "-c", "main").splitlines()
    assert [line.split()[1] for line in stamped] == ["one", "two"]
    with node_target.kubectl_started("logs", "-f", "p") as process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == ["one\n", "two\n"]
        node_target.delete(PODS, "p", {"gracePeriodSeconds": 0}).ok()


def test_logs_that_are_not_there_are_refused(node_target: KubeTarget) -> None:
    run(node_target)
    refused = node_target.get(PODS, "p", "log", container="none").refused(400, "BadRequest")
    assert "container none is not valid for pod p" in refused.message
    assert node_target.get(PODS, "p", "log", previous="true").code == 400
    assert node_target.get(PODS, "none", "log").code == 404


@pytest.mark.contract(
    differs=Differs(
        "`pods/log` with `sinceSeconds`, `sinceTime` or `limitBytes`",
        "400: use `tailLines`",
        "passed on to the kubelet",
        "neither the platform nor its command asks for it",
    )
)
def test_logs_of_a_time(node_target: KubeTarget) -> None:
    run(node_target)
    answer = node_target.get(PODS, "p", "log", sinceSeconds=3600)
    assert answer.code == node_target.either(embedded=400, kubernetes=200)
