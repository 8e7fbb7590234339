"""``pavane up|down|ps|logs|kill|pause|unpause``: the local cluster (docs/specs/operator.md 8.1)."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from pavane_cli import output
from pavane_cli.completing import pods
from pavane_cli.failures import ExitCode, UserError, lacks
from pavane_cli.options import Namespace
from pavane_cli.target import Where, cluster, nearest_local, run
from pavane_local.folder import holder
from pavane_local.kubelet.spawn import signal_container
from pavane_operator.kube.resources import PODS

FOLDER = Path(".pavane")
LOG_NAME = "up.log"
LOG_LINES_SHOWN = 10
UP_TIMEOUT_S = 300.0
DOWN_TIMEOUT_S = 60.0  # longer than the grace period of any pod that we render
POLL_S = 0.05

OURSELVES = (sys.executable, "-P", "-m", "pavane_cli.main")
"""This program as a child; what lies in the working folder is never imported."""

Folder = Annotated[
    Path | None, typer.Option(help="Folder of the cluster; default: the nearest .pavane in this folder or above.")
]
Pod = Annotated[str, typer.Argument(metavar="POD", autocompletion=pods, help="Name of a pod; see `pavane ps`.")]


def up(
    files: Annotated[
        list[Path] | None, typer.Argument(exists=True, dir_okay=False, help="Resources to apply at start.")
    ] = None,
    image: Annotated[
        list[str] | None, typer.Option(metavar="REF=PATH", help="Run an image from another virtual environment.")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Divide the back-off of restarts by 20.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; return when everything is Ready.")
    ] = False,
    bare: Annotated[bool, typer.Option("--bare", help="Without operator and control plane.")] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds until resources that are not Ready are reported.")
    ] = UP_TIMEOUT_S,
    folder: Annotated[Path, typer.Option(help="Folder of the cluster.")] = FOLDER,
    report_to: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a local cluster until Ctrl-C, with operator, control plane and the resources of FILE…."""
    os.umask(0o077)  # keys, tokens, what users write: of nobody else's
    if detach:
        _detach(folder, timeout)
        return
    try:
        from pavane_cli.up import run_cluster  # noqa: PLC0415 - the parent of --detach needs none of it
    except ModuleNotFoundError as error:
        raise lacks(error, "local") from error

    def report(blockers: list[str], link: str | None) -> None:
        if report_to is not None:
            with os.fdopen(report_to, "w") as pipe:
                json.dump({"blockers": blockers, "link": link}, pipe)

    run_cluster(folder, _images(image or []), files or [], timeout, report, fast=fast, bare=bare)


def _images(texts: list[str]) -> dict[str, Path]:
    images = {}
    for text in texts:
        reference, _, path = text.rpartition("=")
        if not reference or not (Path(path) / "bin").is_dir():
            raise UserError(f"--image {text}: expected REF=PATH, PATH a virtual environment", ExitCode.USAGE)
        images[reference] = Path(path).absolute()
    return images


