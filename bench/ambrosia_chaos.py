"""Four Coordinators that call each other under SIGKILL of all that runs (ambrosia.md 21.1).

Applications, coordinators, both together, whole pods and `pavane up` itself are killed at random moments. The callers
notice a call that is lost, doubled or overtaken (`bench.ambrosia_callers`). At the end `pavane ambrosia replay` handles
each log again and compares output and state with every checkpoint.
"""

import asyncio
import contextlib
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from bench.cluster import PAVANE, BenchError, LocalCluster, start, stop
from bench.coordinator_rollouts import NAMESPACE, ask
from bench.options import Options
from bench.report import Measure
from pavane_api.kinds import COORDINATORS
from pavane_cli import output
from pavane_cli.failures import UserError
from pavane_cli.plane import RestClient, control_plane
from pavane_cli.target import Where
from pavane_local.kubelet.spawn import signal_container
from pavane_operator.kinds.coordinator.pod import APPLICATION
from pavane_operator.kube import KubeError
from pavane_operator.kube.resources import PODS

APPLICATION_FILE = Path(__file__).with_name("ambrosia_callers.py")
MODULE = "callers"
NAMES = ("one", "two", "three", "four")
CLUSTER, POD = "`pavane up`", "pod"
VICTIMS = ("application", "coordinator", "application and coordinator", POD)
CLUSTER_EVERY = 20
"""So many kills of something else, then `pavane up` and with it all that runs."""
PAUSE_S = (0.8, 4.0)
UNDER_KILLS_S = 600.0
CALLS_PER_S = 500.0
PATIENCE_S = 180.0
POLL_S = 0.1


class Chaos:
    """The cluster, started again whenever it was killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cluster = self._start()
        self.kills: Counter[str] = Counter()

    def _start(self) -> LocalCluster:
        return start(self._folder, "--fast", str(_example(self._folder)))

    async def until_ready(self) -> None:
        """Wait until all immortals lead."""
        await self._cluster.until_ready()

    async def again(self) -> None:
        """Stop it in order and start it once more: then each log ends with a checkpoint."""
        self.stop()
        self._cluster = self._start()
        await self.until_ready()

    def stop(self) -> None:
        """Stop it in order."""
        stop(self._cluster)

    async def kill(self) -> None:
        """Kill what comes next, whatever it is doing, and count it."""
        if (self.kills.total() + 1) % CLUSTER_EVERY == 0:
            self._cluster.kill()
            self._cluster = self._start()
            await self._cluster.until_serving()
            self.kills[CLUSTER] += 1
            return
        victim = random.choice(VICTIMS)
        while not await self._kill(victim, random.choice(NAMES)):
            await asyncio.sleep(POLL_S)  # it has not been started again
        self.kills[victim] += 1

    async def _kill(self, victim: str, name: str) -> bool:
        async with self._cluster.client() as kube:
            pods = (await kube.list_all(PODS, NAMESPACE)).items
            pod = next((each for each in pods if each["metadata"]["name"].startswith(f"{name}-instance-")), None)
            hit = False
            for status in (pod or {}).get("status", {}).get("containerStatuses") or ():
                kind = "application" if status["name"] == APPLICATION else "coordinator"
                if (victim == POD or kind in victim) and status.get("containerID"):
                    hit |= signal_container(status["containerID"], signal.SIGKILL)
            if pod is not None and hit and victim == POD:
                with contextlib.suppress(KubeError):
                    await kube.delete(PODS, pod["metadata"]["name"], NAMESPACE)  # another one takes its place
            return hit

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[RestClient]:
        """Lend a client of the control plane, once it answers."""
        until = asyncio.get_running_loop().time() + PATIENCE_S
        async with contextlib.AsyncExitStack() as stack:
            while True:
                try:
                    rest = await stack.enter_async_context(control_plane(Where(self._cluster.kubeconfig), None, None))
                    break
                except UserError:
                    if asyncio.get_running_loop().time() > until:
                        raise
                    await asyncio.sleep(POLL_S)
            yield rest


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Kill, let everything arrive, compare both ends of each pair, and handle the logs again."""
    loop = asyncio.get_running_loop()
    chaos = Chaos(folder)
    try:
        await chaos.until_ready()
        async with chaos.asking() as rest:
            for name in NAMES:
                await ask(rest, "POST", f"{name}/call/begin", [[peer for peer in NAMES if peer != name]], "begin")
            began, before = loop.time(), _answered(await _counts(rest))
        while chaos.kills.total() < options.kills:
            await asyncio.sleep(random.uniform(*PAUSE_S))
            await chaos.kill()
            output.note(f"kill {chaos.kills.total()} after {loop.time() - began:.0f} s")
        async with chaos.asking() as rest, asyncio.timeout(PATIENCE_S):
            for name in NAMES:
                await ask(rest, "POST", f"{name}/call/stop", [], "stop")
            seconds = loop.time() - began
            counts = await _settled(rest)
        await chaos.again()
    finally:
        chaos.stop()
    handled = [await _replayed(folder, name) for name in NAMES]
    return [
        *(Measure(f"kills of {what}", count, "") for what, count in sorted(chaos.kills.items())),
        Measure("kills, all", chaos.kills.total(), ""),
        Measure("time under kills", seconds, "s", UNDER_KILLS_S),
        Measure(
            "calls between four immortals meanwhile",
            (_answered(counts) - before) / seconds,
            "/s",
            None,
            (),
            False,
            CALLS_PER_S,
        ),
        *_compared(counts),
        Measure("records handled again with the same output and state", sum(each[0] for each in handled), "", least=1),
        Measure("checkpoints that they were held against", sum(each[1] for each in handled), "", least=1),
        Measure("records behind the last checkpoints", sum(each[2] for each in handled), "", 0),
    ]


