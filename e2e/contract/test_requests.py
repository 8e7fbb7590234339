"""Requests as such: media types, sizes, tokens, discovery, reviews (docs/specs/operator.md 6.1, 6.5, 6.6)."""

import pytest

from e2e.contract.target import Differs, KubeTarget
from e2e.contract.widgets import WIDGETS, config_map, widget
from pavane_operator.kube.resources import (
    ACCESS_REVIEWS,
    CONFIG_MAPS,
    LEASES,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    TOKEN_REVIEWS,
    Object,
    Resource,
)

pytestmark = pytest.mark.contract(since="1.29")

OWN_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)


@pytest.mark.parametrize("content", [b"{", b"[]", b"text: ["])
def test_what_is_no_object_is_refused(target: KubeTarget, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = target.http.post(target.path(CONFIG_MAPS), content=content, headers=headers)
    assert (answer.status_code, answer.json()["reason"]) == (400, "BadRequest")


def test_a_body_that_is_too_large_is_refused(target: KubeTarget) -> None:
    answer = target.create(CONFIG_MAPS, config_map(data={"a": "x" * (3 << 20)}))
    answer.refused(413, "RequestEntityTooLarge")


def test_yaml_is_read(target: KubeTarget) -> None:
    content = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-yaml}\ndata: {a: b}\n"
    headers = {"Content-Type": "application/yaml"}
    answer = target.http.post(target.path(CONFIG_MAPS), content=content, headers=headers)
    assert (answer.status_code, answer.json()["data"]) == (201, {"a": "b"})


def test_an_unknown_sort_of_patch_is_refused(target: KubeTarget) -> None:
    target.create(WIDGETS, widget()).ok()
    answer = target.http.patch(target.path(WIDGETS, "a"), content=b"{}", headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["reason"]) == (415, "UnsupportedMediaType")


@pytest.mark.contract(
    differs=Differs(
        "a body in protobuf",
        '415: "use apply -f"',
        "read",
        "kubectl sends it for `create namespace`, `configmap`, `secret` and `serviceaccount` alone",
    )
)
def test_protobuf(target: KubeTarget) -> None:
    # An envelope with the kind and version of a ConfigMap without anything: read, and then refused for its name.
    content = b"k8s\x00\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x00\x1a\x00\x22\x00"
    headers = {"Content-Type": "application/vnd.kubernetes.protobuf", "Accept": "application/json"}
    answer = target.http.post(target.path(CONFIG_MAPS), content=content, headers=headers)
    assert answer.status_code == target.either(embedded=415, kubernetes=422)


@pytest.mark.parametrize("authorization", ["Bearer wrong", "Basic YTpi", ""])
def test_without_a_token_nothing_is_answered(target: KubeTarget, authorization: str) -> None:
    answer = target.http.get("/api/v1/pods", headers={"Authorization": authorization})
    assert (answer.status_code, answer.json()["reason"]) == (401, "Unauthorized")


def test_what_does_not_exist_is_not_found(target: KubeTarget) -> None:
    answer = target.call("GET", "/apis/batch/v9/jobs")
    assert answer.code == 404
    assert "the server could not find the requested resource" in str(answer.body)
    assert target.get(WIDGETS, "a", "nothing").code == 404
    refused = target.get(WIDGETS, "none").refused(404, "NotFound")
    assert refused.message == 'widgets.test.dev "none" not found'
    assert refused.body["details"] == {"name": "none", "group": "test.dev", "kind": "widgets"}


@pytest.mark.contract(
    differs=Differs(
        "Deployments, Jobs, Ingress, webhooks and all that section 6.1 of the specification does not list",
        "404 with a `Warning` that names the page of limitations",
        "served",
        "the embedded server is a convenience for one machine, never a second Kubernetes",
    )
)
def test_kinds_that_the_platform_does_not_use(target: KubeTarget) -> None:
    for path in ("/apis/apps/v1/deployments", "/apis/batch/v1/jobs", "/apis/networking.k8s.io/v1/ingresses"):
        answer = target.call("GET", path)
        assert answer.code == target.either(embedded=404, kubernetes=200)
        assert ("limitations" in answer.headers.get("Warning", "")) == target.either(embedded=True, kubernetes=False)


def test_methods_that_a_path_does_not_know(target: KubeTarget) -> None:
    for method, path in (("PUT", target.path(CONFIG_MAPS)), ("POST", target.path(CONFIG_MAPS, "a"))):
        target.call(method, path, {}).refused(405, "MethodNotAllowed")


def test_a_lease_is_taken_and_renewed_with_its_version(target: KubeTarget) -> None:
    spec = {
        "holderIdentity": "one",
        "leaseDurationSeconds": 15,
        "acquireTime": "2030-01-01T00:00:00.000000Z",
        "renewTime": "2030-01-01T00:00:00.000000Z",
        "leaseTransitions": 1,
    }
    made = target.create(LEASES, {"metadata": {"name": "l"}, "spec": spec}).ok()
    assert made["spec"] == spec
    renewed = target.replace(LEASES, {**made, "spec": {**spec, "renewTime": "2030-01-01T00:00:02.000000Z"}}).ok()
    assert renewed["spec"]["renewTime"] == "2030-01-01T00:00:02.000000Z"
    target.replace(LEASES, {**made, "spec": {**spec, "holderIdentity": "two"}}).refused(409, "Conflict")
    released = {**spec, "holderIdentity": "", "leaseDurationSeconds": 1}
    assert target.replace(LEASES, {**renewed, "spec": released}).ok()["spec"].get("holderIdentity", "") == ""


