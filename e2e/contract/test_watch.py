"""Lists, selectors, pages and watches (docs/specs/operator.md 6.2)."""

from typing import Any

import pytest

from e2e.contract.target import TABLE, Differs, KubeTarget
from e2e.contract.widgets import WIDGETS, config_map, widget
from pavane_operator.kube.resources import CONFIG_MAPS, EVENTS, PODS, Resource

pytestmark = pytest.mark.contract(since="1.22")

OURS = "mine"  # a label, for every namespace of a real cluster has a ConfigMap of its own
CORE_EVENTS = Resource("", "v1", "events", "Event")


def three(target: KubeTarget) -> str:
    """Make three ConfigMaps; returns the version of the list before them."""
    version = target.list(CONFIG_MAPS).ok()["metadata"]["resourceVersion"]
    for name, labels in (("m3", {}), ("m1", {"app": "a"}), ("m2", {"app": "b"})):
        target.create(CONFIG_MAPS, config_map(name, labels={OURS: "", **labels})).ok()
    return str(version)


@pytest.mark.parametrize(
    ("labels", "fields", "names"),
    [
        ("app=a", "", ["m1"]),
        ("app==a", "", ["m1"]),
        ("app!=a", "", ["m2", "m3"]),
        ("app in (a, b)", "", ["m1", "m2"]),
        ("app notin (a)", "", ["m2", "m3"]),
        ("app", "", ["m1", "m2"]),
        ("!app", "", ["m3"]),
        ("app,app!=b", "", ["m1"]),
        ("", "metadata.name=m2", ["m2"]),
        ("", "metadata.name!=m2", ["m1", "m3"]),
    ],
)
def test_selectors_choose(target: KubeTarget, labels: str, fields: str, names: list[str]) -> None:
    three(target)
    chosen = ",".join(filter(None, (OURS, labels)))
    answer = target.list(CONFIG_MAPS, labelSelector=chosen, fieldSelector=fields)
    assert answer.names == names
    assert (answer.body["kind"], answer.body["apiVersion"]) == ("ConfigMapList", "v1")


@pytest.mark.parametrize(
    "chosen", [{"labelSelector": "a in b"}, {"fieldSelector": "spec.x=1"}, {"labelSelector": "=x"}]
)
def test_selectors_that_mean_nothing_are_refused(target: KubeTarget, chosen: dict[str, str]) -> None:
    target.list(CONFIG_MAPS, **chosen).refused(400, "BadRequest")


@pytest.mark.parametrize("version", ["", "0"])
def test_a_list_is_as_new_as_asked(target: KubeTarget, version: str) -> None:
    three(target)
    found = target.list(CONFIG_MAPS, labelSelector=OURS, resourceVersion=version)
    assert found.names == ["m1", "m2", "m3"]
    assert int(found.body["metadata"]["resourceVersion"]) > 0


def test_long_lists_come_in_pages(target: KubeTarget) -> None:
    for number in range(5):
        target.create(WIDGETS, widget(f"w{number}")).ok()
    names, versions, page = [], set(), ""
    while True:
        chunk = target.list(WIDGETS, limit=2, **({"continue": page} if page else {}))
        names += chunk.names
        assert len(chunk.names) <= 2
        versions.add(chunk.body["metadata"]["resourceVersion"])
        target.create(WIDGETS, widget(f"a{len(names)}")).ok()  # before the place of the next page
        page = chunk.body["metadata"].get("continue", "")
        if not page:
            break
        assert chunk.body["metadata"]["remainingItemCount"] == 5 - len(names)
    assert names == ["w0", "w1", "w2", "w3", "w4"]
    assert len(versions) == 1


@pytest.mark.contract(
    differs=Differs(
        "a page after `continue`",
        "the present state of what comes after the last name seen",
        "the state at the time of the first page, from etcd's history",
        "the store keeps no versions; a watch from the list's `resourceVersion` tells what the pages missed",
    )
)
def test_later_pages_and_changes_between_them(target: KubeTarget) -> None:
    for number in range(3):
        target.create(WIDGETS, widget(f"w{number}")).ok()
    first = target.list(WIDGETS, limit=1)
    target.create(WIDGETS, widget("w9")).ok()
    rest = target.list(WIDGETS, **{"continue": first.body["metadata"]["continue"]})
    assert rest.names == target.either(embedded=["w1", "w2", "w9"], kubernetes=["w1", "w2"])


