"""Properties of the API server that hold for any input."""

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pavane_local.api import ownership
from pavane_local.api.cluster import Cluster, WriteOptions
from pavane_local.api.errors import ApiError
from pavane_local.store import Object, clone
from tests.local.api_server import WIDGETS, a_cluster, config_map, pod, widget

EXAMPLES = 25
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "name", "$patch"]), inner, max_size=3)
    ),
    max_leaves=6,
)
PLACES = [
    ("metadata",),
    *(("metadata", name) for name in ("name", "namespace", "labels", "annotations", "finalizers", "ownerReferences")),
    *(("metadata", name) for name in ("managedFields", "resourceVersion", "uid", "generateName")),
    ("spec",),
    *(("spec", name) for name in ("containers", "volumes", "env", "replicas", "size", "tags", "rollout", "config")),
    ("status",),
    ("data",),
    ("kind",),
    ("apiVersion",),
]
bodies = st.tuples(
    st.sampled_from([("pods", pod()), (WIDGETS, widget()), ("configmaps", config_map())]),
    st.lists(st.tuples(st.sampled_from(PLACES), json_values), min_size=1, max_size=2),
)
entries = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "2"]), min_size=1, max_size=3)
specs: st.SearchStrategy[Object] = st.fixed_dictionaries(
    {"size": st.just("1Gi")},
    optional={
        "mode": st.sampled_from(["A", "B"]),
        "tags": st.lists(st.sampled_from("xy"), min_size=1, max_size=2, unique=True),
        "env": entries.map(lambda values: [{"name": name, "value": value} for name, value in values.items()]),
        "config": st.dictionaries(st.sampled_from("pq"), st.integers(0, 2), min_size=1),
    },
)


def in_cluster(body: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with a_cluster(Path(folder)) as cluster:
                await body(cluster)

    with asyncio.Runner() as runner:
        runner.run(main())


def broken(body: Object, changes: list[tuple[tuple[str, ...], Any]]) -> Object:
    changed: Object = clone(body)
    for path, value in changes:
        place: Any = changed
        for step in path[:-1]:
            place = place.get(step) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place[path[-1]] = value
    return changed


@settings(max_examples=EXAMPLES)
@given(st.lists(bodies, min_size=3, max_size=8))
def test_no_body_makes_a_write_fail_in_another_way_than_a_refusal(tried: list[Any]) -> None:
    async def body(cluster: Cluster) -> None:
        for (resource, good), changes in tried:
            wrong = broken(good, changes)
            present = cluster.find(resource, "default", "a") or await cluster.create(resource, good)
            attempts: list[Callable[[], Coroutine[Any, Any, Any]]] = [
                lambda: cluster.create(resource, wrong),  # noqa: B023 - called in this round
                lambda: cluster.update(resource, broken(present, changes)),  # noqa: B023
                lambda: cluster.patch(resource, "default", "a", wrong),  # noqa: B023
                lambda: cluster.patch(resource, "default", "a", wrong, "strategic"),  # noqa: B023
                lambda: cluster.apply(resource, wrong, WriteOptions("me"), force=True),  # noqa: B023
                lambda: cluster.apply(resource, wrong, WriteOptions("me"), force=True, subresource="status"),  # noqa: B023
            ]
            for attempt in attempts:
                with contextlib.suppress(ApiError):
                    await attempt()
            for stored in cluster.list(resource):
                assert isinstance(stored["metadata"]["name"], str)

    in_cluster(body)


@settings(max_examples=EXAMPLES)
@given(st.lists(st.tuples(st.sampled_from(["one", "two", "three"]), specs), min_size=1, max_size=6))
def test_an_applied_object_holds_what_was_applied_and_nothing_without_owner(applied: list[tuple[str, Object]]) -> None:
    async def body(cluster: Cluster) -> None:
        latest: dict[str, Object] = {}
        resource = cluster.registry[WIDGETS]
        for manager, spec in applied:
            made, _ = await cluster.apply(WIDGETS, widget(**clone(spec)), WriteOptions(manager), force=True)
            latest[manager] = spec
            wanted = ownership.leaves(resource, {"spec": spec})
            found = ownership.leaves(resource, {"spec": made["spec"]})
            assert {path: found.get(path) for path in wanted} == wanted
            known = ownership.leaves(resource, {"spec": {"replicas": 3, "rollout": {"deadline": "30m"}}})
            for each in latest.values():
                known |= ownership.leaves(resource, {"spec": each})
            assert found.keys() <= known.keys()
            again, _ = await cluster.apply(WIDGETS, widget(**clone(spec)), WriteOptions(manager), force=True)
            assert again == made

    in_cluster(body)


@settings(max_examples=EXAMPLES)
@given(specs)
def test_ownership_survives_its_stored_form(spec: Object) -> None:
    async def body(cluster: Cluster) -> None:
        resource = cluster.registry[WIDGETS]
        new = {"metadata": {}, "spec": spec}
        ownership.record(resource, None, new, ownership.Manager("me", "Update", ""), "2030-01-01T00:00:00Z")
        (entry,) = new["metadata"]["managedFields"]
        assert ownership.owned(entry) == ownership.leaves(resource, new).keys()

    in_cluster(body)
