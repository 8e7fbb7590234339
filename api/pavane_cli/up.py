"""The process of ``pavane up``: a local cluster, what the user applied to it, progress, readiness (operator.md 8.1)."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pavane_cli import output, preflight
from pavane_cli.commands.resources import BACKUP, COORDINATOR, MANAGER, is_current, read_documents, summary
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.live import LiveView
from pavane_cli.target import Where, kubeconfig_token, signing_in
from pavane_local.api.cluster import Cluster, WriteOptions
from pavane_local.api.errors import ApiError
from pavane_local.controllers.loop import changes, is_ready, name_of
from pavane_local.folder import FolderInUse, holder
from pavane_local.kubelet.addresses import AddressesExhausted
from pavane_local.platform import SYSTEM, LocalCluster, LocalSettings, local_cluster
from pavane_local.store import StoreVersionError

OUR_GROUP = "pavane.dev"
API_PORT = 8000
"""Of the control plane, in the local cluster too."""

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The last one comes when the terminal goes."""

Place = tuple[str, str, str]
"""Resource (``plural`` or ``plural.group``), namespace, name."""


Report = Callable[[list[str], str | None], None]
"""Called once, with what is not Ready after the time-out (nothing if all is), and the dashboard's link."""


def run_cluster(
    folder: Path,
    images: dict[str, Path],
    files: list[Path],
    timeout_s: float,
    report: Report,
    *,
    fast: bool,
    bare: bool,
) -> None:
    """Run a local cluster with the resources of ``files`` until it is told to stop; the options are those of ``up``.

    Raises ``UserError`` for a folder that is in use or not ours, and for a document that is refused.
    """
    settings = LocalSettings(folder, images, fast=fast, platform_pods=not bare)
    documents = read_documents(files) if files else []
    if holder(folder) is None:
        preflight.check(folder, documents, bare=bare)
    failed: BaseException | None = None
    try:
        asyncio.run(_serve(settings, documents, _say, timeout_s, report))
    except* (FolderInUse, AddressesExhausted, StoreVersionError, UserError, ApiError, OSError) as errors:
        failed = errors
    # Outside of the clause, from which an error would come as a group.
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    if failed is not None:
        raise UserError(str(failed), getattr(failed, "code", ExitCode.ERROR))


def _say(text: str) -> None:
    """Print one line; a log on a full disk loses it, and nothing else happens."""
    with contextlib.suppress(OSError):
        output.say(text)


