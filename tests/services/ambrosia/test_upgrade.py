"""Live upgrade: a new version of an application takes over state and open flows at one moment (spec 6.4, 18.6)."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from pavane.ambrosia import DefinitionError, Immortal, ImmortalError, method
from pavane.ambrosia.testing import World
from tests.services.ambrosia.bank import BANK


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Both versions of the bank."""
    monkeypatch.syspath_prepend(str(BANK))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tuple(importlib.import_module(name).Account for name in ("bank", "bank2"))


class Shop(Immortal):
    """One class for two versions."""

    sold: list[str]
    upgraded: int = 0

    def upgrade(self, old_version: int, old: Any) -> None:
        assert (old_version, self.app_version, old) == (3, 4, self)
        self.upgraded += 1

    @method
    def sell(self, what: str) -> None:
        self.sold = [*self.sold, what if self.app_version < 4 else what.upper()]

    @method
    async def later(self, what: str) -> int:
        await self.sleep(50)
        if self.app_version < 4:
            await self.sleep(0)
        self.sell(what)
        return self.app_version


def test_the_bank_changes_over_with_a_transfer_on_its_way(bank: Any) -> None:
    first, second = bank
    with World(seed=16) as world:
        for name in ("alice", "bob"):
            world.start(first, name)
            assert world.call(name, first.open, 100) == 100
        world.cut("alice", "bob")
        begun = world.request("alice", first.transfer, "bob", 5)
        world.run(1)
        world.start(first, "alice", version=2, upgrade=second)
        assert world.state("alice") == {"balance": 95, "on_the_way": 5, "statement": ["brought forward: 95"]}
        world.heal()
        assert world.result("alice", first.transfer, begun) is True
        assert world.call("alice", second.transfer, "bob", 7) is True
        world.start(second, "alice", version=2)  # the former class has had its time
        assert world.state("alice")["statement"] == ["brought forward: 95", "7 left"]
        assert world.state("bob") == {"balance": 112, "on_the_way": 0}
        with pytest.raises(ImmortalError, match="alice has version 2 of its application: 0 cannot read its state"):
            world.start(first, "alice")


def test_one_class_branches_and_open_flows_keep_the_version_with_which_they_began() -> None:
    with World(seed=1) as world:
        world.start(Shop, "shop", version=3)
        begun = world.request("shop", Shop.later, "first")
        world.call("shop", Shop.sell, "tea")
        world.start(Shop, "shop", version=4)
        after = world.request("shop", Shop.later, "second")
        world.call("shop", Shop.sell, "tea")
        assert world.result("shop", Shop.later, begun) == 3
        assert world.result("shop", Shop.later, after) == 4
        assert world.state("shop") == {"sold": ["tea", "TEA", "FIRST", "SECOND"], "upgraded": 1}


def test_what_changes_a_handler_without_a_new_version_is_found() -> None:
    class Changed(Shop):
        @method
        def sell(self, what: str) -> None:
            self.sold = [what]
            self.fork(Changed.sell, "other", what)

    world = World(seed=2)
    world.start(Shop, "shop")
    world.start(Shop, "other")
    world.call("shop", Shop.sell, "tea")
    world.checkpoint("shop")
    world.run(1)
    world.start(Changed, "shop")
    with pytest.raises(AssertionError, match=r"Changed.sell handles record \d+ of shop in another way"):
        world.finish()


class Before(Immortal):
    count: int = 7


class Retyped(Immortal):
    count: str = ""


class Dropped(Immortal):
    other: int = 0


class Sends(Immortal):
    count: int = 0

    def upgrade(self, old_version: int, old: Before) -> None:
        self.fork(Shop.sell, "shop", "tea")


class Made(Immortal):
    words: str = ""

    def upgrade(self, old_version: int, old: Before) -> None:
        self.words = f"{old.count} of version {old_version}"


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (Retyped, r"Retyped.count has another type, .*def upgrade\(self, old_version, old\)"),
        (Dropped, r"Dropped.count is no longer there, .*def upgrade"),
        (Sends, r"Sends.upgrade failed from version 0 to 1: .*self.fork\(\).*test_upgrade.py:\d+"),
    ],
)
def test_an_upgrade_that_cannot_be_says_so_and_the_former_version_goes_on(after: type[Immortal], text: str) -> None:
    world = World(seed=4)
    world.start(Before, "x")
    with pytest.raises(ImmortalError, match=text):
        world.start(Before, "x", version=1, upgrade=after)
    world.start(Before, "x", version=1, upgrade=Made)
    assert world.state("x") == {"words": "7 of version 0"}
    world.finish()


def test_a_method_cannot_take_the_name_of_a_hook() -> None:
    with pytest.raises(DefinitionError, match="upgrade: every immortal has something of that name"):

        class Wrong(Immortal):
            @method
            def upgrade(self, old_version: int, old: int) -> None: ...


def test_the_first_life_begins_with_the_new_class(bank: Any, tmp_path: Path) -> None:
    first, second = bank
    with World(seed=5) as world:
        world.start(first, "alice", version=2, upgrade=second)
        assert world.call("alice", second.open, 3) == 3
        assert world.state("alice")["statement"] == ["opened with 3"]
