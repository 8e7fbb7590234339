"""Open flows over REST and in the browser: found by their attributes, and one with its history."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from pavane.ambrosia import serve
from pavane_api.kinds import COORDINATORS
from tests.api.browser import clean, opened
from tests.api.immortals import serves
from tests.api.plane import plane
from tests.requires import requires
from tests.services.ambrosia.test_search_attributes import Shop
from tests.services.ambrosia.test_server import options, running

PATH = "/api/v1/namespaces/default/coordinators/shop/flows"


async def test_flows_are_found_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requires("chromium")
    given = options(tmp_path, "shop")
    async with (
        running(given),
        serve(Shop, name="shop", rp=given.receive_port, sp=given.send_port, http="127.0.0.1:0") as handle,
        plane(tmp_path / "plane") as here,
    ):
        serves(handle, monkeypatch)
        await here.kube.create(COORDINATORS, {"metadata": {"name": "shop"}, "spec": {}}, "default")
        for customer in (7, 8):
            handle.impulse(Shop.order, customer, "soon")
        handle.impulse(Shop.again, 3)

        stranger = {"Authorization": f"Bearer {await here.service_account_token('stranger')}"}
        for path in (PATH, f"{PATH}/1"):
            assert (await here.http.get(path, headers=stranger)).status_code == 403
        for query, status in (("attribute=customer", 422), ("from=-1", 422), ("atribute=a%3D1", 422)):
            assert (await here.http.get(f"{PATH}?{query}")).status_code == status
        assert (await here.http.get(f"{PATH}/99")).status_code == 404

        async with opened(here) as page:
            await page.goto(f"{here.http.base_url}#/coordinators/default/shop")
            panel = page.get_by_role("region", name="Open flows", exact=True)
            table = panel.get_by_role("table", name="Open flows")
            await expect(table.get_by_role("row", name="Shop.order 2 3 customer=8 stage=paid")).to_be_visible()
            await expect(table.get_by_role("row")).to_have_count(4)
            search = panel.get_by_label("Search attributes or method")
            await search.fill('customer=7 stage="paid" order')
            await panel.get_by_role("button", name="Find").click()
            await expect(table.get_by_role("row")).to_have_count(2)
            await clean(page)
            (found,) = (await here.http.get(f"{PATH}?attribute=customer%3D7")).json()["items"]
            assert found["attributes"] == {"customer": 7, "stage": "paid"}

            await table.get_by_role("button", name=f"History of flow {found['number']}").click()
            dialog = page.get_by_role("dialog", name=f"History of flow {found['number']}")
            await expect(dialog).to_contain_text('Shop.order(customer=7, note="soon", proof="_w==")')
            await expect(dialog.get_by_role("row", name="own add done null")).to_be_visible()
            await expect(dialog.get_by_role("row", name="sleep 1000.0 open, due 20")).to_be_visible()
            await clean(page)
            await dialog.get_by_role("button", name="Close").click()
            await expect(dialog).to_have_count(0)
            await search.fill("customer=9")
            await panel.get_by_role("button", name="Find").click()
            await expect(panel).to_contain_text("No open flow was found.")