async def _serve(
    settings: LocalSettings,
    documents: list[dict[str, Any]],
    say: Callable[[str], None],
    timeout_s: float,
    report: Report,
) -> None:
    """Run a local cluster until SIGINT, SIGTERM or SIGHUP; a second one ends it at once, and its pods with it.

    ``report`` is called when all is Ready, or after ``timeout_s``; the cluster stays in both cases.
    Raises UserError when a document is refused.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(ExitCode.INTERRUPTED)  # the parent-death signal takes the pods along
        stop.set()

    for number in END_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # of nohup
            loop.add_signal_handler(number, on_signal)
    async with local_cluster(settings) as local:
        _greet(local, say)
        former = _current(local.cluster)
        places = [await _apply(local.cluster, document) for document in documents]
        if settings.platform_pods:
            places += [("pods", SYSTEM, name) for name in ("pavane-operator", "pavane-api")]
            places += former - {*places}
        async with asyncio.TaskGroup() as group:
            view = LiveView(sys.stdout)
            follower = group.create_task(_show_progress(local.cluster, say, view))
            waiter = group.create_task(_report_readiness(local, places, timeout_s, say, report, view))
            await stop.wait()
            waiter.cancel()
            follower.cancel()  # that pods are no longer ready would be told of each
            say("Stopping all pods …")
            await local.kubelet.stop(SYSTEM)
    say("Stopped; everything that was written stays in " + str(local.folder))


def _greet(local: LocalCluster, say: Callable[[str], None]) -> None:
    say(f"The local cluster is up (pid {os.getpid()}). For kubectl and names in the cluster:")
    say(f"  export KUBECONFIG={local.kubeconfig}")
    say(f"  export PAVANE_HOSTS_FILE={local.folder / 'hosts' / 'default'}")


def _current(cluster: Cluster) -> set[Place]:
    """Return what was Ready when the cluster was stopped: nobody waits for other resources, or for what goes."""
    kinds = [each for each in cluster.registry.values() if each.group == OUR_GROUP and each.kind != BACKUP]
    found = [(kind, each) for kind in kinds for each in cluster.list(kind.key)]
    stay = [(kind, each) for kind, each in found if "deletionTimestamp" not in each["metadata"]]
    return {(kind.key, *name_of(each)) for kind, each in stay if is_current(each)}


async def _apply(cluster: Cluster, document: dict[str, Any]) -> Place:
    wanted = (document.get("apiVersion"), document.get("kind"))
    resource = next((each for each in cluster.registry.values() if (each.api_version, each.kind) == wanted), None)
    if resource is None:
        raise UserError(f"unknown kind {wanted[1]} in {wanted[0]}; see docs/limitations.md", ExitCode.USAGE)
    metadata = {"namespace": "default", **document["metadata"]} if resource.namespaced else document["metadata"]
    body = {**document, "metadata": metadata}
    try:
        await cluster.apply(resource.key, body, WriteOptions(manager=MANAGER, strict=True))
    except ApiError as error:
        raise UserError(f"{wanted[1]} {metadata['name']}: {error.message}") from error
    return (resource.key, *name_of(body))


async def _report_readiness(
    local: LocalCluster,
    places: list[Place],
    timeout_s: float,
    say: Callable[[str], None],
    report: Report,
    view: LiveView,
) -> None:
    """Report once all is Ready, or after ``timeout_s``; until then ``view`` is open."""
    cluster, changed = local.cluster, asyncio.Event()

    async def follow(resource: str) -> None:
        async for _ in changes(cluster, resource):
            changed.set()

    with view:
        async with asyncio.TaskGroup() as group:
            followers = [group.create_task(follow(each)) for each in {"pods", *(place[0] for place in places)}]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while blockers(cluster, places):
                        changed.clear()
                        await changed.wait()
            for each in followers:
                each.cancel()
    waits = blockers(cluster, places)
    say("All is Ready." if not waits else f"Not Ready after {timeout_s:g} s: " + "; ".join(waits))
    link = dashboard_link(local)
    if link is not None:
        say(f"The dashboard, signed in: {link}")
    report(waits, link)


def dashboard_link(local: LocalCluster) -> str | None:
    """Return the link that opens the dashboard of this cluster; None while its control plane is not ready."""
    pod = local.cluster.find("pods", SYSTEM, "pavane-api")
    if pod is None or not is_ready(pod):
        return None
    host = pod["status"]["podIP"]
    address = f"http://[{host}]:{API_PORT}" if ":" in host else f"http://{host}:{API_PORT}"
    return signing_in(address, kubeconfig_token(Where(local.kubeconfig)))


def blockers(cluster: Cluster, places: list[Place]) -> list[str]:
    """Say of each object that is not Ready what it waits for; kinds without readiness count as Ready.

    After a restart the status of an object may be of its former life, so its pods are looked at as well. Of a
    Coordinator the pod that leads is ready, and the others wait.
    """
    waits = []
    for place in places:
        found = cluster.find(*place)
        if found is None:
            waits.append(f"{place[0]} {place[2]} is gone")
        elif place[0] == "pods":
            waits += [] if is_ready(found) else [_pod_line(found)]
        elif place[0].endswith(f".{OUR_GROUP}"):
            pods = _pods(cluster, place[1], {"app.kubernetes.io/instance": place[2]})
            unready = [_pod_line(pod) for pod in pods if not is_ready(pod)]
            leads = found["kind"] == COORDINATOR and len(unready) < len(pods)
            waits += [f"{found['kind']} {summary(found)}"] if not is_current(found) else [] if leads else unready
        elif place[0] == "statefulsets.apps":
            pods = _pods(cluster, place[1], found["spec"]["selector"]["matchLabels"])
            ready = sum(is_ready(pod) for pod in pods)
            if ready != found["spec"]["replicas"]:
                unready = [_pod_line(pod) for pod in pods if not is_ready(pod)]
                text = f"StatefulSet {place[2]}: {ready} of {found['spec']['replicas']} pods are ready"
                waits.append("; ".join([text, *unready]))
    return waits


def _pods(cluster: Cluster, namespace: str, labels: dict[str, str]) -> list[dict[str, Any]]:
    return cluster.list("pods", namespace, labels=",".join(f"{key}={value}" for key, value in labels.items()))


async def _show_progress(cluster: Cluster, say: Callable[[str], None], view: LiveView) -> None:
    """Print a line whenever what a user can see of a pod or of a resource of ours changes.

    While ``view`` draws on a terminal it shows the resources instead.
    """

    async def follow(resource: str, line_of: Callable[[dict[str, Any]], str]) -> None:
        last: dict[str, str] = {}
        async for kind, found in changes(cluster, resource):
            if view.in_place and resource != "pods":
                view.update(found, "")
                continue
            uid, line = found["metadata"]["uid"], line_of(found)
            line = f"{line.split(':')[0]}: gone" if kind == "DELETED" else line
            if last.get(uid) != line:
                last[uid] = line
                say(line)

    async with asyncio.TaskGroup() as group:
        group.create_task(follow("pods", _pod_line))
        for resource in cluster.registry.values():
            if resource.group == OUR_GROUP:
                group.create_task(follow(resource.key, lambda found: f"{found['kind']} {summary(found)}"))


def _pod_line(pod: dict[str, Any]) -> str:
    status = pod.get("status", {})
    states = [each["state"] for each in status.get("containerStatuses") or ()]
    state = next((each["waiting"]["reason"] for each in states if "waiting" in each), status.get("phase", "Pending"))
    if "deletionTimestamp" in pod["metadata"]:
        state = "Terminating"
    elif is_ready(pod):
        state = "Ready"
    return f"Pod {'/'.join(name_of(pod))}: {state}"