def _detach(folder: Path, timeout_s: float) -> None:
    """Start the same command in the background and wait for its report: blockers and the dashboard's link.

    It reports nothing when it ends before.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader, writer = os.pipe()
    arguments = [each for each in sys.argv[1:] if each != "--detach"]
    output.note(f"Starting; the log is {folder / LOG_NAME}.")
    process = in_background(folder, [*arguments, "--report-to", str(writer)], [writer])
    os.close(writer)
    with os.fdopen(reader) as pipe:
        report = pipe.read()
    if not report:
        code = process.wait()
        last = (folder / LOG_NAME).read_text(errors="replace").strip().splitlines()[-LOG_LINES_SHOWN:]
        raise UserError(
            "the local cluster ended:\n  " + "\n  ".join(last), ExitCode(code) if code == 2 else ExitCode.ERROR
        )
    told = json.loads(report)
    if blockers := told["blockers"]:
        text = f"not Ready after {timeout_s:g} s; the cluster keeps running in the background:\n  "
        raise UserError(text + "\n  ".join(blockers), ExitCode.TIME_OUT)
    output.say(f"All is Ready; the cluster runs in the background (pid {process.pid}).")
    output.say(f"  export KUBECONFIG={(folder / 'kubeconfig').absolute()}")
    if told["link"] is not None:
        output.say(f"The dashboard, signed in: {told['link']}")


def in_background(folder: Path, arguments: list[str], descriptors: Iterable[int] = ()) -> "subprocess.Popen[bytes]":
    """Start this program in a session of its own, with ``descriptors``; its output is the log in ``folder``."""
    with (folder / LOG_NAME).open("wb") as log:
        return subprocess.Popen(  # noqa: S603 - ourselves
            [*OURSELVES, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tuple(descriptors),
        )


def down(
    folder: Folder = None,
    purge: Annotated[bool, typer.Option("--purge", help="Delete the folder with all data.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds until it is killed.")] = DOWN_TIMEOUT_S,
) -> None:
    """Stop all pods in order, then the local cluster. Data stays, unless --purge."""
    found = _folder(folder)
    pid = holder(found)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        if not _released(found, timeout):
            os.kill(pid, signal.SIGKILL)
            _released(found, timeout)
            output.note(f"It did not stop within {timeout:g} s and was killed; its pods went with it.")
    output.say("Stopped." if pid is not None else "No local cluster runs here.")
    if purge:
        shutil.rmtree(found)
        output.say(f"Removed {found}.")


def _released(folder: Path, timeout_s: float) -> bool:
    """Wait for the end of the local cluster; False when the time is over first."""
    end = time.monotonic() + timeout_s
    while holder(folder) is not None:
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True


def ps(namespace: Namespace = "", folder: Folder = None) -> None:
    """List the pods of the local cluster, of all namespaces, with their processes and addresses."""
    run(_ps(_folder(folder), namespace or None))


async def _ps(folder: Path, namespace: str | None) -> None:
    async with cluster(Where(folder / "kubeconfig")) as client:
        pods = (await client.list_all(PODS, namespace)).items
    rows = []
    for pod in pods:
        meta, status = pod["metadata"], pod.get("status") or {}
        containers = status.get("containerStatuses") or ()
        state = next(
            (c["state"]["waiting"]["reason"] for c in containers if "waiting" in c["state"]), status.get("phase")
        )
        rows.append((
            meta["namespace"],
            meta["name"],
            f"{sum(each['ready'] for each in containers)}/{len(pod['spec']['containers'])}",
            "Terminating" if "deletionTimestamp" in meta else state,
            sum(each["restartCount"] for each in containers),
            ",".join(each["containerID"].removeprefix("process://").partition("/")[0] for each in containers),
            status.get("podIP", ""),
            output.age(meta["creationTimestamp"]),
        ))  # fmt: skip
    output.table(("NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "PID", "IP", "AGE"), rows)


def logs(
    pod: Pod,
    namespace: Namespace = "default",
    container: Annotated[str | None, typer.Option("--container", "-c", help="Default: the only one.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the container ends.")] = False,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Log of the previous run.")] = False,
    tail: Annotated[int | None, typer.Option(help="Only this many lines from the end.")] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Prefix each line with its time.")] = False,
    folder: Folder = None,
) -> None:
    """Print the log of a pod."""

    async def show() -> None:
        async with cluster(Where(_folder(folder) / "kubeconfig")) as client:
            pieces = client.pod_logs(
                pod,
                namespace,
                container=container,
                follow=follow,
                previous=previous,
                tail_lines=tail,
                timestamps=timestamps,
            )
            async for piece in pieces:
                sys.stdout.buffer.write(piece)
                sys.stdout.flush()

    run(show())


def kill(pod: Pod, namespace: Namespace = "default", folder: Folder = None) -> None:
    """Kill the processes of a pod (SIGKILL), like a crash; the restart policy applies."""
    _signal(pod, namespace, folder, signal.SIGKILL, "killed")


def pause(pod: Pod, namespace: Namespace = "default", folder: Folder = None) -> None:
    """Stop the processes of a pod (SIGSTOP), like a long pause or a lost network."""
    _signal(pod, namespace, folder, signal.SIGSTOP, "paused")


def unpause(pod: Pod, namespace: Namespace = "default", folder: Folder = None) -> None:
    """Continue the processes of a paused pod (SIGCONT)."""
    _signal(pod, namespace, folder, signal.SIGCONT, "continues")


def _signal(pod: str, namespace: str, folder: Path | None, number: signal.Signals, done: str) -> None:
    async def containers() -> list[str]:
        async with cluster(Where(_folder(folder) / "kubeconfig")) as client:
            found = await client.get(PODS, pod, namespace)
        return [each["containerID"] for each in (found.get("status") or {}).get("containerStatuses") or ()]

    if not any([signal_container(each, number) for each in run(containers())]):
        raise UserError(f"no process of pod {namespace}/{pod} runs here; see `pavane ps`", ExitCode.NOT_FOUND)
    output.say(f"pod {namespace}/{pod} {done}")


def _folder(given: Path | None) -> Path:
    found = given or ((nearest := nearest_local()) and nearest.parent)
    if found is None or not found.is_dir():
        raise UserError("no .pavane folder here or above: start a cluster with `pavane up`", ExitCode.NOT_FOUND)
    return found.absolute()