def test_a_page_that_was_never_given_is_refused(target: KubeTarget) -> None:
    target.list(CONFIG_MAPS, **{"continue": "nonsense"}).refused(400, "BadRequest")


def test_all_namespaces_are_listed_in_order(target: KubeTarget) -> None:
    three(target)
    found = target.call("GET", "/api/v1/configmaps", labelSelector=f"{OURS},app")
    places = [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in found.ok()["items"]]
    assert (target.namespace, "m1") in places
    assert places == sorted(places)


def test_a_watch_tells_what_happens_after_its_version(target: KubeTarget) -> None:
    version = three(target)
    with target.watch(CONFIG_MAPS, resourceVersion=version, labelSelector=OURS) as events:
        assert [
            (each.type, each.object["metadata"]["name"]) for each in (next(events), next(events), next(events))
        ] == [
            ("ADDED", "m3"),
            ("ADDED", "m1"),
            ("ADDED", "m2"),
        ]
        changed = target.patch(CONFIG_MAPS, "m1", {"data": {"a": "2"}}).ok()
        event = next(events)
        assert (event.type, event.object) == ("MODIFIED", changed)
        target.delete(CONFIG_MAPS, "m1").ok()
        event = next(events)
        assert (event.type, event.object["data"]) == ("DELETED", {"a": "2"})
        assert int(event.object["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])


@pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}, {"resourceVersion": ""}])
def test_a_watch_from_nowhere_begins_with_what_is_there(target: KubeTarget, query: dict[str, str]) -> None:
    three(target)
    with target.watch(CONFIG_MAPS, labelSelector=OURS, **query) as events:
        assert {
            (each.type, each.object["metadata"]["name"]) for each in (next(events), next(events), next(events))
        } == {
            ("ADDED", "m1"),
            ("ADDED", "m2"),
            ("ADDED", "m3"),
        }
        target.create(CONFIG_MAPS, config_map("new", labels={OURS: ""}))
        assert next(events).object["metadata"]["name"] == "new"


def test_objects_enter_and_leave_the_selector_of_a_watch(target: KubeTarget) -> None:
    version = three(target)
    with target.watch(CONFIG_MAPS, resourceVersion=version, labelSelector="app=b") as events:
        assert next(events).type == "ADDED"
        target.patch(CONFIG_MAPS, "m1", {"metadata": {"labels": {"app": "b"}}}).ok()
        event = next(events)
        assert (event.type, event.object["metadata"]["name"]) == ("ADDED", "m1")
        target.patch(CONFIG_MAPS, "m1", {"metadata": {"labels": {"app": "a"}}}).ok()
        event = next(events)
        assert (event.type, event.object["metadata"]["name"]) == ("DELETED", "m1")
        target.delete(CONFIG_MAPS, "m2").ok()
        event = next(events)
        assert (event.type, event.object["metadata"]["name"]) == ("DELETED", "m2")


def test_one_object_is_watched_by_its_name(target: KubeTarget) -> None:
    three(target)
    with target.watch(CONFIG_MAPS, fieldSelector="metadata.name=m2") as events:
        assert next(events).object["metadata"]["name"] == "m2"
        target.patch(CONFIG_MAPS, "m1", {"data": {"a": "2"}}).ok()
        target.patch(CONFIG_MAPS, "m2", {"data": {"a": "2"}}).ok()
        assert next(events).object["metadata"]["name"] == "m2"


def test_a_watch_ends_in_time_and_says_how_far_it_came(target: KubeTarget) -> None:
    target.create(WIDGETS, widget()).ok()
    listed = target.list(WIDGETS).ok()
    query = {"resourceVersion": listed["metadata"]["resourceVersion"], "allowWatchBookmarks": "true"}
    # A real server tells it 2 s before the end, and only where something has happened since the watch began.
    with target.watch(WIDGETS, timeoutSeconds=8, **query) as events:
        target.patch(WIDGETS, "a", {"spec": {"mode": "A"}}).ok()
        found = list(events)
    assert found[0].type == "MODIFIED"
    last = found[-1]
    assert last.type == "BOOKMARK"
    assert (last.object["kind"], last.object["apiVersion"]) == ("Widget", "test.dev/v1")
    assert int(last.object["metadata"]["resourceVersion"]) >= int(found[0].object["metadata"]["resourceVersion"])