def _compared(counts: dict[str, Any]) -> list[Measure]:
    made = sum(sum(count["made"].values()) for count in counts.values())
    pairs = [(name, peer) for name in NAMES for peer in NAMES if peer != name]
    differ = sum(abs(counts[name]["made"].get(peer, 0) - counts[peer]["seen"].get(name, 0)) for name, peer in pairs)
    wrong = sum(count["wrong"] for count in counts.values())
    return [
        Measure("calls made", made, ""),
        Measure("answers that are missing", made - _answered(counts), "", 0, vital=True),
        Measure("calls lost or doubled", differ, "", 0, vital=True),
        Measure("calls or answers out of order", wrong, "", 0, vital=True),
    ]


def _answered(counts: dict[str, Any]) -> int:
    return sum(sum(count["answered"].values()) for count in counts.values())


async def _counts(rest: RestClient) -> dict[str, Any]:
    return {name: await ask(rest, "GET", f"{name}/query/count") for name in NAMES}


async def _settled(rest: RestClient) -> dict[str, Any]:
    """Wait until no flow is open and return what each of them has counted."""
    while True:
        counts = await _counts(rest)
        if not any(count["open"] for count in counts.values()):
            return counts
        await asyncio.sleep(POLL_S)


async def _replayed(folder: Path, name: str) -> tuple[int, int, int]:
    """Have the command replay the log of an immortal; return its records, checkpoints, and records behind these."""
    (logs,) = {path.parent for path in (folder / ".pavane").rglob(f"{name}_0") if path.is_dir()}
    shutil.copyfile(APPLICATION_FILE, folder / f"{MODULE}.py")
    process = await asyncio.create_subprocess_exec(
        *PAVANE,
        *("ambrosia", "replay", f"{MODULE}:Caller", name, "--log", str(logs.resolve())),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told = (await process.communicate())[0].decode()
    output.note(told.strip())
    found = re.search(r"(\d+) records replayed, .* of (\d+) later checkpoints; (\d+) records", told)
    if process.returncode or found is None:
        raise BenchError(f"the log of {name} does not replay: {told.strip()}")
    return int(found[1]), int(found[2]), int(found[3])


def _example(folder: Path) -> Path:
    """The four immortals as resources."""
    code = {MODULE + ".py": APPLICATION_FILE.read_text(encoding="utf-8")}
    documents: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": MODULE, "namespace": NAMESPACE}, "data": code}
    ]
    application = {"command": ["pavane", "ambrosia", "run", f"{MODULE}:Caller"], "files": MODULE}
    documents += [
        {
            "apiVersion": COORDINATORS.api_version,
            "kind": COORDINATORS.kind,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"application": application, "storage": {"size": "1Gi"}},
        }
        for name in NAMES
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "callers.yaml"
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return path
