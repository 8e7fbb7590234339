"""The generated CustomResourceDefinitions: rules of structural schemas, and that models and schema accept the same."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from pavane.raft.config import MACHINES
from pavane_operator.crds import gen
from pavane_operator.crds.backup import BackupSpec
from pavane_operator.crds.base import MARK_KEY, Mark, Model
from pavane_operator.crds.common import pod_fields, rollout_id
from pavane_operator.crds.computecluster import ComputeClusterSpec
from pavane_operator.crds.coordinator import CoordinatorSpec
from pavane_operator.crds.dataflow import DataflowSpec
from pavane_operator.crds.definitions import all_kinds, definitions
from pavane_operator.crds.raftcluster import RaftClusterSpec, RaftClusterStatus
from pavane_operator.crds.schema import structural_schema
from pavane_operator.crds.swimgroup import SwimGroupSpec
from pavane_operator.crds.waltzcluster import WaltzClusterSpec

CHARTS = Path(__file__).parents[2] / gen.FOLDER
SIZE_MAX_BYTES = 256 * 1024
"""kubectl apply keeps a copy of the whole object in an annotation, which may not be larger."""

DEFINITIONS = {body["spec"]["names"]["kind"]: body for body in definitions()}
SCHEMAS = {kind: body["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for kind, body in DEFINITIONS.items()}
MODELS: dict[str, type[Model]] = {
    "Backup": BackupSpec,
    "ComputeCluster": ComputeClusterSpec,
    "Coordinator": CoordinatorSpec,
    "Dataflow": DataflowSpec,
    "RaftCluster": RaftClusterSpec,
    "SwimGroup": SwimGroupSpec,
    "WaltzCluster": WaltzClusterSpec,
}
SPEC = SCHEMAS["RaftCluster"]["properties"]["spec"]
each_kind = pytest.mark.parametrize("kind", DEFINITIONS)


def with_defaults(schema: dict[str, Any], path: str, *, in_list: bool = False) -> list[str]:
    """Paths below lists where a server would fill something in."""
    found = [path] if in_list and "default" in schema else []
    for name, inner in (schema.get("properties") or {}).items():
        found += with_defaults(inner, f"{path}.{name}", in_list=in_list)
    return found + (with_defaults(schema["items"], f"{path}[]", in_list=True) if "items" in schema else [])


def test_a_server_adds_nothing_to_the_items_of_a_list() -> None:
    """Who applies a list again would find it changed each time: it is compared, and replaced, as a whole."""
    for kind in all_kinds():
        assert with_defaults(structural_schema(kind.spec), kind.name) == []
    spec = {
        "stateMachine": "Tree",
        "tolerations": [{"key": "disk"}],
        "topologySpreadConstraints": [{"topologyKey": "z"}],
    }
    read = RaftClusterSpec.read(spec)
    assert read.tolerations[0].operator == "Equal"
    assert read.topology_spread_constraints is not None
    assert read.topology_spread_constraints[0].max_skew == 1
    full = {"tolerations": [{"key": "disk", "operator": "Equal"}]}
    assert rollout_id("RaftCluster", read) == rollout_id("RaftCluster", RaftClusterSpec.read({**spec, **full}))


def test_a_status_is_the_same_whatever_the_order_of_its_members_generations_and_conditions() -> None:
    """A server keeps those that it has in their places, so g10 stands behind g9."""
    time = "2026-01-01T00:00:00Z"
    stored: dict[str, list[dict[str, object]]] = {
        "members": [{"name": f"q-server-g{number}-0", "generation": number, "role": "Voter"} for number in (9, 10)],
        "generations": [
            {"number": number, "role": "Active", "podsReady": 1, "pods": 1, "id": "i"} for number in (9, 10)
        ],
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": time, "reason": "R"} for kind in ("Ready", "Paused")
        ],
    }
    turned = {name: list(reversed(entries)) for name, entries in stored.items()}
    one, other = RaftClusterStatus.model_validate(stored), RaftClusterStatus.model_validate(turned)
    assert one != other
    assert one.in_key_order() == other.in_key_order()


def _walk(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from _walk(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _walk(schema[key], f"{path}[]")


def test_the_committed_files_are_those_that_the_models_generate() -> None:
    for name, text in gen.render().items():
        assert (CHARTS / name).read_text(encoding="utf-8") == text, "run python -m pavane_operator.crds.gen"


def test_check_tells_a_stale_file_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gen.main(["--check", "--folder", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert all(f"{body['spec']['names']['plural']}.yaml" in told for body in DEFINITIONS.values())
    assert list(tmp_path.iterdir()) == []
    assert gen.main(["--folder", str(tmp_path)]) == 0
    assert gen.main(["--check", "--folder", str(tmp_path)]) == 0
    for body in DEFINITIONS.values():
        lines = (tmp_path / f"{body['spec']['names']['plural']}.yaml").read_text().splitlines()
        written = yaml.safe_load("\n".join(line for line in lines if "{{" not in line))
        assert written["spec"] == body["spec"]
        assert written["metadata"]["name"] == body["metadata"]["name"]


@each_kind
def test_every_string_list_and_map_has_a_limit(kind: str) -> None:
    unlimited = []
    for path, schema in _walk(SCHEMAS[kind]):
        if path in ("", ".apiVersion", ".kind", ".metadata"):
            continue
        shape = schema.get("type")
        free = "enum" in schema or schema.get("format") == "date-time"
        if shape == "string" and not free and "maxLength" not in schema:
            unlimited.append(path)
        if shape == "array" and "maxItems" not in schema:
            unlimited.append(path)
        if shape == "object" and "properties" not in schema and "maxProperties" not in schema:
            unlimited.append(path)
    assert unlimited == []


@each_kind
def test_every_field_is_described_and_nothing_unstructural_is_left(kind: str) -> None:
    forbidden = {"$ref", "$defs", "title", "anyOf", "oneOf", "allOf", "const", "propertyNames", MARK_KEY}
    for path, schema in _walk(SCHEMAS[kind]):
        assert not forbidden & schema.keys(), path
        assert schema.get("additionalProperties") is not False, path
        assert schema.get("default", ...) is not None, path
        assert schema.get("type") or schema.get("x-kubernetes-int-or-string"), path
        if schema.get("type") == "integer":
            assert schema["format"] == "int64", path
        if path and path not in (".apiVersion", ".kind", ".metadata", ".status") and not path.endswith("[]"):
            assert schema.get("description"), path


@each_kind
def test_a_status_has_no_defaults(kind: str) -> None:
    assert [path for path, schema in _walk(SCHEMAS[kind]["properties"]["status"]) if "default" in schema] == []


def test_nested_objects_default_to_an_empty_one_that_the_server_completes() -> None:
    assert SPEC["properties"]["snapshot"]["default"] == {}
    assert SPEC["properties"]["rollout"]["properties"]["caughtUp"]["default"] == {}
    assert "default" not in SPEC["properties"]["extraEnv"]["items"]["properties"]["valueFrom"]
    assert SPEC["properties"]["electionTimeout"]["properties"]["min"]["default"] == "200ms"


def test_a_defaulted_object_with_rules_is_spelled_out_for_them() -> None:
    # A real API server tries the rules on the default before it completes it, and refuses the whole definition.
    assert SPEC["properties"]["electionTimeout"]["default"] == {"min": "200ms", "max": "300ms"}


def test_the_state_machine_is_keys_unless_said_otherwise() -> None:
    machine = SPEC["properties"]["stateMachine"]
    assert machine["default"] == RaftClusterSpec().state_machine == "KeyValue"
    assert set(machine["enum"]) == set(MACHINES)
    assert "required" not in SPEC


def test_what_a_store_was_made_with_is_immutable() -> None:
    for name in ("stateMachine", "clusterId", "secretRef"):
        rules = [each["rule"] for each in SPEC["properties"][name]["x-kubernetes-validations"]]
        assert "self == oldSelf" in rules


def test_rules_can_be_left_out_for_servers_that_refuse_them() -> None:
    for plain in definitions(cel=False):
        schema = plain["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        assert all("x-kubernetes-validations" not in inner for _, inner in _walk(schema))


@pytest.mark.parametrize(
    ("kind", "plural", "short", "own"),
    [("RaftCluster", "raftclusters", "raft", "Leader"), ("SwimGroup", "swimgroups", "swim", "Members")],
)
def test_names_columns_and_size(kind: str, plural: str, short: str, own: str) -> None:
    definition = DEFINITIONS[kind]
    (version,) = definition["spec"]["versions"]
    assert definition["metadata"]["name"] == f"{plural}.pavane.dev"
    assert definition["spec"]["names"]["shortNames"] == [short]
    columns = [(column["name"], column.get("priority", 0)) for column in version["additionalPrinterColumns"]]
    assert columns == [
        ("Ready", 0),
        ("Pods", 0),
        ("Active", 0),
        ("Next", 0),
        ("State", 0),
        ("UpToDate", 0),
        ("Age", 0),
        ("Image", 1),
        ("Blocker", 1),
        (own, 1),
    ]
    assert len(json.dumps(definition)) < SIZE_MAX_BYTES


def test_every_field_of_a_spec_is_marked() -> None:
    def unmarked(model: type[Model], path: str = "") -> list[str]:
        found = []
        for name, info in model.model_fields.items():
            inner = info.annotation
            if isinstance(inner, type) and issubclass(inner, Model):
                found += unmarked(inner, f"{path}.{name}")
            elif not isinstance(info.json_schema_extra, dict) or MARK_KEY not in info.json_schema_extra:
                found.append(f"{path}.{name}")
        return found

    assert [path for model in MODELS.values() for path in unmarked(model)] == []


def test_recursion_and_unions_are_refused() -> None:
    class Recursive(Model):
        inner: Recursive | None = None

    class Union(Model):
        value: int | bool = 0

    Recursive.model_rebuild(_types_namespace={"Recursive": Recursive})
    with pytest.raises(ValueError, match="contains itself"):
        structural_schema(Recursive)
    with pytest.raises(ValueError, match="union"):
        structural_schema(Union)


def test_exclusive_limits_sets_and_constants_are_rewritten() -> None:
    class Odd(enum.Enum):
        ONLY = "only"

    class Rare(Model):
        share: float = Field(default=0.5, gt=0, lt=1)
        names: set[str] = Field(default_factory=set)
        one: Odd = Odd.ONLY

    schema = structural_schema(Rare)["properties"]
    assert (schema["share"]["minimum"], schema["share"]["exclusiveMinimum"]) == (0, True)
    assert (schema["share"]["maximum"], schema["share"]["exclusiveMaximum"]) == (1, True)
    assert schema["names"]["x-kubernetes-list-type"] == "set"
    assert schema["one"]["enum"] == ["only"]


# ---- models and schema accept the same


def _validator(spec: dict[str, Any]) -> jsonschema.protocols.Validator:
    def closed(schema: dict[str, Any]) -> dict[str, Any]:
        """The schema as a server reads it with fieldValidation=Strict: no unknown fields, int-or-string."""
        result = dict(schema)
        if result.pop("x-kubernetes-int-or-string", False):
            result["type"] = ["integer", "string"]
        if "properties" in result:
            result["properties"] = {name: closed(inner) for name, inner in result["properties"].items()}
            result["additionalProperties"] = False
        for key in ("items", "additionalProperties"):
            if isinstance(result.get(key), dict):
                result[key] = closed(result[key])
        return result

    return jsonschema.Draft202012Validator(closed(spec))


VALIDATORS = {kind: _validator(schema["properties"]["spec"]) for kind, schema in SCHEMAS.items()}
VALIDATOR = VALIDATORS["RaftCluster"]
NAMES = st.text("abcXYZ-_.09é", max_size=12)
DURATIONS = st.sampled_from(["1s", "30m", "1h30m", "200ms", "0s", "", "5", "s", "1 s", "-1s", "1d", "9" * 40 + "s"])
QUANTITIES = st.sampled_from(["1", "2Gi", "100m", "1.5Gi", "", "x", "1gi", "-1", ".5"]) | st.integers(-3, 5000)
NUMBERS = st.integers(-2, 2000) | st.sampled_from([2**53, 2**53 + 1, 10**9, 10**9 + 1])
LABELS = st.dictionaries(NAMES, st.sampled_from(["", "a", "A_b.c-d", "-", "a-", "x" * 64]), max_size=3)
RANGES = [
    "10.0.0.0/8",
    "0.0.0.0/0",
    "::/0",
    "2001:db8::/128",
    "10.0.0.256/8",
    "10.0.0.0/33",
    "::/129",
    "10.0.0.0",
    "a/8",
]
CIDRS = st.lists(st.sampled_from(RANGES), max_size=2)
ANYTHING = st.sampled_from([True, 3, "text", [], {}, 1.5, [1], {"a": 1}])


def _object(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: value | ANYTHING for name, value in fields.items()})


COMMON = dict[str, st.SearchStrategy[Any]](
    replicas=NUMBERS,
    image=NAMES,
    resources=_object(
        limits=st.dictionaries(NAMES, QUANTITIES | ANYTHING), requests=st.dictionaries(NAMES, QUANTITIES)
    ),
    extraEnv=st.lists(
        _object(
            name=NAMES,
            value=NAMES,
            valueFrom=_object(fieldRef=_object(fieldPath=NAMES), secretKeyRef=_object(name=NAMES, key=NAMES)),
        ),
        max_size=3,
    ),
    config=st.dictionaries(NAMES, ANYTHING, max_size=3),
    terminationGracePeriod=DURATIONS,
    imagePullPolicy=st.sampled_from(["Always", "Sometimes"]),
    imagePullSecrets=st.lists(_object(name=NAMES), max_size=2),
    nodeSelector=LABELS,
    tolerations=st.lists(_object(key=NAMES, operator=st.sampled_from(["Exists", "In"]), tolerationSeconds=NUMBERS)),
    affinity=_object(nodeAffinity=st.dictionaries(NAMES, ANYTHING, max_size=2), neighbours=NAMES),
    topologySpreadConstraints=st.lists(
        _object(topologyKey=NAMES, maxSkew=NUMBERS, whenUnsatisfiable=st.sampled_from(["DoNotSchedule", "x"])),
        max_size=2,
    ),
    podLabels=LABELS,
    podAnnotations=LABELS,
    networkPolicy=_object(
        enabled=st.booleans(),
        ingressCIDRs=CIDRS,
        clientSelector=_object(
            namespaceSelector=_object(matchLabels=LABELS),
            podSelector=_object(
                matchExpressions=st.lists(
                    _object(key=NAMES, operator=st.sampled_from(["In", "Is"]), values=st.lists(NAMES))
                )
            ),
        ),
    ),
    podDisruptionBudget=_object(enabled=st.booleans(), maxUnavailable=NUMBERS),
    serviceType=st.sampled_from(["ClusterIP", "ExternalName"]),
    rollout=_object(
        strategy=st.sampled_from(["WhenCaughtUp", "Manual", "Immediate", "manual"]),
        paused=st.booleans(),
        promote=NUMBERS,
        forcePromote=NUMBERS,
        abort=NUMBERS,
        retry=NUMBERS,
        restart=NAMES,
        caughtUp=_object(allowedLag=NUMBERS, stabilityPeriod=DURATIONS),
        deadline=DURATIONS,
        onDeadline=st.sampled_from(["Hold", "Abort", "No"]),
        crashLimit=NUMBERS,
        retireDelay=DURATIONS,
    ),
    unknown=NAMES,
)
BACKED_UP = ["RaftCluster", "Coordinator", "WaltzCluster", "SwimGroup", "ComputeCluster", "Tape"]
SCHEDULED = _object(
    schedule=st.sampled_from(["30 2 * * *", "*/5 1-3,5 * jan MON", "30 2 * *", "@daily", "0  0 * * *"]),
    timeZone=NAMES,
    url=st.sampled_from(["s3://a/b", "file:///a", "ftp://a"]),
    keep=NUMBERS,
)
OWN: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "RaftCluster": {
        "stateMachine": st.sampled_from([*MACHINES, "Tape"]),
        "clusterId": NAMES,
        "secretRef": _object(name=NAMES, key=NAMES),
        "electionTimeout": _object(min=DURATIONS, max=DURATIONS, other=NAMES),
        "storage": _object(size=QUANTITIES, storageClassName=NAMES, retain=st.booleans()),
        "backup": SCHEDULED,
        "deletionPolicy": st.sampled_from(["Retain", "Delete", "Keep"]),
    },
    "ComputeCluster": {
        "waltzClusterRef": _object(name=NAMES, key=NAMES),
        "partitions": _object(ticks=NUMBERS, views=NUMBERS, rows=NUMBERS),
        "scripts": st.dictionaries(NAMES, NAMES, max_size=2),
        "engine": st.sampled_from(["Plain", "Spark", "Flink"]),
        "spark": _object(
            master=st.sampled_from(["local", "kubernetes", "yarn"]),
            executors=_object(instances=NUMBERS, cores=NUMBERS, memory=QUANTITIES),
        ),
        "interval": DURATIONS,
    },
    "Backup": {
        "of": _object(
            name=NAMES,
            kind=st.sampled_from(BACKED_UP),
        ),
        "url": st.sampled_from(["s3://a/b", "gs://a", "file:///a b", "file:///a", "ftp://a", "az:///"]),
        "secretName": NAMES,
        "keep": NUMBERS,
    },
    "Dataflow": {"computeClusterRef": _object(name=NAMES, key=NAMES), "script": NAMES},
    "Coordinator": {
        "instanceName": NAMES,
        "application": _object(image=NAMES, files=NAMES, command=st.lists(NAMES, max_size=2), code=NAMES),
        "peers": st.dictionaries(NAMES, st.sampled_from(["a.b:1", "a", ":1", "10.0.0.1:700000"]), max_size=2),
        "checkpointMib": NUMBERS,
        "backup": SCHEDULED,
        "storage": _object(size=QUANTITIES, storageClassName=NAMES, shared=st.booleans(), retain=st.booleans()),
        "deletionPolicy": st.sampled_from(["Retain", "Delete", "Keep"]),
    },
    "SwimGroup": {
        "profile": st.sampled_from(["local", "moon"]),
        "capacity": NUMBERS,
        "keyringSecretRef": _object(name=NAMES, key=NAMES),
        "encryption": st.sampled_from(["none", "psk", "e1", "e0", "e2"]),
        "group": NAMES,
        "seeds": st.lists(st.sampled_from(["a.b:1", "[::1]:7946", "10.0.0.1:70000", "a", ":1", "a:b"]), max_size=3),
        "hostNetwork": st.booleans(),
        "storage": _object(size=QUANTITIES),
    },
    "WaltzCluster": {
        "clusterName": NAMES,
        "partitions": NUMBERS,
        "servers": _object(replicas=NUMBERS, resources=_object(), replica=NUMBERS),
        "storage": _object(size=QUANTITIES, storageClassName=NAMES, nodes=NUMBERS, retain=st.booleans()),
        "metadata": _object(
            raftClusterRef=_object(name=NAMES),
            zookeeper=_object(
                connectString=st.sampled_from(["a:2181,b.c:2181", "a", "a:1/b", "a:1,"]),
                root=st.sampled_from(["/waltz/a", "/a", "a", "/", "/a/"]),
            ),
            sessionTimeout=DURATIONS,
        ),
        "deletionPolicy": st.sampled_from(["Retain", "Delete", "Keep"]),
    },
}


@each_kind
@settings(max_examples=300)
@given(data=st.data())
def test_the_model_accepts_what_the_schema_accepts_and_nothing_else(kind: str, data: st.DataObject) -> None:
    spec = data.draw(_object(**COMMON, **OWN[kind]))
    try:
        MODELS[kind].read(spec)
        accepted = True
    except ValidationError:
        accepted = False
    problems = [f"{error.json_path}: {error.message}" for error in VALIDATORS[kind].iter_errors(spec)]
    assert accepted == (not problems), problems


@pytest.mark.parametrize(
    "field",
    [
        {"image": "x" * 254},
        {"config": {str(number): 1 for number in range(65)}},
        {"extraEnv": [{"name": f"N{number}"} for number in range(65)]},
        {"rollout": {"restart": "x" * 254}},
        {"clusterId": "x" * 65},
        {"podLabels": {"a": "x" * 64}},
        {"podAnnotations": {"a": "x" * 1025}},
        {"tolerations": [{"operator": "Exists"}] * 65},
        {"networkPolicy": {"egressCIDRs": ["10.0.0.0/8"] * 65}},
        {"networkPolicy": {"ingressCIDRs": ["10.0.0.0/33"]}},
    ],
)
def test_limits_hold_in_model_and_schema(field: dict[str, Any]) -> None:
    spec = {"stateMachine": "Broadcast", **field}
    assert not VALIDATOR.is_valid(spec)
    with pytest.raises(ValidationError):
        RaftClusterSpec.read(spec)


def test_a_status_survives_the_way_through_the_server() -> None:
    stored: dict[str, Any] = {
        "activeGeneration": 2,
        "rollout": {"state": "Idle", "blockers": []},
        "history": [{"generation": 2, "id": "a", "result": "Promoted", "finishedAt": "2026-01-01T00:00:00Z"}],
        "leader": "thing-server-g2-0",
        "members": [{"name": "thing-server-g2-0", "generation": 2, "role": "Voter"}],
        "fromAnotherRelease": 1,
    }
    status = RaftClusterStatus.parse(stored)
    assert status is not None
    dumped = status.dump()
    assert dumped["leader"] == "thing-server-g2-0"
    assert dumped["history"] == [{**stored["history"][0], "image": ""}]
    assert "fromAnotherRelease" not in dumped
    assert RaftClusterStatus.parse(dumped) == status


NO_ZONE = {"failed": {"id": "a", "generation": 1, "reason": "x", "at": "2026-01-01T00:00:00"}}


@pytest.mark.parametrize("stored", [None, {}, {"activeGeneration": "x"}, {"rollout": {}}, [], "text", NO_ZONE])
def test_a_status_that_cannot_be_read_counts_as_lost(stored: object) -> None:
    assert RaftClusterStatus.parse(stored) is None


def test_marks_decide_what_a_rollout_is_about() -> None:
    spec = RaftClusterSpec.read(
        {
            "stateMachine": "Broadcast",
            "replicas": 5,
            "rollout": {"paused": True, "restart": "x"},
            "storage": {"size": "9Gi"},
        }
    )
    assert pod_fields(spec) == {"stateMachine": "Broadcast", "rollout": {"restart": "x"}}
    assert Mark.POD.value == "P"
