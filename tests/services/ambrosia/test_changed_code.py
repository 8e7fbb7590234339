"""A handler that changed after it handled what stands behind the last checkpoint does not go live (spec 14)."""

import contextlib
import dataclasses
import importlib
import sys
from pathlib import Path

import pytest

from pavane.ambrosia.client.changes import digests
from pavane.ambrosia.client.errors import ChangedCode
from pavane.ambrosia.client.immortal import Immortal, definition
from pavane.ambrosia.client.snapshot import ImmortalSnapshot
from tests.services.ambrosia.bank import Account
from tests.services.ambrosia.desk import Desk, Place

HELPERS = """
def fee(amount):
    return amount // 100
"""
APPLICATION = '''
"""An application."""
import helpers_of_changed
from pavane.ambrosia import Immortal, method, query

ALLOWED = 3

class Shop(Immortal):
    numbers: list[str]
    sold: int = 0

    @method
    def sell(self, what: str, amount: int) -> None:
        self.numbers = [*self.numbers, str(self.uuid())]
        self._book(amount)
        if what in {"tea", "coffee", "cocoa"}:
            self.fork(Shop.sold_one, "other", what, amount)

    @method
    def sold_one(self, what: str, amount: int) -> None:
        for _ in range(ALLOWED):
            self.sold += amount

    @method
    async def later(self, what: str) -> None:
        await self.sleep(1)
        self.sell(what, max(map(lambda x: x + 1, [1, 2])))

    @query
    def total(self) -> int:
        return self.sold

    def _book(self, amount: int) -> None:
        try:
            self.sold += amount - helpers_of_changed.fee(amount)
        except ValueError:
            self.sold = 0

    def first_start(self) -> None:
        self.sold = 1

    def became_primary(self) -> None:
        pass
'''
SAME = {
    "comments, blank lines and docstrings": (
        "        self._book(amount)\n",
        "        # It is counted.\n\n        self._book(amount)\n",
        "    def _book(self, amount: int) -> None:\n",
        '    def _book(self, amount: int) -> None:\n        """Count it."""\n',
    ),
    "other lines": ("ALLOWED = 3\n", 'ALLOWED = 3\n\n\nclass Other:\n    """More."""\n'),
    "another layout": (
        '        self.fork(Shop.sold_one, "other", what, amount)',
        '        self.fork(\n  Shop.sold_one, "other",\n what, amount\n)',
    ),
    "a query": ("return self.sold", "return self.sold + 1"),
    "another hook": (
        "    def became_primary(self) -> None:\n        pass",
        "    def became_primary(self) -> None:\n        print()",
    ),
    "a handler that handled nothing": ("await self.sleep(1)", "await self.sleep(2)"),
    "a handler more": (
        "    @query\n",
        "    @method\n    def more(self) -> None:\n        self.sold = 0\n\n    @query\n",
    ),
}
OTHER = {
    "a random before a uuid": ("        self.numbers = [", "        self.random.random()\n        self.numbers = ["),
    "other arguments": ('"other", what, amount', '"other", what, amount + 1'),
    "another receiver": ('"other", what', '"another", what'),
    "a method that it calls": ("self.sold += amount - ", "self.sold += 2 * amount - "),
    "what it tries": ("except ValueError", "except KeyError"),
    "the first start": ("self.sold = 1", "self.sold = 2"),
    "another set": ('"cocoa"', '"chocolate"'),
}


