from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pavane_api.kinds import RAFT_CLUSTERS, WALTZ_CLUSTERS
from pavane_operator.crds.common import rollout_id
from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.kube import KubeClient
from pavane_operator.kube.resources import CONTROLLER_REVISIONS
from tests.api.plane import BASE, Plane, created, plane, raft_cluster


async def give_status(api: Plane, **status: Any) -> None:
    await api.kube.apply_status(RAFT_CLUSTERS, {"metadata": {"name": "q"}, "status": status}, "default")


async def act(api: Plane, action: str, headers: dict[str, str] | None = None, **body: Any) -> Any:
    return await api.http.post(f"{BASE}/q/rollout/{action}", json=body, headers=headers or {})


async def rollout_of(api: Plane) -> dict[str, Any]:
    found: dict[str, Any] = (await api.http.get(f"{BASE}/q")).json()["spec"]["rollout"]
    return found


async def test_an_action_sets_the_number_of_the_attempt_that_waits(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        await give_status(api, nextGeneration=3, rollout={"state": "CaughtUp"})
        for action, field in (("promote", "promote"), ("force-promote", "forcePromote"), ("abort", "abort")):
            answer = await act(api, action)
            assert (answer.status_code, answer.json()) == (202, {"field": f"spec.rollout.{field}", "value": 3})
        rollout = await rollout_of(api)
        assert {key: rollout[key] for key in ("promote", "forcePromote", "abort")} == {
            "promote": 3,
            "forcePromote": 3,
            "abort": 3,
        }


async def test_pause_and_resume_and_restart(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        assert (await act(api, "pause")).status_code == 202
        assert (await rollout_of(api))["paused"] is True
        assert (await act(api, "resume")).status_code == 202
        assert (await rollout_of(api))["paused"] is False
        assert (await act(api, "restart", reason="new certificates")).json()["value"] == "new certificates"
        await give_status(api, lastGeneration=4)
        assert (await act(api, "restart")).json()["value"] == "after-4"


async def test_what_the_state_does_not_allow_is_refused_in_words(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        for action in ("promote", "abort", "retry"):
            answer = await act(api, action)
            assert answer.status_code == 409, action
        await give_status(api, nextGeneration=3, rollout={"state": "Promoting"})
        answer = await act(api, "abort")
        assert (answer.status_code, "only goes forward" in answer.json()["detail"]) == (409, True)
        await give_status(api, nextGeneration=4, rollout={"state": "CatchingUp"})
        answer = await act(api, "promote", generation=3)
        assert (answer.status_code, "number 4 now, not 3" in answer.json()["detail"]) == (409, True)
        assert "promote" not in await rollout_of(api)


async def test_a_retry_names_the_failed_attempt(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        failed = {"id": "0" * 16, "generation": 2, "reason": "CrashLoop", "at": "2026-01-01T00:00:00Z"}
        await give_status(api, failed=failed)
        assert (await act(api, "retry")).json()["value"] == 2


async def test_a_repeated_idempotency_key_acts_once(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        first = await act(api, "restart", {"Idempotency-Key": "k1"}, reason="one")
        again = await act(api, "restart", {"Idempotency-Key": "k1"}, reason="one")
        assert first.json() == again.json()
        changed = await act(api, "restart", {"Idempotency-Key": "k1"}, reason="two")
        assert changed.status_code == 422
        assert "Idempotency-Key k1" in changed.json()["detail"]
        assert (await rollout_of(api))["restart"] == "one"
        other = await act(api, "restart", {"Idempotency-Key": "k2"}, reason="two")
        assert other.json()["value"] == "two"


async def test_a_field_of_another_manager_is_a_conflict_not_a_victory(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        gitops = {"metadata": {"name": "q"}, "spec": {"rollout": {"paused": True}}}
        await api.kube.apply(RAFT_CLUSTERS, gitops, "default", manager="gitops")
        answer = await act(api, "resume")
        assert answer.status_code == 409
        assert any("paused" in item["pointer"] for item in answer.json()["errors"])
        assert (await rollout_of(api))["paused"] is True


async def post(api: Plane, path: str, **body: Any) -> Any:
    return await api.http.post(f"{BASE}/q/{path}", json=body)


async def test_scale_changes_a_number_that_others_own_and_refuses_even_ones(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api, replicas=3)
        answer = await post(api, "scale", replicas=5)
        assert (answer.status_code, answer.json()) == (202, {"field": "spec.replicas", "value": 5})
        assert (await api.http.get(f"{BASE}/q")).json()["spec"]["replicas"] == 5
        refused = await post(api, "scale", replicas=4)
        assert refused.status_code == 422
        assert "odd" in refused.text


async def test_scale_of_a_log_changes_the_number_of_its_servers(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        spec = {"metadata": {"raftClusterRef": {"name": "meta"}}}
        await api.kube.create(WALTZ_CLUSTERS, {"metadata": {"name": "ledger"}, "spec": spec}, "default")
        path = "/api/v1/namespaces/default/waltzclusters/ledger"
        answer = await api.http.post(f"{path}/scale", json={"replicas": 3})
        assert (answer.status_code, answer.json()) == (202, {"field": "spec.servers.replicas", "value": 3})
        assert (await api.http.get(path)).json()["spec"]["servers"]["replicas"] == 3
        assert (await api.http.post(f"{path}/scale", json={"replicas": 99})).status_code == 422


async def test_suspend_and_resume(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        assert (await post(api, "suspend")).json() == {"field": "spec.suspend", "value": True}
        assert (await api.http.get(f"{BASE}/q")).json()["spec"]["suspend"] is True
        assert (await post(api, "resume")).json() == {"field": "spec.suspend", "value": False}


async def test_a_repair_names_the_active_generation_and_counts(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        assert (await act(api, "repair")).status_code == 409
        await give_status(api, activeGeneration=2, rollout={"state": "Idle"})
        assert [(await act(api, "repair")).json()["value"] for _ in range(2)] == ["2.1", "2.2"]
        await give_status(api, activeGeneration=2, nextGeneration=3, rollout={"state": "Promoting"})
        assert (await act(api, "repair")).json()["value"] == "3.1"


async def revision_of(api: Plane, number: int, fields: dict[str, Any], repair: int = 0) -> None:
    labels = {"app.kubernetes.io/instance": "q", "pavane.dev/generation": str(number)}
    metadata = {"name": f"q-g{number}-r{repair}", "labels": labels, "annotations": {"pavane.dev/repair": str(repair)}}
    body = {"metadata": metadata, "revision": number, "data": {"fields": fields}}
    await api.kube.create(CONTROLLER_REVISIONS, body, "default")


async def test_undo_gives_the_spec_the_fields_of_the_former_generation(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        broadcast, limits = {"stateMachine": "Broadcast"}, {"cpu": "2", "memory": "1Gi"}
        await created(api, replicas=3, image="new", terminationGracePeriod="9s", resources={"limits": limits})
        assert (await act(api, "undo")).status_code == 409, "there is no former generation"
        history = [
            {"generation": number, "id": "i", "result": result, "finishedAt": "2026-01-01T00:00:00Z"}
            for number, result in ((4, "Promoted"), (3, "Aborted"), (2, "Promoted"), (1, "Promoted"))
        ]
        await give_status(api, activeGeneration=4, history=history)
        assert "not known any more" in (await act(api, "undo")).json()["detail"]
        await revision_of(api, 2, {**broadcast, "image": "broken"})
        await revision_of(api, 2, {**broadcast, "image": "old", "resources": {"limits": {"cpu": "1"}}}, repair=1)
        stands_by = {"number": 2, "role": "Standby", "image": "", "id": "i", "podsReady": 2, "pods": 3}
        told = {"type": "CanSwitchBack", "status": "False", "reason": "NotFollowing", "message": "pod q-2 is gone"}
        told["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        baking = {"generations": [stands_by], "rollout": {"state": "Baking"}}
        await give_status(api, activeGeneration=4, history=history, conditions=[told], **baking)
        refused = await act(api, "undo")
        assert (refused.status_code, "pod q-2 is gone" in refused.json()["detail"]) == (409, True)
        await give_status(api, activeGeneration=4, history=history, conditions=[{**told, "status": "True"}], **baking)
        planned = await act(api, "undo", generation=2, dryRun=True)
        assert planned.json()["changes"]["image"] == "old"
        assert "new generation of 3 pods" in planned.json()["effect"]
        assert (await api.http.get(f"{BASE}/q")).json()["spec"]["image"] == "new", "only asked"
        answer = await act(api, "undo")
        assert (answer.status_code, answer.json().get("generation")) == (202, 2), answer.text
        assert answer.json() == planned.json()
        spec = (await api.http.get(f"{BASE}/q")).json()["spec"]
        assert (spec["image"], spec["terminationGracePeriod"], spec["replicas"]) == ("old", "30s", 3)
        assert spec["resources"]["limits"] == {"cpu": "1"}
        assert spec["resources"]["requests"] == {"cpu": "100m", "memory": "128Mi"}
        again = await act(api, "undo", generation=2)
        assert (again.status_code, "no pod-affecting field" in again.json()["detail"]) == (409, True)
        await revision_of(api, 4, {**broadcast, "image": "serves"})
        failed = {"generation": 5, "id": "i", "reason": "ImagePull", "at": "2026-01-01T00:00:00Z"}
        await give_status(api, activeGeneration=4, history=history, failed=failed)
        answer = await act(api, "undo")
        assert (answer.status_code, answer.json().get("generation")) == (202, 4), "the one that serves"


async def test_a_change_back_to_what_serves_or_follows_says_that_no_generation_starts(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        ids = {}
        for image in ("serves", "follows", "failed"):
            spec = RaftClusterSpec.model_validate(raft_cluster(image=image)["spec"])
            ids[image] = rollout_id("RaftCluster", spec)
        await created(api, image="failed")
        known = [
            {"number": number, "role": role, "image": image, "id": ids[image], "podsReady": 1, "pods": 1}
            for number, role, image in ((2, "Active", "serves"), (1, "Standby", "follows"))
        ]
        told = {"type": "CanSwitchBack", "status": "True", "reason": "Following", "message": "it follows"}
        told["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        await give_status(api, activeGeneration=2, generations=known, conditions=[told])
        for image, words in (
            ("serves", "generation 2, which serves"),
            ("follows", "generation 1, which follows, takes over again"),
            ("other", "starts a new generation of 1 pod"),
        ):
            answer = await act(api, "image", image=image, dryRun=True)
            assert (answer.status_code, words in answer.json()["effect"]) == (202, True), answer.text


async def test_an_image_is_set_whoever_owns_the_field_and_a_dry_run_sets_none(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api, image="old")
        for dry_run in (True, False):
            answer = await act(api, "image", image="new", dryRun=dry_run)
            assert answer.json() == {"changes": {"image": "new"}, "effect": "this starts a new generation of 1 pod"}
            spec = (await api.http.get(f"{BASE}/q")).json()["spec"]
            assert spec["image"] == ("old" if dry_run else "new")
        again = await act(api, "image", image="new")
        assert (again.status_code, "already" in again.json()["detail"]) == (409, True)
        assert (await act(api, "image", image="x" * 254)).status_code == 422
        assert (await act(api, "image")).status_code == 422


async def test_an_undo_is_not_refused_because_a_status_was_written_meanwhile_but_because_the_spec_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with plane(tmp_path) as api:
        await created(api, replicas=3, stateMachine="Broadcast", image="new")
        await give_status(api, activeGeneration=2, lastGeneration=2)
        await revision_of(api, 1, {"stateMachine": "Broadcast", "image": "old"})
        patch = KubeClient.patch
        others: list[Callable[[], Awaitable[object]]] = [
            lambda: give_status(api, activeGeneration=2, lastGeneration=3),
            lambda: patch(api.kube, RAFT_CLUSTERS, "q", {"spec": {"image": "theirs"}}, "default", manager="git"),
        ]

        async def later(self: KubeClient, *args: Any, **options: Any) -> Any:
            if meanwhile:
                await meanwhile.pop()()
            return await patch(self, *args, **options)

        monkeypatch.setattr(KubeClient, "patch", later)
        meanwhile = others[1:]
        assert (await act(api, "undo", generation=1)).status_code == 409
        assert (await api.http.get(f"{BASE}/q")).json()["spec"]["image"] == "theirs"
        meanwhile = others[:1]
        answer = await act(api, "undo", generation=1)
        assert (answer.status_code, meanwhile) == (202, []), answer.text
        assert (await api.http.get(f"{BASE}/q")).json()["spec"]["image"] == "old"


async def test_what_an_undo_wrote_is_set_again_by_a_restart_and_what_others_wrote_is_not(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api, replicas=3, stateMachine="Broadcast")
        await give_status(api, activeGeneration=2, lastGeneration=2)
        await revision_of(api, 1, {"stateMachine": "Broadcast", "rollout": {"restart": "once"}})
        assert (await act(api, "undo", generation=1)).status_code == 202
        assert (await api.http.get(f"{BASE}/q")).json()["spec"]["rollout"]["restart"] == "once"
        assert (await act(api, "restart")).status_code == 202
        assert (await api.http.get(f"{BASE}/q")).json()["spec"]["rollout"]["restart"] == "after-2"
        body = {"spec": {"rollout": {"restart": "theirs"}}}
        await api.kube.patch(RAFT_CLUSTERS, "q", body, "default", manager="git")
        refused = await act(api, "restart", reason="mine")
        assert refused.status_code == 409
        assert 'conflict with "git"' in refused.json()["detail"]
