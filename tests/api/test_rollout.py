from pathlib import Path
from typing import Any

from pavane_api.resources import RAFT_CLUSTERS
from tests.api.plane import BASE, Plane, created, plane


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
        again = await act(api, "restart", {"Idempotency-Key": "k1"}, reason="two")
        assert first.json() == again.json()
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