class Versions:
    """The application in a module, written again and again."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def of(self, *changes: str, helpers: str = HELPERS) -> type[Immortal]:
        text = APPLICATION
        for before, after in zip(changes[::2], changes[1::2], strict=True):
            assert before in text
            text = text.replace(before, after)
        for name, content in (("helpers_of_changed", helpers), ("changed", text)):
            (self.folder / f"{name}.py").write_text(content)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        found: type[Immortal] = importlib.import_module("changed").Shop
        return found


@pytest.fixture
def versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Versions:
    return Versions(tmp_path, monkeypatch)


def sold(kind: type[Immortal]) -> Place:
    """A shop that has sold behind its checkpoint, when its process is killed."""
    desk = Desk()
    place = desk.start(kind, "shop")
    desk.call("shop", definition(kind).by_name["sell"], "tea", 100)
    return place


@pytest.mark.parametrize("change", SAME)
def test_code_that_does_the_same_goes_live(change: str, versions: Versions) -> None:
    place = sold(versions.of())
    before = place.engine.snapshot()
    place.live(versions.of(*SAME[change]))
    assert place.engine.snapshot().same(before)


@pytest.mark.parametrize("change", OTHER)
def test_a_handler_that_changed_is_refused_until_it_is_put_back(change: str, versions: Versions) -> None:
    place = sold(versions.of())
    before = place.engine.snapshot()
    with pytest.raises(
        ChangedCode,
        match=r"Shop\.\w+, or a function that it names, has changed since it handled record \d+, .*changed\.py:\d+",
    ):
        place.live(versions.of(*OTHER[change]))
    place.live(versions.of())
    assert place.engine.snapshot().same(before)


def test_a_flow_that_went_on_behind_the_checkpoint_is_refused(versions: Versions) -> None:
    kind = versions.of()
    desk = Desk()
    place = desk.start(kind, "shop")
    desk.request("shop", definition(kind).by_name["later"], "tea")
    place.take_checkpoint()
    place.live(versions.of("x + 1", "x + 2"))  # its history still fits
    place.live(kind)
    for content in ((5,), ()):  # the clock, then the timer
        place.engine.done(place.outside[-1], *content)
        place.turn()
        desk.settle()
    with pytest.raises(ChangedCode, match=r"^Shop.later, or"):
        place.live(versions.of("x + 1", "x + 2"))


def test_a_function_beside_the_application_counts(versions: Versions) -> None:
    place = sold(versions.of())
    with pytest.raises(ChangedCode, match=r"^Shop.sell, or"):
        place.live(versions.of(helpers=HELPERS.replace("100", "50")))


def test_a_greater_version_a_setting_and_a_checkpoint_allow_it(versions: Versions) -> None:
    other = OTHER["other arguments"]
    sold(versions.of()).live(versions.of(*other), version=1)
    sold(versions.of()).live(versions.of(*other), any_code=True)
    place = sold(versions.of())
    place.take_checkpoint()
    place.live(versions.of(*other))
    place.desk.call("shop", definition(place.kind).by_name["sell"], "tea", 100)
    with pytest.raises(ChangedCode):
        place.live(versions.of())


def test_checkpoints_without_digests_and_of_another_compiler_refuse_nothing(versions: Versions) -> None:
    place = sold(versions.of())
    saved = ImmortalSnapshot.read(place.checkpoint)
    for code in ([], [(number, digest + (number == -2)) for number, digest in saved.code]):
        place = sold(versions.of())
        place.checkpoint = dataclasses.replace(saved, code=code).write()
        place.live(versions.of(*OTHER["other arguments"]))


def test_the_same_code_loaded_twice_has_the_same_digests(versions: Versions) -> None:
    assert digests(definition(versions.of())) == digests(definition(versions.of()))


async def test_a_killed_process_does_not_come_back_with_another_handler(versions: Versions, tmp_path: Path) -> None:
    versions.of()
    paths = {"PYTHONPATH": str(tmp_path)}
    shop = Account(tmp_path / "log", "shop", paths, "changed:Shop")
    shop.folder.mkdir()
    try:
        await shop.start()
        assert await shop.ask("POST", "/call/sell", "one", ["tea", 100]) == {"result": None}
        await shop.kill("application", "coordinator")
        versions.of(*OTHER["a random before a uuid"])
        await shop.start()
        assert shop.process is not None
        assert await shop.process.wait() == 70
        assert (
            "Shop.sell, or a function that it names, has changed since it handled record 1"
            in (shop.folder / "shop.out").read_text()
        )
        shop = Account(shop.folder, "shop", paths, "changed:Shop", ["--any-code"])
        await shop.start()
        assert await shop.ask("GET", "/query/total") == {"result": 100}
    finally:
        with contextlib.suppress(FileNotFoundError):
            await shop.kill("application", "coordinator")
