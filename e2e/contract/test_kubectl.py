"""A real kubectl against both servers (docs/specs/operator.md 6.11)."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.contract.target import Differs, KubeTarget
from e2e.contract.test_apply import stateful_set
from e2e.contract.test_watch import event, placed
from e2e.contract.widgets import WIDGETS, widget
from pavane_operator.crds.definitions import all_kinds
from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.kube.resources import EVENTS, STATEFUL_SETS, Object

pytestmark = pytest.mark.contract(since="1.29")

EXAMPLES = Path(__file__).parents[2] / "examples"


def manifest(**spec: Any) -> str:
    return yaml.safe_dump({"apiVersion": "test.dev/v1", "kind": "Widget", **widget(**spec)})


ENV = [{"name": "x", "value": "1"}]


def test_apply_creates_changes_and_leaves_alone(target: KubeTarget) -> None:
    apply = ("apply", "-f", "-")
    assert "created" in target.kubectl(*apply, given=manifest(env=ENV))
    assert "unchanged" in target.kubectl(*apply, given=manifest(env=ENV))
    changed = manifest(env=ENV, size="2Gi")
    assert "-  size: 1Gi\n+  size: 2Gi\n" in target.kubectl("diff", "-f", "-", given=changed, code=1)
    assert "configured" in target.kubectl(*apply, given=changed)
    assert target.kubectl("diff", "-f", "-", given=changed) == ""
    assert "configured" in target.kubectl(*apply, given=manifest())
    assert target.get(WIDGETS, "a").ok()["spec"].keys() == {"size", "replicas", "rollout"}


def test_apply_of_a_built_in_kind(target: KubeTarget) -> None:
    def told(**spec: Any) -> str:
        return yaml.safe_dump({"apiVersion": "apps/v1", "kind": "StatefulSet", **stateful_set(**spec)})

    assert "created" in target.kubectl("apply", "-f", "-", given=told())
    assert "unchanged" in target.kubectl("apply", "-f", "-", given=told())
    changed = told().replace("image: pavane", "image: pavane:2")
    assert "configured" in target.kubectl("apply", "-f", "-", given=changed)
    (container,) = target.get(STATEFUL_SETS, "s").ok()["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["ports"][0]["containerPort"]) == ("pavane:2", 80)
    assert "scaled" in target.kubectl("scale", "sts/s", "--replicas=0", "--current-replicas=0")


def test_server_side_apply_and_its_conflicts(target: KubeTarget) -> None:
    apply = ("apply", "--server-side", "-f", "-")
    assert "serverside-applied" in target.kubectl(*apply, given=manifest())
    changed = manifest(size="2Gi")
    assert "+  size: 2Gi" in target.kubectl("diff", "--server-side", "-f", "-", given=changed, code=1)
    refused = target.kubectl(*apply, "--field-manager=other", given=changed, code=1)
    assert 'Apply failed with 1 conflict: conflict with "kubectl": .spec.size' in refused
    target.kubectl(*apply, "--field-manager=other", "--force-conflicts", given=changed)
    assert target.get(WIDGETS, "a").ok()["spec"]["size"] == "2Gi"


def test_client_side_apply_can_move_to_server_side(target: KubeTarget) -> None:
    target.kubectl("apply", "-f", "-", given=manifest(env=ENV))
    target.kubectl("apply", "--server-side", "-f", "-", given=manifest())
    assert "env" not in target.get(WIDGETS, "a").ok()["spec"]


def test_create_from_a_file(target: KubeTarget) -> None:
    assert "created" in target.kubectl("create", "-f", "-", given=manifest())
    assert "AlreadyExists" in target.kubectl("create", "-f", "-", given=manifest(), code=1)


def test_wrong_objects_are_refused_with_their_fields(target: KubeTarget) -> None:
    wrong = manifest(mode="C")
    assert 'spec.mode: Unsupported value: "C"' in target.kubectl("apply", "-f", "-", given=wrong, code=1)
    unknown = manifest(colour="red")
    assert 'unknown field "spec.colour"' in target.kubectl("apply", "-f", "-", given=unknown, code=1)
    target.kubectl("apply", "-f", "-", given=manifest())
    patch = ("patch", "wd", "a", "--type=merge", "-p", json.dumps({"spec": {"replicas": 4}}))
    refused = target.kubectl(*patch, code=1)
    assert "spec.replicas: Invalid value: " in refused
    assert "must be odd" in refused


@pytest.mark.parametrize("sort", ["merge", "json"])
def test_patch(target: KubeTarget, sort: str) -> None:
    target.create(WIDGETS, widget()).ok()
    body: object = {"spec": {"mode": "B"}}
    if sort == "json":
        body = [{"op": "add", "path": "/spec/mode", "value": "B"}]
    target.kubectl("patch", "wd", "a", f"--type={sort}", "-p", json.dumps(body))
    assert target.get(WIDGETS, "a").ok()["spec"]["mode"] == "B"


def test_scale_of_a_custom_resource(target: KubeTarget) -> None:
    target.create(WIDGETS, widget()).ok()
    assert "scaled" in target.kubectl("scale", "wd/a", "--replicas=5")
    refused = target.kubectl("scale", "wd/a", "--replicas=4", code=1)
    assert "must be odd" in refused
    assert target.get(WIDGETS, "a").ok()["spec"]["replicas"] == 5


def test_get_in_its_forms(target: KubeTarget) -> None:
    target.create(WIDGETS, widget(mode="B")).ok()
    assert target.kubectl("get", "wd").split()[:4] == ["NAME", "REPLICAS", "READY", "AGE"]
    wide = target.kubectl("get", "things", "-o", "wide").splitlines()
    assert wide[0].split() == ["NAME", "REPLICAS", "READY", "MODE", "AGE"]
    assert wide[1].split()[:2] == ["a", "3"]
    assert "B" in wide[1].split()
    assert yaml.safe_load(target.kubectl("get", "wd/a", "-o", "yaml"))["spec"]["size"] == "1Gi"
    assert target.kubectl("get", "wd", "-o", "name") == "widget.test.dev/a\n"
    assert target.kubectl("get", "wd", "-o", "jsonpath={.items[*].spec.replicas}") == "3"
    assert "NotFound" in target.kubectl("get", "wd", "none", code=1)
    assert "No resources found" in target.kubectl("get", "pods")


def test_get_watches(target: KubeTarget) -> None:
    target.create(WIDGETS, widget()).ok()
    with target.kubectl_started("get", "wd", "-w", "--no-headers") as process:
        assert process.stdout is not None
        assert process.stdout.readline().split()[:2] == ["a", "3"]
        target.patch(WIDGETS, "a", {"spec": {"replicas": 5}}).ok()
        assert process.stdout.readline().split()[:2] == ["a", "5"]


def test_labels_annotations_and_deletion_by_label(target: KubeTarget) -> None:
    target.create(WIDGETS, widget()).ok()
    target.kubectl("label", "wd", "a", "team=x")
    target.kubectl("annotate", "wd", "a", "note=y")
    assert target.kubectl("get", "wd", "-l", "team=x", "-o", "name") == "widget.test.dev/a\n"
    target.kubectl("delete", "wd", "-l", "team=x")
    assert target.list(WIDGETS).names == []


def test_wait_sees_a_condition(target: KubeTarget) -> None:
    target.create(WIDGETS, widget()).ok()
    with target.kubectl_started("wait", "--for=condition=Ready", "wd/a", "--timeout=30s") as process:
        status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        target.patch(WIDGETS, "a", status, sub="status").ok()
        printed, _ = process.communicate()
    assert "condition met" in printed


def test_delete_waits_for_finalizers(target: KubeTarget) -> None:
    target.create(WIDGETS, {**widget(), "metadata": {"name": "a", "finalizers": ["test.dev/x"]}}).ok()
    with target.kubectl_started("delete", "wd", "a", "--wait", "--timeout=30s") as process:
        assert process.stdout is not None
        assert "deleted" in process.stdout.readline()
        assert process.poll() is None
        target.patch(WIDGETS, "a", {"metadata": {"finalizers": None}}).ok()
        process.communicate()
    assert process.returncode == 0


def test_describe_shows_the_object_and_its_events(target: KubeTarget) -> None:
    made = target.create(WIDGETS, widget()).ok()
    body: Object = placed(target, event())
    target.create(EVENTS, {**body, "regarding": {**body["regarding"], "uid": made["metadata"]["uid"]}}).ok()
    told = target.kubectl("describe", "wd", "a")
    assert "Size:" in told
    assert "Promoted" in told
    assert "generation 2 writes" in told
    assert "generation 2 writes" in target.kubectl("get", "events")


def test_explain_shows_the_words_of_a_definition(target: KubeTarget) -> None:
    told = target.kubectl("explain", "widget.spec.rollout")
    assert "How it rolls." in told
    assert "The longest time." in told


def test_explain_shows_our_docstrings(target: KubeTarget) -> None:
    told = target.kubectl("explain", "raftcluster.spec.rollout")
    assert "How a new generation becomes the active one" in told
    fields = target.kubectl("explain", "raftcluster.spec")
    for name, field in RaftClusterSpec.model_fields.items():
        words = " ".join(str(field.description or "").split()).split(" ")[:4]
        assert " ".join(words) in " ".join(fields.split()), name


@pytest.mark.contract(
    differs=Differs(
        "`kubectl explain` of a built-in kind",
        "says that there is no description",
        "describes it",
        "the schemas of built-in kinds hold what the embedded server checks, and no words",
    )
)
def test_explain_of_a_built_in_kind(target: KubeTarget) -> None:
    target.kubectl("explain", "service.spec", code=target.either(embedded=1, kubernetes=0))


def test_api_resources_lists_our_kinds(target: KubeTarget) -> None:
    lines = target.kubectl("api-resources", "--api-group=pavane.dev").splitlines()
    wanted = [[each.plural, each.short, "pavane.dev/v1alpha1", "true", each.name] for each in all_kinds()]
    assert [line.split() for line in lines[1:]] == sorted(wanted)
    named = target.kubectl("api-resources", "--categories=pavane", "-o", "name").split()
    assert named == sorted(f"{each.plural}.pavane.dev" for each in all_kinds())


def test_auth_can_i(target: KubeTarget) -> None:
    assert target.kubectl("auth", "can-i", "create", "raftclusters").splitlines()[-1] == "yes"


@pytest.mark.parametrize("mode", [(), ("--server-side",)])
def test_our_examples_are_accepted(target: KubeTarget, mode: tuple[str, ...]) -> None:
    for path in sorted(EXAMPLES.glob("*.yaml")):
        bodies = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        for body in bodies:
            body["metadata"].pop("namespace", None)
        printed = target.kubectl("apply", *mode, "--dry-run=server", "-f", "-", given=yaml.safe_dump_all(bodies))
        assert printed.count("(server dry run)") == len(bodies), (path, printed)
