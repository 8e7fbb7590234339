"""``pavane demo``: the main job of the platform, live, with its proof."""

import asyncio
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
import yaml

from pavane.runtime.names import HOSTS_FILE_VARIABLE
from pavane_api.kinds import COMPUTE_CLUSTERS, COORDINATORS, RAFT_CLUSTERS, SWIM_GROUPS, WALTZ_CLUSTERS
from pavane_api.rollout.actions import ACTIONS, act
from pavane_cli import output, preflight
from pavane_cli.bank import BankLoad, ViewLoad
from pavane_cli.commands.local import FOLDER, LOG_NAME, in_background
from pavane_cli.commands.resources import changes, read_documents
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.live import LiveView
from pavane_cli.loads import Load, Outcome, RaftLoad, SwimLoad
from pavane_cli.progress import Progress
from pavane_cli.target import Where, cluster, control_plane_url, run
from pavane_local.folder import holder
from pavane_local.kubelet.spawn import signal_container
from pavane_operator import kube
from pavane_operator.crds.definitions import definition_of
from pavane_operator.kube.resources import CONFIG_MAPS, PODS

FILE_NAME = "demo.yaml"
MEMORY = Path("/proc/meminfo")
START_TIMEOUT_S = 180.0
ROLL_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.1
WHAT = {
    RAFT_CLUSTERS: "writes",
    SWIM_GROUPS: "lookups",
    WALTZ_CLUSTERS: "bookings",
    COORDINATORS: "transfers",
    COMPUTE_CLUSTERS: "ticks",
}
"""What clients do with each kind, as in "100 transfers"."""
BANK = (COORDINATORS, WALTZ_CLUSTERS, COMPUTE_CLUSTERS)
BANK_NEEDED = "a bank is two Coordinators or more, one WaltzCluster, and ComputeClusters, as in examples/platform.yaml"
VIEWS_MEMORY_MIB = 4096
"""Free memory below which no views are started."""


def demo(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, help="RaftClusters, SwimGroups, a bank as in examples/platform.yaml."
        ),
    ],
    once: Annotated[
        bool,
        typer.Option("--once", help="Stop after the summary, as without a terminal, instead of staying until Ctrl-C."),
    ] = False,
) -> None:
    """Start a local cluster, use it while everything is killed and rolled out, and show the proof. Ctrl-C stops it."""
    os.umask(0o077)  # as `pavane up` does
    documents = without_views(read_documents([file]), _free_memory_mib())
    once = once or not _at_a_terminal()
    if run(_demo(documents, _Demo(documents), once)) is False:
        raise UserError("the proof failed: see the table above", ExitCode.ERROR)


def _at_a_terminal() -> bool:
    """Return whether somebody is there who could press Ctrl-C; standard input is None where it is closed."""
    return sys.stdin is not None and sys.stdin.isatty()


def without_views(documents: list[kube.Object], free_mib: int) -> list[kube.Object]:
    """Return the resources to start; with too little free memory no ComputeCluster, and print that."""
    kept = [each for each in documents if each.get("kind") != COMPUTE_CLUSTERS.kind]
    if free_mib >= VIEWS_MEMORY_MIB or len(kept) == len(documents):
        return documents
    output.say(f"Without SQL views: {free_mib} MiB of memory are free, and {VIEWS_MEMORY_MIB} MiB are wanted for them.")
    return kept


def _free_memory_mib() -> int:
    found = re.search(r"^MemAvailable: +(\d+) kB$", MEMORY.read_text(), re.MULTILINE) if MEMORY.exists() else None
    return int(found[1]) // 1024 if found else VIEWS_MEMORY_MIB