def test_secrets_take_plain_text(target: KubeTarget) -> None:
    made = target.create(SECRETS, {"metadata": {"name": "s"}, "stringData": {"a": "b"}, "data": {"c": "ZA=="}}).ok()
    assert (made["data"], made["type"]) == ({"a": "Yg==", "c": "ZA=="}, "Opaque")
    assert "stringData" not in made


@pytest.mark.parametrize("resource", [CONFIG_MAPS, SECRETS])
def test_what_is_immutable_stays(target: KubeTarget, resource: Resource) -> None:
    target.create(resource, {"metadata": {"name": "a"}, "data": {"a": "Yg=="}, "immutable": True}).ok()
    refused = target.patch(resource, "a", {"data": {"a": "Yw=="}}).refused(422, "Invalid")
    assert "immutable" in refused.message
    target.patch(resource, "a", {"metadata": {"labels": {"x": "y"}}}).ok()


def review(target: KubeTarget, resource: Resource, **spec: object) -> Object:
    answer = target.create(resource, {"spec": spec})
    assert answer.code == 201
    found: Object = answer.ok()["status"]
    return found


def test_a_token_is_reviewed(target: KubeTarget) -> None:
    token = target.http.headers["authorization"].split()[1]
    good = review(target, TOKEN_REVIEWS, token=token)
    assert good["authenticated"] is True
    assert {"system:masters", "system:authenticated"} <= set(good["user"]["groups"])
    assert good["user"]["username"]
    bad = review(target, TOKEN_REVIEWS, token="wrong", audiences=["pavane-api"])
    assert not bad.get("authenticated", False)
    assert bad["error"] == "invalid bearer token"


@pytest.mark.contract(
    differs=Differs(
        "`TokenReview` for an audience that the token was not issued for",
        "authenticated",
        "not authenticated",
        "nobody but the embedded cluster knows its tokens, so they are good for its control plane too",
    )
)
def test_audiences_of_a_token(target: KubeTarget) -> None:
    token = target.http.headers["authorization"].split()[1]
    status = review(target, TOKEN_REVIEWS, token=token, audiences=["pavane-api"])
    assert status.get("authenticated", False) is target.either(embedded=True, kubernetes=False)
    assert status.get("audiences", []) == target.either(embedded=["pavane-api"], kubernetes=[])


@pytest.mark.contract(
    differs=Differs(
        "`kubectl create token`: the subresource `token` of a ServiceAccount",
        "404 with a `Warning` that names the page of limitations",
        "201 with a token",
        "the token of the kubeconfig is the only one of a local cluster",
    )
)
def test_tokens_of_service_accounts(target: KubeTarget) -> None:
    target.until(SERVICE_ACCOUNTS, "default", lambda found: found is not None)
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": {}}
    answer = target.call("POST", target.path(SERVICE_ACCOUNTS, "default", "token"), asked)
    assert answer.code == target.either(embedded=404, kubernetes=201)
    assert ("limitations" in answer.headers.get("Warning", "")) == target.either(embedded=True, kubernetes=False)


def test_access_is_reviewed(target: KubeTarget) -> None:
    asked = {"verb": "get", "resource": "pods", "namespace": target.namespace}
    assert review(target, ACCESS_REVIEWS, user="x", groups=["system:masters"], resourceAttributes=asked)["allowed"]
    assert not review(target, ACCESS_REVIEWS, user="x", groups=["none"], resourceAttributes=asked)["allowed"]
    assert review(target, OWN_REVIEWS, resourceAttributes=asked)["allowed"]


def test_what_is_served_can_be_discovered(target: KubeTarget) -> None:
    assert "v1" in target.call("GET", "/api").ok()["versions"]
    groups = {each["name"]: each for each in target.call("GET", "/apis").ok()["groups"]}
    assert groups["test.dev"]["preferredVersion"] == {"groupVersion": "test.dev/v1", "version": "v1"}
    one = target.call("GET", "/apis/test.dev").ok()
    assert (one["kind"], one["name"]) == ("APIGroup", "test.dev")
    assert target.call("GET", "/apis/none.dev").code == 404
    assert target.call("GET", "/apis/test.dev/v9").code == 404


VERBS = {"create", "delete", "get", "list", "patch", "update", "watch"}


