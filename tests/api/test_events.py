"""Events of a resource and its pods, over REST and on the page; who may not list events is told none."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from pavane_operator.kube import Identity, KubeClient, Resource
from pavane_operator.kube.resources import CORE_EVENTS
from tests.api.browser import clean, opened
from tests.api.plane import BASE, Plane, created, plane
from tests.api.test_pods import pod
from tests.requires import requires


async def noted(here: Plane, name: str, about: dict[str, Any], **fields: Any) -> None:
    metadata = about["metadata"]
    named = {"kind": about.get("kind", "Pod"), "name": metadata["name"], "uid": metadata["uid"], "namespace": "default"}
    body = {"metadata": {"name": name}, "involvedObject": named, "reason": name.title(), "message": f"of {name}"}
    await here.kube.create(CORE_EVENTS, {**body, **fields}, "default")


async def test_the_events_of_a_resource_and_its_pods_are_told_the_newest_first(tmp_path: Path) -> None:
    requires("chromium")
    async with plane(tmp_path) as here:
        ours = (await created(here)).json()
        others = (await created(here, "other")).json()
        await pod(here, "q-g1-0", 1)
        of_pod = await here.kube.get(Resource("", "v1", "pods", "Pod"), "q-g1-0", "default")
        await noted(here, "oldest", ours, type="Normal", lastTimestamp="2026-01-01T00:00:01Z", count=3)
        await noted(here, "newest", of_pod, type="Warning", lastTimestamp="2126-01-01T00:00:00Z")
        await noted(here, "stranger", others, type="Normal", lastTimestamp="2026-01-01T00:00:02Z")
        answer = await here.http.get(f"{BASE}/q/events")
        assert answer.status_code == 200, answer.text
        found = answer.json()["items"]
        assert "Stranger" not in [each["reason"] for each in found]
        assert found[0] == {
            "at": "2126-01-01T00:00:00Z",
            "about": "Pod/q-g1-0",
            "type": "Warning",
            "reason": "Newest",
            "message": "of newest",
            "count": 1,
        }
        assert (found[-1]["about"], found[-1]["reason"], found[-1]["count"]) == ("RaftCluster/q", "Oldest", 3)
        async with opened(here) as page:
            await page.goto(f"{here.http.base_url}#/raftclusters/default/q")
            table = page.get_by_role("table", name="Events")
            await expect(table.get_by_role("row", name="Pod/q-g1-0 Warning Newest 1 of newest")).to_be_visible()
            await expect(table.get_by_role("row", name="RaftCluster/q Normal Oldest 3 of oldest")).to_be_visible()
            await clean(page)


async def test_who_may_not_list_events_is_told_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = KubeClient.access_review

    async def review(self: KubeClient, caller: Identity, verb: str, resource: Resource, **where: Any) -> bool:
        """As RBAC answers of a Role for our kinds alone, which the embedded server has not."""
        if caller.user.endswith(":reader"):
            return verb == "get" and resource.plural != "events"
        return await ask(self, caller, verb, resource, **where)

    monkeypatch.setattr(KubeClient, "access_review", review)
    async with plane(tmp_path) as here:
        await created(here)
        headers = {"Authorization": f"Bearer {await here.service_account_token('reader')}"}
        assert (await here.http.get(f"{BASE}/q", headers=headers)).status_code == 200
        answer = await here.http.get(f"{BASE}/q/events", headers=headers)
        assert (answer.status_code, "may not list events" in answer.json()["detail"]) == (403, True)