async def _demo(documents: list[kube.Object], demo: "_Demo", once: bool) -> bool | None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the last one comes when the terminal goes
        if signal.getsignal(number) is not signal.SIG_IGN:  # of nohup
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with _platform(documents) as up:
        show = asyncio.create_task(_show(up, demo, stop, once))
        stopping = asyncio.create_task(stop.wait())
        ended = asyncio.create_task(asyncio.to_thread(up.wait))
        await asyncio.wait({show, stopping, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not show.done():
            show.cancel()
            await asyncio.wait({show})
        if ended.done():
            raise _ended(up)
        stopping.cancel()
        output.note("Stopping …")
        up.terminate()
        await ended
        output.say(f"Stopped; what was written stays in {FOLDER}.")
    return None if show.cancelled() else show.result()


@contextlib.contextmanager
def _platform(documents: list[kube.Object]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run ``pavane up`` as a child of its own session, so that Ctrl-C reaches only us and it stops in order."""
    pid = holder(FOLDER)
    if pid is not None:
        raise UserError(f"a local cluster runs in {FOLDER} already (pid {pid}); stop it with `pavane down`")
    preflight.check(FOLDER, documents)  # the child does, too, seconds later
    output.say(f"The local cluster starts; its log is {FOLDER / LOG_NAME}.")
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / FILE_NAME
    file.write_text(yaml.safe_dump_all(documents, sort_keys=False))
    up = in_background(FOLDER, ["up", str(file)])
    try:
        yield up
    finally:
        up.terminate()
        try:
            up.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            up.kill()
            up.wait()


def _ended(up: "subprocess.Popen[bytes]") -> UserError:
    words = (FOLDER / LOG_NAME).read_text(errors="replace").strip().splitlines()
    return UserError("`pavane up` ended: " + (words[-1] if words else f"exit code {up.returncode}"))


async def _until_serving(up: "subprocess.Popen[bytes]") -> None:
    """Wait until the API server of the child answers; raises ``UserError`` with its last output if it ends."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if up.poll() is not None:
            raise _ended(up)
        with contextlib.suppress(UserError):
            async with cluster(Where(FOLDER / "kubeconfig")) as client:
                await client.raw("GET", "/version")
                return
        await asyncio.sleep(POLL_S)
    raise UserError("the local cluster does not answer; see .pavane/up.log", ExitCode.TIME_OUT)


async def _show(up: "subprocess.Popen[bytes]", demo: "_Demo", stop: asyncio.Event, once: bool) -> bool:
    await _until_serving(up)
    where = Where(FOLDER / "kubeconfig")
    async with cluster(where) as client:
        holds = await demo.run(client, where)
    await _summary(demo)
    if not once:
        await _places(demo, where)
        output.say(f"Ctrl-C stops everything; what was written stays in {FOLDER}.")
        await stop.wait()
    return holds


@dataclass(slots=True)
class _Shown:
    """A resource of the demo, or all Coordinators together, and what its client saw."""

    type: kube.Resource
    names: list[str]
    documents: list[kube.Object] = field(default_factory=list)
    load: Load | None = None
    rolled_s: float = 0.0
    killed_gap_s: float = 0.0
    """The longest pause from the kill of a pod until clients have gone on."""
    rolled_gap_s: float = 0.0
    """The longest one of the rollout."""

    @property
    def reference(self) -> str:
        return f"{definition_of(self.type.kind).short}/{','.join(self.names)}"


class _Demo:
    """Starts the resources of a file, uses them all at once, kills a pod of each and rolls each out."""

    def __init__(self, documents: list[kube.Object]) -> None:
        self.namespace = documents[0]["metadata"].get("namespace", "default")
        self.shown: list[_Shown] = []
        self.outcomes: dict[Load, Outcome] = {}
        known = {resource.kind: resource for resource in WHAT}
        for document in documents:
            metadata = document.get("metadata") or {}
            if document.get("kind") == CONFIG_MAPS.kind:
                continue
            if document.get("kind") not in known or metadata.get("namespace", "default") != self.namespace:
                kinds = ", ".join(known)
                raise UserError(f"the demo needs a file with resources of one namespace: {kinds}", ExitCode.USAGE)
            resource = known[document["kind"]]
            together = [each for each in self._of(COORDINATORS) if resource == COORDINATORS]
            for each in together:
                each.names.append(metadata["name"])
            if not together:
                self.shown.append(_Shown(resource, [metadata["name"]]))
        accounts = [name for each in self._of(COORDINATORS) for name in each.names]
        logs = self._of(WALTZ_CLUSTERS)
        if self._of(*BANK) and (len(accounts) < 2 or len(logs) != 1):
            raise UserError(BANK_NEEDED, ExitCode.USAGE)

    def _of(self, *types: kube.Resource) -> list[_Shown]:
        return [each for each in self.shown if each.type in types]

    async def run(self, client: kube.KubeClient, where: Where) -> bool:
        """Show all of it; returns whether every proof holds."""
        # Its hosts file stands in for the DNS of a cluster.
        os.environ[HOSTS_FILE_VARIABLE] = str((FOLDER / "hosts" / self.namespace).absolute())
        output.say("1. Starting: every pod walks Creation, Initialization, ReadOnly, ReadWrite.")
        began = time.monotonic()
        with LiveView(sys.stdout) as view:
            await asyncio.gather(*(self._until_current(client, each, START_TIMEOUT_S, view) for each in self.shown))
        output.say(f"   All is Ready after {time.monotonic() - began:.1f} s.")
        async with contextlib.AsyncExitStack() as loads:
            output.say("2. Clients use all of it without a pause.")
            for load in self._loads(client, where):
                await loads.enter_async_context(load)
            await self._go_on()
            for number, each in enumerate(self.shown, 3):
                await self._roll_out(client, number, each)
            for load in self._used:
                self.outcomes[load] = await load.stop()
        return all(outcome.holds for outcome in self.outcomes.values())

    def _loads(self, client: kube.KubeClient, where: Where) -> list[Load]:
        """Make the clients, in the order in which they begin and stop."""
        for each in self.shown:
            if each.type == RAFT_CLUSTERS:
                each.load = RaftLoad(client, each.documents[0], where)
            elif each.type == SWIM_GROUPS:
                each.load = SwimLoad(client, each.documents[0])
        if bank := self._of(COORDINATORS, WALTZ_CLUSTERS):
            (log,) = self._of(WALTZ_CLUSTERS)
            transfers = BankLoad(client, self._of(COORDINATORS)[0].documents, log.documents[0], where)
            for each in bank:
                each.load = transfers
            for each in self._of(COMPUTE_CLUSTERS):
                each.load = ViewLoad(client, each.documents[0], transfers)
        return self._used

    @property
    def _used(self) -> list[Load]:
        """All clients, those of the views last: they are compared with the log at its end."""
        views = self._of(COMPUTE_CLUSTERS)
        ordered = [each for each in self.shown if each not in views] + views
        return list(dict.fromkeys(each.load for each in ordered if each.load is not None))

    async def _go_on(self) -> None:
        await asyncio.gather(*(load.go_on() for load in self._used))

    async def _roll_out(self, client: kube.KubeClient, number: int, shown: _Shown) -> None:
        began = time.monotonic()
        killed = await self._kill(client, shown)
        output.say(f"{number}. {shown.reference}: pod {killed} is killed (SIGKILL).")
        await self._watched(client, shown)
        await self._go_on()
        shown.killed_gap_s = self._pause_s(shown, began)
        output.say(f"   Now a new generation of {shown.reference}, under the same clients.")
        began = time.monotonic()
        for name in shown.names:
            await act(client, shown.type, self.namespace, name, ACTIONS["restart"])
        await self._watched(client, shown)
        shown.rolled_s = time.monotonic() - began
        await self._go_on()
        shown.rolled_gap_s = self._pause_s(shown, began)

    async def _watched(self, client: kube.KubeClient, shown: _Shown) -> None:
        """Show how it becomes current, and say how that ended."""
        with LiveView(sys.stdout) as view:
            await self._until_current(client, shown, ROLL_TIMEOUT_S, view)
        for document in shown.documents:
            output.say(f"   {document['metadata']['name']}: {view.closing(document)}")

    @staticmethod
    def _pause_s(shown: _Shown, since: float) -> float:
        return shown.load.longest_gap_s(since, time.monotonic()) if shown.load is not None else 0.0

    async def _kill(self, client: kube.KubeClient, shown: _Shown) -> str:
        """Kill one pod as a crash would, and return its name once it is down."""
        labels = f"app.kubernetes.io/instance={random.choice(shown.names)}"  # noqa: S311
        pods = (await client.list_all(PODS, self.namespace, labels=labels)).items
        pod = random.choice(pods)  # noqa: S311 - which one does not matter
        name = str(pod["metadata"]["name"])
        for container in pod["status"]["containerStatuses"]:
            signal_container(container["containerID"], signal.SIGKILL)
        restarts = sum(each["restartCount"] for each in pod["status"]["containerStatuses"])
        async with changes(client, PODS, self.namespace, name) as seen:
            async for change in seen:
                statuses = (change.object.get("status") or {}).get("containerStatuses") or ()
                if sum(each["restartCount"] for each in statuses) > restarts or change.type == "DELETED":
                    break
        return name

    async def _until_current(self, client: kube.KubeClient, shown: _Shown, timeout_s: float, view: LiveView) -> None:
        waiting = (self._one_current(client, shown.type, name, timeout_s, view) for name in shown.names)
        shown.documents = await asyncio.gather(*waiting)

    async def _one_current(
        self, client: kube.KubeClient, resource: kube.Resource, name: str, timeout_s: float, view: LiveView
    ) -> kube.Object:
        progress = Progress(client, resource, self.namespace, name, output.say, view)
        try:
            return await progress.until_current(timeout_s)
        except TimeoutError as error:
            reference = f"{definition_of(resource.kind).short}/{name}"
            text = f"{reference} is not Ready after {timeout_s:g} s: `pavane why {reference}` says what it waits for"
            raise UserError(text, ExitCode.TIME_OUT) from error


async def _summary(demo: _Demo) -> None:
    output.say("")
    proved = [(shown, demo.outcomes[shown.load]) for shown in demo.shown if shown.load is not None]
    output.table(
        ("RESOURCE", "CLIENTS DID", "LOST", "DOUBLED", "ROLLOUT", "PAUSE", "KILLED"),
        [
            (
                shown.reference,
                f"{outcome.done} {WHAT[shown.type]}",
                outcome.lost,
                outcome.doubled,
                f"{shown.rolled_s:.1f} s",
                f"{shown.rolled_gap_s:.2f} s",
                f"{shown.killed_gap_s:.2f} s",
            )
            for shown, outcome in proved
        ],
    )
    output.say("")
    output.paragraph(
        "PAUSE is the longest time in which clients got nothing done in the rollout, KILLED that after the kill."
    )
    output.say("")
    for load, outcome in demo.outcomes.items():
        names = " ".join(shown.reference for shown, _ in proved if shown.load is load)
        output.paragraph(f"{names}: {outcome.said}")
    output.say("")
    holds = all(outcome.holds for outcome in demo.outcomes.values())
    output.say("PROVED: nothing was lost, nothing doubled." if holds else "THE PROOF FAILED.")


async def _places(demo: _Demo, where: Where) -> None:
    """Print where to look at what runs."""
    url = await control_plane_url(where)
    output.say("")
    program = output.program()
    output.say(f"Dashboard   {program} dashboard")
    output.say(f"REST API    {url}/docs")
    output.say(f"Kubeconfig  {where.kubeconfig}")
    output.say(f"Traces      {program} trace list")
    output.say(f"Resource    {program} tree {demo.shown[0].reference}")
