"""Fixtures of the end-to-end tests: one platform per run, one namespace per test, artefacts of what failed."""

import os
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

from e2e import targets
from e2e.artefacts import keep
from e2e.cluster import RaftTest, namespace_of
from e2e.targets import Target

HERE = Path(__file__).parent
RUNS = int(os.environ.get("PAVANE_E2E_RUNS", "1"))
"""How often the runs under load are repeated: once in `make test`, 20 times in `make e2e`."""
DOWN_S = float(os.environ.get("PAVANE_E2E_DOWN_S", "0"))
"""How long the operator is kept away while pods have to help themselves, at least."""
FAILED = pytest.StashKey[bool]()
RAN = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound the time of each test here, and skip what needs more than the target has."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.platform)
        item.add_marker(pytest.mark.timeout(120 + 60 * RUNS + DOWN_S))
        needed = {need for marker in item.iter_markers("needs") for need in marker.args}
        if targets.Capability.CHART in needed or item.get_closest_marker("smoke"):
            item.add_marker(pytest.mark.kinds)
        if missing := needed - targets.capabilities():
            item.add_marker(pytest.mark.skip(reason=f"target {targets.CHOSEN} has no {', '.join(sorted(missing))}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember for the fixtures whether the test failed, and for the end of the run that something ran."""
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
        item.config.stash[RAN] = True
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run that skipped everything has shown nothing, so it fails."""
    ours = [item for item in session.items if HERE in item.path.parents]
    everything = ours and len(ours) == len(session.items)
    if everything and exitstatus == pytest.ExitCode.OK and not session.config.stash.get(RAN, False):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each skip with its reason."""
    for report in terminalreporter.stats.get("skipped", ()):
        if report.nodeid.startswith(f"{HERE.name}/") and isinstance(report.longrepr, tuple):
            terminalreporter.write_line(f"not run: {report.nodeid}: {report.longrepr[2]}")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The target of this run, with operator and control plane ready."""
    with targets.running(tmp_path_factory.mktemp("platform")) as running:
        yield running


@pytest.fixture
async def raft(
    cluster: Target, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RaftTest]:
    """A namespace for RaftClusters; what is in it is kept in files when the test fails."""
    async with namespace_of(cluster, f"t-{uuid.uuid4().hex[:8]}") as test:
        yield test
        if request.node.stash.get(FAILED, True):
            named = os.environ.get("E2E_ARTEFACTS")
            folder = Path(named) if named else tmp_path_factory.getbasetemp() / "artefacts"
            await keep(test, folder / request.node.name)
