"""Each `kubectl wait` in the documentation, typed on statuses that the operator writes."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pavane_local.api.cluster import DEFINITIONS
from pavane_operator.crds.definitions import definition_of, definitions
from pavane_operator.kinds.dataflow.handing import Verdict
from pavane_operator.kinds.dataflow.handing import status as dataflow_status
from pavane_operator.kube import KubeClient, Object, Target
from pavane_operator.kube.resources import custom
from tests.local.api_server import a_server
from tests.local.test_kubectl import Kubectl
from tests.operator.test_backups import backup, decided, pod, running
from tests.operator.test_gitops import NOW, attempt, baking, late, says, serving, starting, written
from tests.requires import requires

DOCS = Path(__file__).parents[2] / "docs"
PHRASE = re.compile(r"^ +kubectl wait (.*)$", re.MULTILINE)
SPECS: dict[str, Object] = {
    "RaftCluster": {"stateMachine": "KeyValue"},
    "Backup": {"of": {"name": "db"}, "url": "s3://store/db"},
    "Dataflow": {"computeClusterRef": {"name": "db"}, "script": "-- none"},
}
SHORT = {"raft": "RaftCluster", "raftcluster": "RaftCluster", "backup": "Backup", "dataflow": "Dataflow"}
COPIED = '{"index": 71, "bytes": 1, "digest": "ab", "kept": ""}'


def typed() -> list[str]:
    """What stands behind `kubectl wait`, on all pages."""
    return sorted({found for page in DOCS.glob("*.md") for found in PHRASE.findall(page.read_text(encoding="utf-8"))})


def _backup(complete: bool) -> Object:
    seen = (pod("Succeeded", COPIED),) if complete else (None, None)
    return {"status": decided(backup("b", status=running()), *seen).status.dump()}


def _dataflow(accepted: bool) -> Object:
    body: Object = {"metadata": {"name": "flow", "generation": 1}, "spec": {}}
    status = dataflow_status(body, Verdict(accepted, "Accepted", ""), None, None, NOW).dump()
    for each in status["conditions"]:
        each["status"] = str(accepted)
    return {"status": status}


def states(phrase: str) -> tuple[Object, Object]:
    """A status that ends the wait, and one that does not."""
    waiting = attempt(says("UpToDate", "WaitingForApproval"), strategy="Manual")
    match re.sub(r".*--for[= ](\S+).*", r"\1", phrase), phrase.partition("/")[0]:
        case "condition=Complete", "backup":
            return _backup(True), _backup(False)
        case "condition=Failed", "backup":
            return _backup(False), _backup(True)
        case "condition=UpToDate", "dataflow":
            return _dataflow(True), _dataflow(False)
        case "condition=Stalled", _:
            return late(), written(serving())
        case "condition=CanSwitchBack", _:
            return baking(), written(serving())
        case (("condition=UpToDate" | "jsonpath='{.status.rollout.state}'=Idle"), _):
            return written(serving()), written(waiting)
        case "condition=CaughtUp", _:
            return written(waiting), starting()
        case "condition=Ready", _:
            return written(serving()), starting()
    raise AssertionError(f"no state is known for: kubectl wait {phrase}")


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    program = requires("kubectl")
    async with a_server(tmp_path) as server:
        for definition in definitions():
            await server.cluster.create(DEFINITIONS, copy.deepcopy(definition))
        yield Kubectl(server, program, tmp_path)


def of_generation(status: Object, generation: int) -> Object:
    """The same, said of the spec of that generation."""
    told = [{**each, "observedGeneration": generation} for each in status["conditions"]]
    return {**status, "conditions": told, "observedGeneration": generation}


@pytest.mark.parametrize("phrase", typed())
async def test_a_wait_of_the_documentation_ends_when_it_should_and_not_before(kubectl: Kubectl, phrase: str) -> None:
    arguments = shlex.split(phrase.replace("NAME", "db"), comments=True)
    place = next(index for index, each in enumerate(arguments) if each.startswith("--timeout"))
    arguments = [*arguments[:place], "--timeout=0"]  # look once
    short, name = arguments[0].split("/")
    kind = SHORT[short]
    resource = custom(kind, definition_of(kind).plural)
    async with await KubeClient.connect(Target(kubectl.server.api.kubeconfig)) as kube:
        created = await kube.create(resource, {"metadata": {"name": name}, "spec": SPECS[kind]}, "default")

        async def tell(body: Object, generation: int) -> None:
            status = of_generation(body["status"], generation)
            await kube.apply_status(resource, {"metadata": {"name": name}, "status": status}, "default")

        if "--for=delete" in arguments:
            await kubectl.run("wait", *arguments, code=1)
            await kube.delete(resource, name, "default")
            await kubectl.run("wait", *arguments)
            return
        generation = created["metadata"]["generation"]
        good, bad = states(phrase)
        await tell(bad, generation)
        await kubectl.run("wait", *arguments, code=1)
        if "condition=" in phrase:
            await tell(good, generation - 1)  # of the spec before
            await kubectl.run("wait", *arguments, code=1)
        await tell(good, generation)
        await kubectl.run("wait", *arguments)