def test_a_custom_kind_is_described_as_its_definition_says(target: KubeTarget) -> None:
    found = target.call("GET", "/apis/test.dev/v1").ok()
    assert (found["kind"], found["groupVersion"]) == ("APIResourceList", "test.dev/v1")
    entries = {each["name"]: each for each in found["resources"]}
    whole = entries["widgets"]
    assert (whole["kind"], whole["singularName"], whole["namespaced"]) == ("Widget", "widget", True)
    assert (whole["shortNames"], whole["categories"]) == (["wd"], ["things"])
    assert set(whole["verbs"]) >= VERBS
    assert set(entries["widgets/status"]["verbs"]) == {"get", "patch", "update"}
    scale = entries["widgets/scale"]
    assert (scale["group"], scale["version"], scale["kind"]) == ("autoscaling", "v1", "Scale")


@pytest.mark.parametrize(
    ("path", "plural", "kind", "namespaced"),
    [
        ("/api/v1", "pods", "Pod", True),
        ("/api/v1", "pods/log", "Pod", True),
        ("/api/v1", "namespaces", "Namespace", False),
        ("/apis/apps/v1", "statefulsets/scale", "Scale", True),
        ("/apis/discovery.k8s.io/v1", "endpointslices", "EndpointSlice", True),
        ("/apis/policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", True),
        ("/apis/authentication.k8s.io/v1", "tokenreviews", "TokenReview", False),
    ],
)
def test_built_in_kinds_are_described_alike(
    target: KubeTarget, path: str, plural: str, kind: str, namespaced: bool
) -> None:
    entries = {each["name"]: each for each in target.call("GET", path).ok()["resources"]}
    assert (entries[plural]["kind"], entries[plural]["namespaced"]) == (kind, namespaced)


def test_the_schema_of_a_custom_kind_is_published(target: KubeTarget) -> None:
    index = target.call("GET", "/openapi/v3").ok()["paths"]
    document = target.call("GET", index["apis/test.dev/v1"]["serverRelativeURL"]).ok()
    schema = document["components"]["schemas"]["dev.test.v1.Widget"]
    assert schema["x-kubernetes-group-version-kind"] == [{"group": "test.dev", "kind": "Widget", "version": "v1"}]
    assert schema["properties"]["spec"]["required"] == ["size"]
    assert schema["properties"]["spec"]["properties"]["rollout"]["description"] == "How it rolls."
    operation = document["paths"]["/apis/test.dev/v1/namespaces/{namespace}/widgets/{name}"]["patch"]
    assert operation["x-kubernetes-group-version-kind"]["kind"] == "Widget"
    assert {"fieldValidation", "dryRun"} <= {each["name"] for each in operation["parameters"]}


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
def test_the_server_says_that_it_lives(target: KubeTarget, path: str) -> None:
    answer = target.call("GET", path)
    assert (answer.code, answer.body) == (200, "ok")


@pytest.mark.contract(
    differs=Differs(
        "`/version`",
        "`v1.32.0+pavane`",
        "its own",
        "version only: the embedded server behaves as 1.32 does",
    )
)
def test_the_version_is_told(target: KubeTarget) -> None:
    found = target.call("GET", "/version").ok()
    assert found["gitVersion"].startswith(f"v{target.version[0]}.{target.version[1]}.")
    assert (found["gitVersion"] == "v1.32.0+pavane") is target.either(embedded=True, kubernetes=False)
    assert found["platform"]


POD_SPECS = {
    "initContainers": [{"name": "first", "image": "pavane"}],
    "restartPolicy": "OnFailure",
    "volumes": [{"name": "v", "hostPath": {"path": "/tmp"}}],  # noqa: S108 - never mounted
}


@pytest.mark.parametrize("field", POD_SPECS)
@pytest.mark.contract(
    differs=Differs(
        "a pod with init containers, restart policy OnFailure, a host path and whatever else section 6.5 refuses",
        "422 with the field",
        "accepted",
        "a process kubelet would have to pretend",
    )
)
def test_pods_with_more_than_the_platform_needs(target: KubeTarget, field: str) -> None:
    container = {"name": "main", "image": "pavane"}
    answer = target.create(
        PODS, {"metadata": {"name": "p"}, "spec": {"containers": [container], field: POD_SPECS[field]}}
    )
    assert answer.code == target.either(embedded=422, kubernetes=201)
    assert any(field in each for each in answer.causes) if answer.code == 422 else answer.ok()


@pytest.mark.parametrize("sub", ["exec", "attach", "portforward"])
@pytest.mark.contract(
    differs=Differs(
        "`kubectl exec`, `attach`, `port-forward`, `proxy`, ephemeral containers, eviction",
        "501 with the folder in which to run the command",
        "served by the kubelet",
        "a pod is a process in a folder of this machine",
    )
)
def test_streams_into_pods(target: KubeTarget, sub: str) -> None:
    answer = target.call("POST", target.path(PODS, "none", sub), {})
    assert answer.code == target.either(embedded=501, kubernetes=404)


def test_a_namespace_needs_a_label_as_its_name(target: KubeTarget) -> None:
    for name in ("a.b", "A", "x" * 64):
        refused = target.create(NAMESPACES, {"metadata": {"name": name}}).refused(422, "Invalid")
        assert "metadata.name" in refused.causes
