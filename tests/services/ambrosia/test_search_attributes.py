"""Open flows are found by what the application says of them, also after kills, and one is shown with its history."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from pavane.ambrosia import Immortal, RemoteError, method, serve
from pavane.ambrosia.client import about as telling
from pavane.ambrosia.client.about import FlowFilter, flows, history
from pavane.ambrosia.testing import World
from pavane_api.immortals import service
from pavane_api.problems import BadRequest, NotFound
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.main import app
from pavane_operator.kube import pods_http
from tests.api.immortals import serves
from tests.services.ambrosia.test_server import options, running


class Shop(Immortal):
    sold: int = 0

    @method
    async def order(self, customer: int, note: str, proof: bytes = b"\xff") -> int:
        self.search_attributes(customer=customer, stage="asked", urgent=True)
        self.add(customer)
        await self.now()
        self.search_attributes(stage="paid", urgent=None)
        await self.sleep(1000)
        return customer

    @method
    async def again(self, left: int) -> int:
        self.search_attributes(**{f"left{left}": left})
        await self.sleep(10)
        if left:
            self.restart(Shop.again, left - 1)
        return 0

    @method
    async def wrong(self, how: str) -> None:
        values: dict[str, Any] = {
            "list": {"a": [1]}, "nan": {"a": float("nan")}, "long": {"a": "x" * 256},
            "many": {f"a{number}": number for number in range(21)},
        }  # fmt: skip
        self.search_attributes(**values[how])

    @method
    def plain(self) -> None:
        self.search_attributes(a=1)

    def add(self, customer: int) -> None:
        self.sold += customer


class Former(Immortal):
    """Of an application that was there before: the name is its own."""

    search_attributes: int = 0  # type: ignore[assignment]

    @method
    async def counts(self) -> int:
        return self.search_attributes + 1


def numbers(world: World, **sought: Any) -> list[int]:
    return [each["number"] for each in flows(world._alive("shop").engine, FlowFilter(**sought))["items"]]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_attributes_are_the_same_after_a_kill(checkpoint: bool) -> None:
    with World(seed=1) as world:
        world.start(Shop, "shop")
        for customer in (7, 8):
            world.request("shop", Shop.order, customer, "soon")
        world.run(5)
        if checkpoint:
            world.checkpoint("shop")
            world.run(5)
        world.crash("shop")
        world.run(20)
        (seven, eight) = flows(world._alive("shop").engine, FlowFilter())["items"]
        assert seven["attributes"] == {"customer": 7, "stage": "paid"}
        assert eight["attributes"] == {"customer": 8, "stage": "paid"}
        assert numbers(world, attributes=(("customer", "7"),)) == [seven["number"]]
        assert numbers(world, attributes=(("customer", "7"), ("stage", "asked"))) == []
        assert numbers(world, attributes=(("urgent", "true"),)) == []
        assert numbers(world, method="order") == numbers(world, method="Shop.order") == [1, 2]
        assert numbers(world, method="again") == numbers(world, caller="bob") == []
        world.run(2000)
        assert numbers(world) == []


def test_each_run_sets_its_own() -> None:
    with World(seed=1) as world:
        world.start(Shop, "shop")
        world.request("shop", Shop.again, 2)
        world.run(15)
        assert [each["attributes"] for each in flows(world._alive("shop").engine, FlowFilter())["items"]] == [
            {"left1": 1}
        ]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("list", "is a list"),
        ("nan", "no JSON"),
        ("long", "more than 255"),
        ("many", "21 search attributes, of at most 20"),
    ],
)
def test_what_cannot_be_an_attribute_is_refused_in_words(how: str, words: str) -> None:
    with World(seed=1) as world:
        world.start(Shop, "shop")
        with pytest.raises(RemoteError, match=words):
            world.call("shop", Shop.wrong, how)


def test_they_belong_to_flows_and_an_older_application_keeps_its_name() -> None:
    with World(seed=1) as world:
        world.start(Shop, "shop")
        world.start(Former, "former")
        with pytest.raises(RemoteError, match="belongs to flows"):
            world.call("shop", Shop.plain)
        assert world.call("former", Former.counts) == 1


def test_many_flows_are_told_by_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "FLOWS_TOLD_MAX", 2)
    with World(seed=1) as world:
        world.start(Shop, "shop")
        for customer in range(5):
            world.request("shop", Shop.order, customer, "")
        world.run(5)
        start: int | None = 0
        told: list[tuple[list[int], int]] = []
        while start is not None:
            page = flows(world._alive("shop").engine, FlowFilter(method="order"), start)
            told.append(([each["number"] for each in page["items"]], page["found"]))
            start = page["next_from"]
        assert told == [([1, 2], 5), ([3, 4], 3), ([5], 1)]


def test_a_history_has_what_the_flow_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with World(seed=1) as world:
        world.start(Shop, "shop")
        world.request("shop", Shop.order, 7, "x" * 5000)
        world.run(5)
        engine = world._alive("shop").engine
        assert history(engine, 9) is None
        found = history(engine, 1)
        assert found is not None
        assert found["arguments"]["customer"] == 7
        assert found["arguments"]["note"] == '"' + "x" * 1999 + " …"
        own, now, sleep = found["history"]
        assert own.items() >= {"kind": "own", "name": "add", "state": "done", "result": None, "arrived": 0}.items()
        assert (now["kind"], now["state"], now["arrived"]) == ("now", "done", 1)
        assert sleep["state"] == "open"
        assert sleep["due"] > now["result"]
        later = history(engine, 1, 2)
        assert later is not None
        assert later["history"] == [sleep]


@pytest.fixture
async def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """A control plane's way to a shop with two open flows; ``at`` is its own address."""
    given = options(tmp_path, "shop")
    async with (
        running(given),
        serve(Shop, name="shop", rp=given.receive_port, sp=given.send_port, http="127.0.0.1:0") as handle,
        pods_http() as http,
    ):
        at = serves(handle, monkeypatch)
        for customer in (7, 8):
            handle.impulse(Shop.order, customer, "soon")
        control: Any = SimpleNamespace(pods=http, at=at)
        async with asyncio.timeout(30):
            while (await service.flows(control, "default", "shop", [("attribute", "stage=paid")])).found < 2:
                await asyncio.sleep(0.01)
        yield control


