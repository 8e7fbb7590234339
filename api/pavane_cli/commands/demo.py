"""``pavane demo``: the main job of the platform, live, with its proof."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from pavane_api.kinds import RAFT_CLUSTERS
from pavane_api.rollout.actions import ACTIONS, act
from pavane_cli import output
from pavane_cli.access import raft_client
from pavane_cli.commands.local import OURSELVES
from pavane_cli.commands.resources import read_documents
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.probe import Proof, SteadyWriter
from pavane_cli.progress import Progress
from pavane_cli.target import Where, cluster, control_plane_url, run
from pavane_local.folder import holder
from pavane_operator import kube

FOLDER = Path(".pavane")
LOG_NAME = "up.log"
START_TIMEOUT_S = 120.0
ROLL_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
WARM_UP_WRITES = 200  # acknowledged before the rollout begins, and again after it
POLL_S = 0.1


def demo(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A RaftCluster.")],
    once: Annotated[
        bool, typer.Option("--once", help="Stop after the summary instead of staying until Ctrl-C.")
    ] = False,
) -> None:
    """Start a local cluster, write to it, roll it out under the writes and show the proof; Ctrl-C stops it all."""
    os.umask(0o077)  # as `pavane up` does
    documents = read_documents([file])
    if len(documents) != 1 or documents[0].get("kind") != RAFT_CLUSTERS.kind:
        raise UserError("the demo needs a file with one RaftCluster", ExitCode.USAGE)
    proof = run(_demo(file, documents[0], once))
    if proof is not None and not proof.holds:
        raise UserError(
            "the proof failed: an acknowledged write was lost or doubled, or two generations wrote", ExitCode.ERROR
        )


async def _demo(file: Path, document: dict[str, Any], once: bool) -> Proof | None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the last one comes when the terminal goes
        if signal.getsignal(number) is not signal.SIG_IGN:  # of nohup
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with _platform(file) as up:
        show = asyncio.create_task(_show(up, document, stop, once))
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


async def _show(up: "subprocess.Popen[bytes]", document: dict[str, Any], stop: asyncio.Event, once: bool) -> Proof:
    await _until_serving(up)
    where = Where(FOLDER / "kubeconfig")
    name = document["metadata"]["name"]
    namespace = document["metadata"].get("namespace", "default")
    async with cluster(where) as client:
        output.say(f"1. Starting {name}: every pod walks Creation, Initialization, ReadOnly, ReadWrite.")
        progress = Progress(client, namespace, name, output.say)
        present = await progress.until_current(START_TIMEOUT_S)
        output.say("2. A client writes without a pause.")
        async with await raft_client(client, present, where.kubeconfig) as raft:
            writer = SteadyWriter(raft, f"demo-{time.time_ns()}")
            writer.start()
            await writer.reach(WARM_UP_WRITES)
            output.say("3. Rolling out a new generation under these writes.")
            began = time.monotonic()
            await act(client, RAFT_CLUSTERS, namespace, name, ACTIONS["restart"])
            present = await progress.until_current(ROLL_TIMEOUT_S)
            took = time.monotonic() - began
            await writer.reach(writer.acknowledged + WARM_UP_WRITES)
            await writer.stop()
            proof = await writer.proof()
    await _summary(present, proof, took, where)
    if not once:
        output.say("Ctrl-C stops everything; what was written stays in .pavane.")
        await stop.wait()
    return proof


async def _summary(document: kube.Object, proof: Proof, took_s: float, where: Where) -> None:
    status = document["status"]
    gap = next((item.get("writeGapMs") for item in status.get("history") or ()), None)
    output.say("")
    output.say(f"Generation {status['activeGeneration']} leads; the rollout took {took_s:.1f} s.")
    output.table(
        ("WRITES ACKNOWLEDGED", "LOST", "DOUBLED", "UNFENCED", "LONGEST GAP", "GAP SEEN BY THE PODS"),
        [
            (
                proof.acknowledged,
                proof.lost,
                proof.doubled,
                proof.unfenced,
                f"{proof.longest_gap_s * 1000:.0f} ms",
                "unknown" if gap is None else f"{gap} ms",
            )
        ],
    )
    url = await control_plane_url(where)
    output.say("")
    output.say(f"REST API    {url}/docs")
    output.say(f"Kubeconfig  {where.kubeconfig}")
    output.say("Traces      pavane trace list")
    output.say("Resource    pavane tree raft/" + document["metadata"]["name"])
