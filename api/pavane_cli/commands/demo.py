"""``pavane demo``: the main job of the platform, live, with its proof."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from pavane.runtime.names import HOSTS_FILE_VARIABLE
from pavane_api.kinds import RAFT_CLUSTERS, SWIM_GROUPS, WALTZ_CLUSTERS
from pavane_api.rollout.actions import ACTIONS, act
from pavane_cli import output
from pavane_cli.commands.local import OURSELVES
from pavane_cli.commands.resources import changes, read_documents
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.loads import Load, Outcome, load_of
from pavane_cli.progress import Progress
from pavane_cli.target import Where, cluster, control_plane_url, run
from pavane_local.folder import holder
from pavane_local.kubelet.spawn import signal_container
from pavane_operator import kube
from pavane_operator.crds.definitions import definition_of
from pavane_operator.kube.resources import PODS

FOLDER = Path(".pavane")
LOG_NAME = "up.log"
START_TIMEOUT_S = 180.0
ROLL_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.1
SHOWN = (RAFT_CLUSTERS, SWIM_GROUPS, WALTZ_CLUSTERS)


def demo(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="RaftClusters, SwimGroups and WaltzClusters.")
    ],
    once: Annotated[
        bool, typer.Option("--once", help="Stop after the summary instead of staying until Ctrl-C.")
    ] = False,
) -> None:
    """Start a local cluster, use it while everything is killed and rolled out, and show the proof. Ctrl-C stops it."""
    os.umask(0o077)  # as `pavane up` does
    shown = _Demo(read_documents([file]))
    if run(_demo(file, shown, once)) is False:
        raise UserError(
            "the proof failed: something acknowledged was lost or doubled, or two generations wrote", ExitCode.ERROR
        )


async def _demo(file: Path, demo: "_Demo", once: bool) -> bool | None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the last one comes when the terminal goes
        if signal.getsignal(number) is not signal.SIG_IGN:  # of nohup
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with _platform(file) as up:
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
    return None if show.cancelled() else show.result()


@contextlib.contextmanager
def _platform(file: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run ``pavane up`` as a child of its own session, so that Ctrl-C reaches only us and it stops in order."""
    FOLDER.mkdir(exist_ok=True)
    pid = holder(FOLDER)
    if pid is not None:
        raise UserError(f"a local cluster runs in {FOLDER} already (pid {pid}); stop it with `pavane down`")
    with (FOLDER / LOG_NAME).open("wb") as log:
        up = subprocess.Popen(  # noqa: S603 - ourselves
            [*OURSELVES, "up", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
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
    """Wait until the API server of the child answers; raises ``UserError`` with its last words when it ends."""
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
    await _summary(demo, where)
    if not once:
        output.say("Ctrl-C stops everything; what was written stays in .pavane.")
        await stop.wait()
    return holds


@dataclass(slots=True)
class _Shown:
    """A resource of the demo, and what its client saw."""

    type: kube.Resource
    name: str
    load: Load | None = None
    rolled_s: float = 0.0
    gap_s: float = 0.0
    document: kube.Object = field(default_factory=dict)

    @property
    def reference(self) -> str:
        return f"{definition_of(self.type.kind).short}/{self.name}"


class _Demo:
    """Starts the resources of a file, uses them all at once, kills one pod of each and rolls each out."""

    def __init__(self, documents: list[dict[str, Any]]) -> None:
        self.namespace = documents[0]["metadata"].get("namespace", "default")
        known = {resource.kind: resource for resource in SHOWN}
        self.shown: list[_Shown] = []
        self.outcomes: list[Outcome] = []
        for document in documents:
            metadata = document.get("metadata") or {}
            if document.get("kind") not in known or metadata.get("namespace", "default") != self.namespace:
                kinds = ", ".join(known)
                raise UserError(f"the demo needs a file with resources of one namespace: {kinds}", ExitCode.USAGE)
            self.shown.append(_Shown(known[document["kind"]], metadata["name"]))

    async def run(self, client: kube.KubeClient, where: Where) -> bool:
        """Show all of it; returns whether every proof holds."""
        # Its hosts file stands in for the DNS of a cluster.
        os.environ[HOSTS_FILE_VARIABLE] = str((FOLDER / "hosts" / self.namespace).absolute())
        output.say("1. Starting: every pod walks Creation, Initialization, ReadOnly, ReadWrite.")
        began = time.monotonic()
        await asyncio.gather(*(self._until_current(client, each, START_TIMEOUT_S) for each in self.shown))
        output.say(f"   All is Ready after {time.monotonic() - began:.1f} s.")
        async with contextlib.AsyncExitStack() as loads:
            output.say("2. Clients use all of it without a pause.")
            for each in self.shown:
                load = load_of(client, each.type, each.document, where)
                each.load = await loads.enter_async_context(load)
            await self._go_on()
            for number, each in enumerate(self.shown, 3):
                await self._roll_out(client, number, each)
            self.outcomes = [await each.load.stop() for each in self.shown if each.load is not None]
        return all(outcome.holds for outcome in self.outcomes)

    async def _go_on(self) -> None:
        await asyncio.gather(*(each.load.go_on() for each in self.shown if each.load is not None))

    async def _roll_out(self, client: kube.KubeClient, number: int, shown: _Shown) -> None:
        killed = await self._kill(client, shown)
        output.say(f"{number}. {shown.reference}: pod {killed} was killed (SIGKILL) and comes back.")
        await self._until_current(client, shown, ROLL_TIMEOUT_S)
        await self._go_on()
        output.say(f"   Now a new generation of {shown.reference}, under the same clients.")
        began = time.monotonic()
        await act(client, shown.type, self.namespace, shown.name, ACTIONS["restart"])
        await self._until_current(client, shown, ROLL_TIMEOUT_S)
        ended = time.monotonic()
        await self._go_on()
        shown.rolled_s = ended - began
        shown.gap_s = shown.load.longest_gap_s(began, ended) if shown.load else 0.0

    async def _kill(self, client: kube.KubeClient, shown: _Shown) -> str:
        """Kill one pod as a crash would, and return its name once it is down."""
        labels = f"app.kubernetes.io/instance={shown.name}"
        pods = (await client.list_all(PODS, self.namespace, labels=labels)).items
        pod = random.choice(pods)  # noqa: S311 - which one does not matter
        name = str(pod["metadata"]["name"])
        for container in pod["status"]["containerStatuses"]:
            signal_container(container["containerID"], signal.SIGKILL)
        restarts = sum(each["restartCount"] for each in pod["status"]["containerStatuses"])
        async for change in changes(client, PODS, self.namespace, name):
            statuses = (change.object.get("status") or {}).get("containerStatuses") or ()
            if sum(each["restartCount"] for each in statuses) > restarts or change.type == "DELETED":
                break
        return name

    async def _until_current(self, client: kube.KubeClient, shown: _Shown, timeout_s: float) -> None:
        progress = Progress(client, shown.type, self.namespace, shown.name, output.say)
        try:
            shown.document = await progress.until_current(timeout_s)
        except TimeoutError as error:
            why = f"`pavane why {shown.reference}` says what it waits for"
            raise UserError(
                f"{shown.reference} is not Ready after {timeout_s:g} s: {why}", ExitCode.TIME_OUT
            ) from error


async def _summary(demo: _Demo, where: Where) -> None:
    output.say("")
    output.table(
        ("RESOURCE", "CLIENTS DID", "LOST", "DOUBLED", "ROLLED OUT IN", "LONGEST PAUSE"),
        [
            (
                shown.reference,
                f"{outcome.done} {shown.load.what if shown.load else ''}",
                outcome.lost,
                outcome.doubled,
                f"{shown.rolled_s:.1f} s",
                f"{shown.gap_s * 1000:.0f} ms",
            )
            for shown, outcome in zip(demo.shown, demo.outcomes, strict=True)
        ],
    )
    for shown, outcome in zip(demo.shown, demo.outcomes, strict=True):
        output.say(f"{shown.reference}: {outcome.said}")
    url = await control_plane_url(where)
    output.say("")
    output.say("Dashboard   pavane dashboard")
    output.say(f"REST API    {url}/docs")
    output.say(f"Kubeconfig  {where.kubeconfig}")
    output.say("Traces      pavane trace list")
    output.say(f"Resource    pavane tree {demo.shown[0].reference}")
