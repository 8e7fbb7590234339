"""Changes from the page, in the browser: what would change is shown first, and nothing is stored before."""

from pathlib import Path
from typing import Any

from playwright.async_api import expect

from pavane_api.kinds import RAFT_CLUSTERS
from pavane_operator.kube.resources import CONTROLLER_REVISIONS
from tests.api.browser import clean, opened
from tests.api.plane import BASE, Plane, created, plane
from tests.requires import requires

FIRST = 'registry/"><b>first:1'
"""An image that a page must show as text."""


async def with_history(here: Plane) -> None:
    """A resource of three generations; the third serves, and of the first only its image is known."""
    await created(here, image="third:3", resources={"limits": {"cpu": "2"}})
    ended = {"id": "i", "result": "Promoted", "finishedAt": "2026-01-01T00:00:00Z"}
    history = [
        {"generation": number, "image": image, **ended}
        for number, image in ((3, "third:3"), (2, "second:2"), (1, FIRST))
    ]
    status = {"activeGeneration": 3, "lastGeneration": 3, "history": history}
    await here.kube.apply_status(RAFT_CLUSTERS, {"metadata": {"name": "q"}, "status": status}, "default")
    for number, image in ((1, FIRST), (2, "second:2")):
        labels = {"app.kubernetes.io/instance": "q", "pavane.dev/generation": str(number)}
        fields = {"stateMachine": "Broadcast", "image": image}
        body = {"metadata": {"name": f"q-g{number}", "labels": labels}, "revision": number, "data": {"fields": fields}}
        await here.kube.create(CONTROLLER_REVISIONS, body, "default")


async def spec_of(here: Plane) -> dict[str, Any]:
    found: dict[str, Any] = (await here.http.get(f"{BASE}/q")).json()["spec"]
    return found


async def test_a_listed_generation_is_gone_back_to_after_its_differences_were_shown(tmp_path: Path) -> None:
    requires("chromium")
    async with plane(tmp_path) as here:
        await with_history(here)
        async with opened(here) as page:
            await page.goto(f"{here.http.base_url}#/raftclusters/default/q")
            await expect(page.get_by_role("button", name="Back to 2")).to_be_visible()
            await expect(page.get_by_role("button", name="Back to 3")).to_have_count(0)
            await page.get_by_role("button", name="Back to 1").click()
            dialog = page.get_by_role("dialog", name="Go back to generation 1 of q?")
            await expect(dialog).to_contain_text("This starts a new generation of 1 pod.")
            row = dialog.get_by_role("row", name="spec.image")
            await expect(row.locator("del")).to_have_text("third:3")
            await expect(row.locator("ins")).to_have_text(FIRST)
            await expect(dialog.get_by_role("row", name="spec.resources.limits")).to_be_visible()
            await clean(page)
            await dialog.get_by_role("button", name="Cancel").click()
            assert (await spec_of(here))["image"] == "third:3"
            await page.get_by_role("button", name="Back to 1").click()
            await dialog.get_by_role("button", name="Go back", exact=True).click()
            await expect(dialog).to_have_count(0)
            assert (await spec_of(here))["image"] == FIRST


async def test_an_undo_goes_back_to_the_generation_that_was_shown(tmp_path: Path) -> None:
    """Another one may be active when it is confirmed."""
    requires("chromium")
    async with plane(tmp_path) as here:
        await with_history(here)
        async with opened(here) as page:
            await page.goto(f"{here.http.base_url}#/raftclusters/default/q")
            await page.get_by_role("button", name="Undo", exact=True).click()
            dialog = page.get_by_role("dialog", name="Undo q?")
            await expect(dialog.get_by_role("row", name="spec.image")).to_be_visible()
            async with page.expect_request("**/rollout/undo") as asked:
                await dialog.get_by_role("button", name="Undo", exact=True).click()
            assert (await asked.value).post_data_json == {"generation": 2}
            await expect(dialog).to_have_count(0)


async def test_an_image_is_changed_after_what_it_does_was_shown(tmp_path: Path) -> None:
    requires("chromium")
    async with plane(tmp_path) as here:
        await with_history(here)
        async with opened(here) as page:
            await page.goto(f"{here.http.base_url}#/raftclusters/default/q")
            await page.get_by_role("button", name="Image", exact=True).click()
            show = page.get_by_role("button", name="Show what changes")
            await expect(show).to_be_disabled()
            await page.get_by_role("textbox", name="Image").fill("fourth:4")
            await clean(page)
            await show.click()
            dialog = page.get_by_role("dialog", name="Change image of q?")
            await expect(dialog.get_by_role("row", name="spec.image")).to_contain_text("fourth:4")
            assert (await spec_of(here))["image"] == "third:3"
            await dialog.get_by_role("button", name="Change image", exact=True).click()
            await expect(dialog).to_have_count(0)
            assert (await spec_of(here))["image"] == "fourth:4"
