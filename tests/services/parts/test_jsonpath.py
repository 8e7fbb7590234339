"""Templates give what kubectl gives: generated ones, in one call of it that needs no cluster."""

import json
import random
import subprocess
from pathlib import Path

import pytest

from pavane.parts.jsonpath import render
from tests.requires import requires

TEMPLATES = 300
BETWEEN = "\n--\n"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "q-0",
        "namespace": "default",
        "labels": {"a.b/c": "d", "plain": "x y"},
        "annotations": {"quote": 'say "yes"', "nothing": ""},
    },
    "spec": {
        "priority": 7,
        "hostNetwork": True,
        "containers": [
            {"name": "main", "image": "i:1", "ports": [{"containerPort": 1}, {"containerPort": 22, "name": "web"}]},
            {"name": "side", "image": "i:2", "args": ["a", "b", "c"], "ports": [{"containerPort": 22}]},
            {"name": "last", "image": "ü:3"},
        ],
    },
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]},
}
PATHS = (
    ".kind", "$.kind", "@.kind", "['kind']", ".metadata.name", ".metadata['name']", ".spec.priority",
    r".metadata.labels.a\.b/c", r".metadata.labels['a\.b/c']", ".metadata.labels", ".metadata.annotations.quote",
    ".metadata.annotations.nothing", ".absent", ".absent.too", ".spec.hostNetwork", ".spec.containers[*].name",
    ".spec.containers[0].name", ".spec.containers[-1].image", ".spec.containers[0:2].name", ".spec.containers[1:].name",
    ".spec.containers[:1].ports", ".spec.containers[*].ports[*].containerPort", ".spec.containers[1].args",
    ".spec.containers[*].args[0:2]", '.status.conditions[?(@.type=="Ready")].status',
    ".status.conditions[?(@.type=='Other')].status", '.status.conditions[?(@.type!="Other")].type',
    ".spec.containers[?(@.args)].name", ".spec.containers[*].ports[?(@.containerPort>1)].containerPort",
    ".spec.containers[*].ports[?(@.containerPort==22)].name", ".spec.containers[0].ports[?(@.containerPort<=1)]",
    ".spec.containers[0].ports",
)  # fmt: skip
LISTS = (".spec.containers[*]", ".spec.containers[0:2]", ".status.conditions[*]", ".absent[*]", ".spec.containers")
INSIDE = (".name", ".type", "@.image", ".ports[*].containerPort", ".absent", "@")
TEXTS = ("", " ", "x=", ", ", "ü", '{"\\n"}', '{"\\t|"}', "{'it'}", '{"a{b}"}')


def template(rng: random.Random) -> str:
    """One of a few pieces, some of them in loops."""
    pieces = []
    for _ in range(rng.randint(1, 3)):
        pieces.append(rng.choice(TEXTS))
        if rng.random() < 0.3:
            inner = f"{rng.choice(TEXTS)}{{{rng.choice(INSIDE)}}}{rng.choice(TEXTS)}"
            pieces.append(f"{{range {rng.choice(LISTS)}}}{inner}{{end}}")
        else:
            pieces.append(f"{{{rng.choice(PATHS)}}}")
    return "".join(pieces)


def kubectl(template: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    file = folder / "pod.json"
    file.write_text(json.dumps(POD))
    words = ["patch", "--local", "-f", str(file), "--type=merge", "-p", "{}", "-o", f"jsonpath={template}"]
    return subprocess.run([requires("kubectl"), *words], capture_output=True, text=True, check=False, timeout=60)


def test_generated_templates_print_what_kubectl_prints(tmp_path: Path) -> None:
    rng = random.Random(1)
    templates = [f"{{{path}}}" for path in PATHS] + [template(rng) for _ in range(TEMPLATES)]
    said = kubectl(BETWEEN.join(templates), tmp_path)
    assert said.returncode == 0, said.stderr
    for each, wanted in zip(templates, said.stdout.split(BETWEEN), strict=True):
        assert render(each, POD) == wanted, each


@pytest.mark.parametrize(
    "wrong",
    [
        "{.a",
        "}",
        "{range .a}x",
        "{end}",
        "{..name}",
        "{.spec.containers[0,1]}",
        "{.spec.containers[9]}",
        "{.a[(1)]}",
        "{kind}",
        "{.spec.containers[?(@.ports>1)].name}",
        "{.spec.containers[?(@.ports==1.2.3)].name}",
        "{.spec.containers[?(@.ports==007)].name}",
    ],
)
def test_what_is_not_known_is_refused_in_words(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"^jsonpath: "):
        render(wrong, POD)