async def test_the_control_plane_finds_flows_and_shows_one(shop: Any) -> None:
    found = await service.flows(shop, "default", "shop", [("attribute", "customer=8"), ("attribute", "stage=paid")])
    assert [each.attributes for each in found.items] == [{"customer": 8, "stage": "paid"}]
    one = await service.history(shop, "default", "shop", found.items[0].number, 0)
    assert (one.method, one.arguments) == ("Shop.order", {"customer": 8, "note": "soon", "proof": "_w=="})
    assert [(each.kind, each.state) for each in one.history] == [("own", "done"), ("now", "done"), ("sleep", "open")]
    with pytest.raises(NotFound, match="no open flow 99"):
        await service.history(shop, "default", "shop", 99, 0)
    with pytest.raises(BadRequest, match="NAME=VALUE"):
        await service.flows(shop, "default", "shop", [("attribute", "customer")])
    with pytest.raises(BadRequest, match="whole number"):
        await service.flows(shop, "default", "shop", [("from", "x")])


async def test_an_application_of_before_is_named(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Older:
        status, good = 404, False

        def json(self) -> Any:
            raise ValueError("Not Found")

    async def ask(*_: Any, **__: Any) -> Older:
        return Older()

    monkeypatch.setattr(service, "ask", ask)
    with pytest.raises(NotFound, match="earlier version of Pavane"):
        await service.flows(shop, "default", "shop", [])


async def typed(shop: Any, folder: Path, *arguments: str) -> str:
    (folder / "shop.http").write_text(shop.at)
    command = ["ambrosia", *arguments, "--log", str(folder)]
    result = await asyncio.to_thread(CliRunner().invoke, app, command)
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


async def test_flows_from_the_shell(shop: Any, tmp_path: Path) -> None:
    lines = (await typed(shop, tmp_path, "flows", "shop", "--attribute", "customer=8")).splitlines()
    assert lines[0].split() == ["FLOW", "METHOD", "STEPS", "CALLER", "ATTRIBUTES", "WAITS", "FOR"]
    (line,) = lines[1:]
    number = line.split()[0]
    assert line.split()[1:] == ["Shop.order", "3", "customer=8", "stage=paid", "sleep", "1000.0"]
    head, _, *steps = (await typed(shop, tmp_path, "flow", "shop", number)).splitlines()
    assert head == 'Shop.order(customer=8, note="soon", proof="_w=="), begun with version 0'
    assert [each.split()[:4] for each in steps[:1]] == [["0", "own", "add", "done"]]
    assert steps[2].split()[:4] == ["2", "sleep", "1000.0", "open,"]
    structured = json.loads(await typed(shop, tmp_path, "flow", "shop", number, "--from", "2", "-o", "json"))
    assert [each["kind"] for each in structured["history"]] == ["sleep"]
    with pytest.raises(UserError, match="no open flow 99") as caught:
        await typed(shop, tmp_path, "flow", "shop", "99")
    assert caught.value.code is ExitCode.NOT_FOUND
    with pytest.raises(UserError, match="NAME=VALUE"):
        await typed(shop, tmp_path, "flows", "shop", "--attribute", "customer")


async def test_a_strangers_page_learns_of_no_flow(shop: Any) -> None:
    async with httpx2.AsyncClient(trust_env=False) as client:
        for path in ("flows", "flows/1"):
            answer = await client.get(f"http://{shop.at}/{path}", headers={"Origin": "https://evil.example"})
            assert answer.status_code == 403