def test_a_watch_without_bookmarks_has_none(target: KubeTarget) -> None:
    version = target.list(WIDGETS).ok()["metadata"]["resourceVersion"]
    with target.watch(WIDGETS, timeoutSeconds=2, resourceVersion=version) as events:
        assert list(events) == []


def test_a_watch_from_too_long_ago_is_an_error_event(target: KubeTarget) -> None:
    with target.watch(WIDGETS, resourceVersion="1") as events:  # their definition is younger than that
        (event,) = list(events)
    assert event.type == "ERROR"
    known = {key: event.object[key] for key in ("kind", "apiVersion", "status", "reason", "code")}
    assert known == {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410}
    assert "too old resource version: 1 " in event.object["message"]


@pytest.mark.contract(
    differs=Differs(
        "a watch from a `resourceVersion` that does not exist yet",
        "410 at once",
        "waits until it exists",
        "only a store that was thrown away and begun anew brings it about: the client lists again",
    )
)
def test_a_watch_from_the_future(target: KubeTarget) -> None:
    version = int(target.list(CONFIG_MAPS).ok()["metadata"]["resourceVersion"]) + 1_000_000
    with target.watch(CONFIG_MAPS, resourceVersion=str(version), timeoutSeconds=2) as events:
        found = [each.object["code"] for each in events if each.type == "ERROR"]
    assert found == target.either(embedded=[410], kubernetes=[])


@pytest.mark.parametrize("query", [{"resourceVersion": "x"}, {"resourceVersion": "-1"}])
def test_versions_are_numbers(target: KubeTarget, query: dict[str, str]) -> None:
    answer = target.call("GET", target.path(CONFIG_MAPS), watch="true", timeoutSeconds=2, **query)
    assert answer.code in (400, 500), answer


@pytest.mark.contract(
    since="1.32",
    differs=Differs(
        "a watch with `sendInitialEvents`",
        "422: clients fall back to a list and a watch",
        "the objects, then a bookmark with the annotation `k8s.io/initial-events-end`",
        "a list and a watch give the same",
    ),
)
def test_streamed_lists(target: KubeTarget) -> None:
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    params: dict[str, Any] = {"watch": "true", "timeoutSeconds": 2, **query}
    answer = target.http.get(target.path(CONFIG_MAPS), params=params)
    assert answer.status_code == target.either(embedded=422, kubernetes=200)
    assert ("initial-events-end" in answer.text) is target.either(embedded=False, kubernetes=True)


def test_a_watch_can_be_a_table(target: KubeTarget) -> None:
    target.create(WIDGETS, widget(replicas=5)).ok()
    with target.watch(WIDGETS, accept=TABLE) as events:
        event = next(events)
    assert (event.type, event.object["kind"]) == ("ADDED", "Table")
    assert event.object["rows"][0]["cells"][:2] == ["a", 5]
    assert event.object["rows"][0]["object"]["metadata"]["name"] == "a"


