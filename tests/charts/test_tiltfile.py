"""The Tiltfile, executed with stand-ins for Tilt's functions: what it names is there (docs/specs/operator.md 7.3)."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from pavane_operator.crds.definitions import definitions
from tests.charts.rendering import Object, helm

ROOT = Path(__file__).parents[2]


@dataclass
class Recorded:
    """What the Tiltfile asked of Tilt."""

    contexts: list[str] = field(default_factory=list)
    builds: dict[str, dict[str, Any]] = field(default_factory=dict)
    objects: list[Object] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    locals: dict[str, dict[str, Any]] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)

    def k8s_yaml(self, source: str) -> None:
        path = ROOT / source if source.endswith(".yaml") else None
        text = path.read_text() if path is not None else source
        self.objects += [document for document in yaml.safe_load_all(text) if document]

    def k8s_resource(self, workload: str = "", new_name: str = "", **options: Any) -> None:
        assert not options.get("objects") or new_name, "objects without a workload need a name"
        self.resources[new_name or workload] = options

    def local_resource(self, name: str, command: str, **options: Any) -> None:
        self.locals[name] = options
        self.commands.append(command)


def _helm(chart: str, *, name: str, namespace: str = "default", values: list[str] | None = None) -> str:
    given = [argument for each in values or [] for argument in ("--values", str(ROOT / each))]
    return helm("template", name, str(ROOT / chart), "--namespace", namespace, *given).stdout


@pytest.fixture(scope="module")
def tilt() -> Recorded:
    recorded = Recorded()
    functions = {
        "TRIGGER_MODE_MANUAL": "manual",
        "allow_k8s_contexts": recorded.contexts.extend,
        "decode_yaml_stream": lambda text: [one for one in yaml.safe_load_all(text) if one],
        "docker_build": lambda image, context, **options: recorded.builds.update({image: options}),
        "encode_yaml": yaml.safe_dump,
        "encode_yaml_stream": yaml.safe_dump_all,
        "fall_back_on": lambda paths: ("fall_back_on", paths),
        "helm": _helm,
        "k8s_kind": lambda kind, **_: recorded.kinds.append(kind),
        "k8s_resource": recorded.k8s_resource,
        "k8s_yaml": recorded.k8s_yaml,
        "link": lambda url, _name: url,
        "local": lambda command, **_: recorded.commands.append(command),
        "local_resource": recorded.local_resource,
        "port_forward": lambda *ports, **_: ports,
        "read_file": lambda path: (ROOT / path).read_text(),
        "sync": lambda source, target: ("sync", source, target),
    }
    exec(compile((ROOT / "Tiltfile").read_text(), "Tiltfile", "exec"), functions)  # noqa: S102 - our own file
    return recorded


def test_only_the_cluster_of_the_edit_loop_is_touched(tilt: Recorded) -> None:
    assert tilt.contexts == ["kind-pavane"]


def test_sources_lie_where_the_image_expects_them(tilt: Recorded) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    ((image, build),) = tilt.builds.items()
    assert re.search(rf"^FROM \S+ AS {build['target']}$", dockerfile, re.M)
    synced = [step[1:] for step in build["live_update"] if step[0] == "sync"]
    assert len(synced) == 3
    for source, target in synced:
        assert (ROOT / source).is_dir()
        assert re.search(rf"^COPY .*{source} {target}$", dockerfile, re.M)
        assert source in build["only"]
    deployments = [one for one in tilt.objects if one["kind"] == "Deployment"]
    assert {one["metadata"]["name"] for one in deployments} == {"pavane-operator", "pavane-api"}
    for deployment in deployments:
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["image"].partition(":")[0] == image
        program = deployment["metadata"]["name"].replace("-", " ")
        assert container["command"] == ["watchfiles", program, "/app"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is False
    assert build["match_in_env_vars"]  # the default image of pods stands in the operator's environment


def test_there_is_a_sample_of_each_kind(tilt: Recorded) -> None:
    kinds = {definition["spec"]["names"]["kind"] for definition in definitions()}
    assert set(tilt.kinds) == kinds
    # A Backup is made once and needs object storage, which such a cluster has not.
    assert {one["kind"] for one in tilt.objects} >= kinds - {"Backup"}


def test_each_name_means_something_that_is_there(tilt: Recorded) -> None:
    workloads = {"Deployment", *tilt.kinds}
    names = {one["metadata"]["name"] for one in tilt.objects if one["kind"] in workloads}
    for name, options in tilt.resources.items():
        assert name in names or options["objects"], name
        for member in options.get("objects", ()):
            assert member in {one["metadata"]["name"] for one in tilt.objects}
        assert set(options.get("resource_deps", ())) <= set(tilt.resources)
        assert options["labels"]
    assert names <= set(tilt.resources)


def test_each_button_does_something(tilt: Recorded) -> None:
    buttons = {name for name, options in tilt.locals.items() if options.get("trigger_mode") == "manual"}
    assert len(buttons) == 5
    targets = set(re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(), re.M))
    for command in tilt.commands:
        program, *words = command.split()
        if program == "make":
            assert set(words) <= targets, command
        elif program == ".venv/bin/pavane":
            verbs = words[: words.index("--context")]
            line = [sys.executable, "-m", "pavane_cli.main", *verbs, "--context", "kind-pavane", "--help"]
            assert subprocess.run(line, capture_output=True, check=False, timeout=50).returncode == 0, command
        else:
            assert program == "kubectl", command
            assert "--context kind-pavane" in command
