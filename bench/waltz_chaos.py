"""A log under kills, stops and cut connections, with writers that know what must come out."""

import asyncio
import base64
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import yaml

from bench.cluster import BenchError, LocalCluster, running
from bench.options import Options
from bench.proxies import Address, Proxies
from bench.report import Measure, greatest_of, median_of
from bench.waltz_oracle import Oracle, Verdict
from pavane.runtime.names import HOSTS_FILE_VARIABLE, parse_hosts
from pavane.waltz.client import Waltz, trusting
from pavane_api.kinds import WALTZ_CLUSTERS
from pavane_cli import output
from pavane_cli.commands.resources import is_settled
from pavane_local.kubelet.spawn import signal_container
from pavane_operator.kube import KubeClient
from pavane_operator.kube.resources import PODS, SECRETS

EXAMPLE = Path(__file__).parents[1] / "examples" / "waltz.yaml"
NAME, NAMESPACE = "ledger", "default"
VICTIMS = ("ledger-server-", "ledger-storage-", "meta-")
SESSION = "1s"
PORT = 55180
PROXIES = "127.88.0."
PATIENCE_S = 300.0
FAILOVERS = 10
FAILOVER_S = 2.0
STOPS_OF_KILLS = 5  # a stop for each so many kills
PAUSE_S = (0.2, 1.5)
HEALED = 0.7
"""Of the kills: appends of every partition are waited for before the next one."""
STOP_S = (0.5, 4.0)
CUT_EVERY_S = (0.5, 4.0)
CUTS = (1, 4)  # of a burst
SETTLED_S = 300.0
POLL_S = 0.2


class PodProxies(Proxies):
    """Stand between the client and each server, and cut the connections in bursts."""

    def __init__(self, hosts: Path, own: Path) -> None:
        super().__init__()
        self._hosts, self._own = hosts, own

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Let names lead here, and cut again and again."""
        text = self._hosts.read_text(encoding="utf-8")
        pods = {addresses[0]: name for name, addresses in parse_hosts(text).items() if name.startswith(VICTIMS[0])}
        lines = []
        for number, (address, name) in enumerate(sorted(pods.items()), 1):
            here = f"{PROXIES}{number}"
            await self.listen((here, PORT), partial(self._address, name))
            names = [known for known, addresses in parse_hosts(text).items() if address in addresses]
            lines.append(f"{here} {' '.join(names)}\n")
        self._own.write_text("".join(lines), encoding="utf-8")
        os.environ[HOSTS_FILE_VARIABLE] = str(self._own)
        cutting = asyncio.create_task(self._cut())
        try:
            yield
        finally:
            cutting.cancel()
            await self.close()
            os.environ[HOSTS_FILE_VARIABLE] = str(self._hosts)

    def _address(self, name: str) -> Address:
        return parse_hosts(self._hosts.read_text(encoding="utf-8"))[name][0], PORT

    async def _cut(self) -> None:
        while True:
            await asyncio.sleep(random.uniform(*CUT_EVERY_S))
            for _ in range(random.randint(*CUTS)):
                self.abort()
                await asyncio.sleep(random.uniform(0, 0.1))


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Fail-overs one by one, then kills, stops and cuts at random; nothing may be lost, doubled or out of order."""
    with running(folder, "--fast", str(example(folder, metadata={"sessionTimeout": SESSION}))) as cluster:
        await cluster.until_ready()
        async with cluster.client() as kube, logs(kube, cluster) as (log, fresh):
            oracle = Oracle(log)
            hosts = Path(os.environ[HOSTS_FILE_VARIABLE])
            async with oracle.running():
                failovers = [await _fail_over(kube, oracle, log) for _ in range(FAILOVERS)]
                await until_settled(kube)
                proxies = PodProxies(hosts, folder / "proxied-hosts")
                began = time.monotonic()
                async with proxies.running():
                    stops = await _shake(kube, oracle, options.kills)
                    ended = time.monotonic()
                await until_settled(kube)
                for partition in oracle.acknowledged:
                    await oracle.more(partition)
            verdict = await oracle.compare(fresh)
    return [
        greatest_of(f"owner killed → acknowledged elsewhere, session {SESSION}, each", "s", failovers, FAILOVER_S),
        median_of(f"owner killed → acknowledged elsewhere, session {SESSION}, median", "s", failovers),
        Measure("kills", options.kills, ""),
        Measure("stops", stops, ""),
        Measure("connections cut", proxies.cut, ""),
        Measure("time under kills", ended - began, "s"),
        Measure("longest time without an append of a partition", oracle.longest_gap_s(began, ended), "s"),
        *judged(verdict),
    ]


