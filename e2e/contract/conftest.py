"""Fixtures of the contract tests: one server of each sort per run, one namespace per test."""

import asyncio
import contextlib
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from e2e.contract.target import KubeTarget, Server, connected, established, in_namespace, published
from e2e.contract.widgets import WIDGET_DEFINITION
from e2e.kubernetes.control_plane import control_plane
from e2e.kubernetes.tools import CONTROL_PLANE
from e2e.waiting import eventually
from pavane_local.store import HISTORY_EVENTS, Change, Key, ObjectStore
from pavane_operator.crds.definitions import definitions
from pavane_operator.kube.resources import CRDS, NAMESPACES
from tests.requires import requires

SERVERS: tuple[Server, ...] = ("embedded", "kubernetes")


async def _age(folder: Path) -> None:
    """Let a cluster begin where one that has lived for long stands: what it once told is forgotten."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "former"}}
    with ObjectStore(folder / "store.sqlite") as store:
        store.resource_version = 2 * HISTORY_EVENTS
        await store.transact(Key("nodes", "", "former"), lambda _: Change(node))
        await store.transact(Key("nodes", "", "former"), lambda _: Change(node, removed=True))


@contextlib.contextmanager
def _process(module: str, *arguments: str, says: str) -> Iterator[None]:
    """A program of ours that runs from the line in which it `says` that it is ready to the end of the block."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            printed = ""
            for line in process.stdout:
                printed += line
                if says in line:
                    break
            assert process.poll() is None, printed
            yield
        finally:
            process.terminate()


@contextlib.contextmanager
def _embedded(folder: Path) -> Iterator[Path]:
    """The embedded cluster without operator and control plane; yields its kubeconfig."""
    asyncio.run(_age(folder))
    with _process("pavane_cli.main", "up", "--bare", "--folder", str(folder), says="All is Ready"):
        yield folder / "kubeconfig"


@contextlib.contextmanager
def _kubernetes(folder: Path) -> Iterator[Path]:
    """A real control plane with all its controllers; yields its kubeconfig."""
    for program in CONTROL_PLANE:
        requires(program)
    with control_plane(folder) as plane:
        yield plane.kubeconfig


@contextlib.contextmanager
def _with_node(folder: Path) -> Iterator[Path]:
    """A real control plane and a node that runs pods as processes; yields its kubeconfig."""
    for program in CONTROL_PLANE:
        requires(program)
    with _process("e2e.kubernetes.cluster", str(folder), says="export KUBECONFIG"):
        yield folder / "kubeconfig"


@contextlib.contextmanager
def _served(name: Server, started: contextlib.AbstractContextManager[Path]) -> Iterator[KubeTarget]:
    """A server with the definitions of widgets and of our kinds."""
    with started as kubeconfig, connected(name, kubeconfig) as server:
        for body in (WIDGET_DEFINITION, *definitions()):
            server.apply(CRDS, body, "contract", force="true").ok()
            server.until(CRDS, body["metadata"]["name"], established)
            asyncio.run(eventually(partial(published, server, body), f"the schema of {body['metadata']['name']}"))
        yield server


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeTarget]:
    with _served("embedded", _embedded(tmp_path_factory.mktemp("embedded"))) as server:
        yield server


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeTarget]:
    with _served("kubernetes", _kubernetes(tmp_path_factory.mktemp("kubernetes"))) as server:
        yield server


@pytest.fixture(scope="session")
def kubernetes_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeTarget]:
    with _served("kubernetes", _with_node(tmp_path_factory.mktemp("node"))) as server:
        yield server


@contextlib.contextmanager
def _test_of(server: KubeTarget, request: pytest.FixtureRequest) -> Iterator[KubeTarget]:
    """The server with a namespace of the test's own, unless it is older than the test demands."""
    marks = list(request.node.iter_markers("contract"))
    since = next(mark.kwargs["since"] for mark in marks if "since" in mark.kwargs)
    if server.version < tuple(map(int, since.split("."))):
        pytest.skip(f"the server is {server.version}, older than {since}")
    namespace = f"c-{uuid.uuid4().hex[:8]}"
    server.create(NAMESPACES, {"metadata": {"name": namespace}}).ok()
    yield in_namespace(server, namespace, differs=any("differs" in mark.kwargs for mark in marks))
    server.delete(NAMESPACES, namespace)


@pytest.fixture(params=SERVERS)
def target(request: pytest.FixtureRequest) -> Iterator[KubeTarget]:
    """One of the two servers."""
    with _test_of(request.getfixturevalue(request.param), request) as server:
        yield server


@pytest.fixture
def targets(
    embedded: KubeTarget, kubernetes: KubeTarget, request: pytest.FixtureRequest
) -> Iterator[tuple[KubeTarget, KubeTarget]]:
    """Both servers, to compare their answers."""
    with _test_of(embedded, request) as one, _test_of(kubernetes, request) as other:
        yield one, other


@pytest.fixture(params=("embedded", "kubernetes_node"))
def node_target(request: pytest.FixtureRequest) -> Iterator[KubeTarget]:
    """One of the two servers, with a node that runs pods."""
    with _test_of(request.getfixturevalue(request.param), request) as server:
        yield server