def test_a_list_can_be_a_table(target: KubeTarget) -> None:
    target.create(WIDGETS, widget(mode="B")).ok()
    status = {"status": {"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]}}
    target.patch(WIDGETS, "a", status, sub="status").ok()
    found = target.list(WIDGETS, accept=TABLE).ok()
    assert (found["kind"], found["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    columns = [(each["name"], each["type"], each["priority"]) for each in found["columnDefinitions"]]
    assert columns == [
        ("Name", "string", 0),
        ("Replicas", "integer", 0),
        ("Ready", "string", 0),
        ("Mode", "string", 1),
        ("Age", "date", 0),
    ]
    (row,) = found["rows"]
    assert row["cells"][:4] == ["a", 3, "True", "B"]
    assert row["cells"][4].endswith("s")
    one = target.get(WIDGETS, "a", accept=TABLE).ok()
    assert [each["cells"][:4] for each in one["rows"]] == [row["cells"][:4]]


def test_columns_without_a_value_stay_empty(target: KubeTarget) -> None:
    target.create(WIDGETS, widget()).ok()
    (row,) = target.list(WIDGETS, accept=TABLE).ok()["rows"]
    assert row["cells"][:4] == ["a", 3, None, None]


def test_pods_have_columns_of_their_own(target: KubeTarget) -> None:
    names = [each["name"] for each in target.list(PODS, accept=TABLE).ok()["columnDefinitions"]]
    assert names[:5] == ["Name", "Ready", "Status", "Restarts", "Age"]


def event(name: str = "e", **fields: object) -> dict[str, object]:
    about = {"apiVersion": "test.dev/v1", "kind": "Widget", "name": "a", "namespace": "", "uid": "u-1"}
    told = {"reason": "Promoted", "note": "generation 2 writes", "type": "Normal", "action": "Promoting"}
    reporter = {"reportingController": "pavane.dev/operator", "reportingInstance": "op-0"}
    times = {"eventTime": "2030-01-01T00:00:00.000000Z"}
    return {"metadata": {"name": name}, "regarding": about, **told, **reporter, **times, **fields}


def placed(target: KubeTarget, body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "regarding": {**body["regarding"], "namespace": target.namespace}}


def test_events_are_written_and_read_in_both_shapes(target: KubeTarget) -> None:
    made = target.create(EVENTS, placed(target, event())).ok()
    assert made["eventTime"] == "2030-01-01T00:00:00.000000Z"
    fields = "involvedObject.name=a,involvedObject.kind=Widget,involvedObject.uid=u-1"
    (old,) = target.list(CORE_EVENTS, fieldSelector=fields).ok()["items"]
    assert (old["message"], old["involvedObject"]["name"]) == ("generation 2 writes", "a")
    assert (old["reportingComponent"], old["reportingInstance"]) == ("pavane.dev/operator", "op-0")
    assert target.list(CORE_EVENTS, fieldSelector="involvedObject.name=other").names == []
    new = target.get(EVENTS, "e").ok()
    assert (new["note"], new["regarding"]["name"], new["apiVersion"]) == (
        "generation 2 writes",
        "a",
        "events.k8s.io/v1",
    )


def test_an_event_that_comes_again_becomes_a_series(target: KubeTarget) -> None:
    target.create(EVENTS, placed(target, event())).ok()
    series = {"series": {"count": 2, "lastObservedTime": "2030-01-01T00:01:00.000000Z"}}
    patched = target.patch(EVENTS, "e", series).ok()
    assert patched["series"] == series["series"]
    assert patched["note"] == "generation 2 writes"


def elsewhere(name: str) -> dict[str, Any]:
    """A pod on a node without a kubelet, so that nobody but the test writes its status."""
    return {"metadata": {"name": name}, "spec": {"nodeName": "elsewhere", "containers": [{"name": "x", "image": "x"}]}}


def phase(target: KubeTarget, name: str, told: str) -> None:
    target.patch(PODS, name, {"status": {"phase": told}}, sub="status").ok()


def test_pods_are_chosen_by_node_and_phase(target: KubeTarget) -> None:
    for name in ("a", "b"):
        target.create(PODS, elsewhere(name)).ok()
    phase(target, "a", "Running")

    def chosen(fields: str) -> list[str]:
        return target.list(PODS, fieldSelector=fields).names

    assert chosen("status.phase=Running") == ["a"]
    assert chosen("status.phase!=Running,spec.nodeName=elsewhere") == ["b"]
    assert chosen("spec.nodeName=other") == []
    assert chosen(f"metadata.namespace={target.namespace},metadata.name=b") == ["b"]
    refused = target.list(PODS, fieldSelector="spec.colour=red").refused(400, "BadRequest")
    assert "field label not supported: spec.colour" in refused.message


def test_an_object_comes_into_a_watch_and_leaves_it_as_its_fields_change(target: KubeTarget) -> None:
    target.create(PODS, elsewhere("a")).ok()
    version = target.list(PODS).ok()["metadata"]["resourceVersion"]
    with target.watch(PODS, fieldSelector="status.phase=Running", resourceVersion=version) as events:
        for told in ("Running", "Failed"):
            phase(target, "a", told)
        assert [(next(events).type) for _ in range(2)] == ["ADDED", "DELETED"]


def test_events_are_chosen_by_what_they_say_in_both_shapes(target: KubeTarget) -> None:
    target.create(EVENTS, placed(target, event("e1"))).ok()
    target.create(EVENTS, placed(target, event("e2", type="Warning", reason="NoQuorum"))).ok()
    assert target.list(CORE_EVENTS, fieldSelector="type=Warning,reason=NoQuorum").names == ["e2"]
    assert target.list(EVENTS, fieldSelector="type=Warning,regarding.name=a").names == ["e2"]
    assert target.list(EVENTS, fieldSelector="reportingController=pavane.dev/operator").names == ["e1", "e2"]
    target.list(EVENTS, fieldSelector="involvedObject.name=a").refused(400, "BadRequest")