def judged(verdict: Verdict) -> list[Measure]:
    """What the comparison found, as measures of which three must be 0."""
    return [
        Measure("appends acknowledged", verdict.acknowledged, ""),
        Measure("appends with unknown outcome", verdict.unknown, ""),
        Measure("acknowledged appends lost", verdict.lost, "", 0, vital=True),
        Measure("appends doubled", verdict.doubled, "", 0, vital=True),
        Measure("appends in the log though they were refused", verdict.refused, "", 0, vital=True),
        Measure("appends out of order", verdict.misplaced, "", 0, vital=True),
    ]


def example(folder: Path, **spec: dict[str, str]) -> Path:
    """The example with other fields in some parts of the log's spec."""
    documents = list(yaml.safe_load_all(EXAMPLE.read_text(encoding="utf-8")))
    for document in documents:
        if document["kind"] == WALTZ_CLUSTERS.kind:
            for part, fields in spec.items():
                document["spec"].setdefault(part, {}).update(fields)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "waltz.yaml"
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return path


@contextlib.asynccontextmanager
async def logs(kube: KubeClient, cluster: LocalCluster) -> AsyncIterator[tuple[Waltz, Waltz]]:
    """Lend the client of the writers, and another one that compares."""
    os.environ[HOSTS_FILE_VARIABLE] = str(cluster.folder.resolve() / ".pavane" / "hosts" / NAMESPACE)
    data = (await kube.get(SECRETS, f"{NAME}-client", NAMESPACE))["data"]
    servers, *files = (base64.b64decode(data[key]).decode() for key in ("servers", "ca.crt", "tls.crt", "tls.key"))
    async with contextlib.AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(Waltz(servers.split(), tls=trusting(*files), patience=PATIENCE_S))
            for _ in range(2)
        ]
        yield first, second


async def _fail_over(kube: KubeClient, oracle: Oracle, log: Waltz) -> float:
    """Kill the owner of partition 0; return the seconds until the next append there is acknowledged."""
    await until_settled(kube)
    await oracle.more(0)
    owner = ((await log.partitions())[0].server or "").partition(".")[0]
    containers = await containers_of(kube)
    generation = (await log.partitions())[0].generation
    killed = time.monotonic()
    if not signal_container(containers[owner], signal.SIGKILL):
        raise BenchError(f"{owner} does not run")
    await kube.delete(PODS, owner, NAMESPACE)  # another pod comes at once; this one would wait longer each time
    # What was on its way may still be acknowledged: the new owner's generation tells.
    while True:
        at = await oracle.more(0)
        if (await log.partitions())[0].generation > generation:
            break
    took = at - killed
    output.note(f"{owner} killed: the next append was acknowledged after {took:.2f} s")
    return took


async def _shake(kube: KubeClient, oracle: Oracle, kills: int) -> int:
    began, stops = time.monotonic(), 0
    going_on: set[asyncio.Task[None]] = set()
    for number in range(kills):
        name, _ = await signalled(kube, signal.SIGKILL)
        await kube.delete(PODS, name, NAMESPACE)  # another pod comes at once; this one would wait longer each time
        output.note(f"kill {number + 1} ({time.monotonic() - began:.0f} s, {oracle.count} appends): {name}")
        if number % STOPS_OF_KILLS == 0:
            stopped, container = await signalled(kube, signal.SIGSTOP)
            going_on.add(asyncio.create_task(_go_on(container)))
            stops += 1
            output.note(f"stop {stops}: {stopped}")
        await asyncio.sleep(random.uniform(*PAUSE_S))
        if random.random() < HEALED:  # else the next one comes while this one may not be healed
            await asyncio.gather(*(oracle.more(partition) for partition in oracle.acknowledged))
    await asyncio.gather(*going_on)
    return stops


async def signalled(kube: KubeClient, number: int, spared: Callable[[str], bool] = lambda _: False) -> tuple[str, str]:
    """Send a signal to a process of any pod of the log or its registry that is not spared; return which."""
    while True:
        found = [each for each in (await containers_of(kube)).items() if not spared(each[0])]
        name, container = random.choice(found) if found else ("", "")
        if container and signal_container(container, number):
            return name, container
        await asyncio.sleep(POLL_S)


async def _go_on(container: str) -> None:
    await asyncio.sleep(random.uniform(*STOP_S))
    signal_container(container, signal.SIGCONT)


async def containers_of(kube: KubeClient) -> dict[str, str]:
    """Return the container of each pod of the log and its registry that has one."""
    return {
        pod["metadata"]["name"]: status["containerID"]
        for pod in (await kube.list_all(PODS)).items
        for status in (pod.get("status") or {}).get("containerStatuses") or ()
        if status.get("containerID") and pod["metadata"]["name"].startswith(VICTIMS)
    }


async def until_settled(kube: KubeClient) -> None:
    """Wait until the log has exactly the pods that it shall have, all of them ready."""
    async with asyncio.timeout(SETTLED_S):
        while True:
            document = await kube.get(WALTZ_CLUSTERS, NAME, NAMESPACE)
            if is_settled(document):
                return
            await asyncio.sleep(POLL_S)
