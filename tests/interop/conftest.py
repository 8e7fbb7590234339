"""What tests with the npm package share: the package itself, and clusters that no test harms."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.interop import npm
from tests.interop.cluster import ELECTION_MS, Cluster, Kind, running
from tests.interop.javascript import Javascript, javascript
from tests.requires import requires

MIXTURES = {
    "ours": ("ooo", "a"),
    "js": ("jjj", "a"),
    "ours leads one of ours and two js": ("ojj", "a"),
    "ours leads two of ours and one js": ("ooj", "a"),
    "js leads one js and two of ours": ("joo", "a"),
    "js leads two js and one of ours": ("jjo", "a"),
}
KINDS = {"o": Kind.OURS, "j": Kind.JS}

Make = Callable[..., Cluster]


@pytest.fixture(scope="session")
def node() -> str:
    return requires("node")


@pytest.fixture(scope="session")
def package(node: str) -> Path:
    """Folder in which Node finds the npm package."""
    try:
        return npm.installed(node)
    except npm.InstallError as error:
        if "node" in os.environ.get("PAVANE_REQUIRE", "").split(","):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session", params=list(MIXTURES))
def cluster(
    request: pytest.FixtureRequest, node: str, package: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Three peers of a mixture, led by the one that its name says; no test ends one of them."""
    kinds, first = MIXTURES[request.param]
    members = {id_: KINDS[letter] for id_, letter in zip("abc", kinds, strict=True)}
    with running(Cluster(tmp_path_factory.mktemp("shared"), node, package, members, first)) as cluster:
        cluster.led_by(first)
        yield cluster


@pytest.fixture
def make(node: str, package: Path, tmp_path: Path) -> Iterator[Make]:
    """Make clusters of one test's own: ``make("ojj", first="a")`` starts peers a (ours), b and c (js).

    With ``start`` only those are started.
    """
    made: list[Cluster] = []

    def make(
        kinds: str, *, first: str = "", elections: tuple[int, int] = ELECTION_MS, start: str | None = None
    ) -> Cluster:
        members = {id_: KINDS[letter] for id_, letter in zip("abcdefg", kinds, strict=False)}
        made.append(Cluster(tmp_path / str(len(made)), node, package, members, first, elections))
        if start is None:
            made[-1].start_all()
        else:
            made[-1].start(*start)
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
async def js(node: str, package: Path) -> AsyncIterator[Javascript]:
    """The clients of the npm package."""
    async with javascript(node, package) as driver:
        yield driver
