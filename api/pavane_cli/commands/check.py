"""``pavane check``: whether a cluster is fit for Pavane, and Pavane well there (docs/specs/operator.md 8.1)."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import typer

from pavane_cli import output
from pavane_cli.commands.resources import Everywhere, condition
from pavane_cli.commands.why import explain, waits
from pavane_cli.failures import ExitCode
from pavane_cli.gathering import Place, in_place
from pavane_cli.output import Format, Output
from pavane_cli.target import PLATFORM_NAMESPACE, RESOURCES, Where, cluster, run, stopped
from pavane_operator import kube
from pavane_operator.crds.definitions import definitions
from pavane_operator.kube.resources import CONFIG_MAPS, CONTROLLER_REVISIONS, CORE_EVENTS, CRDS, PODS, SECRETS
from pavane_operator.runtime.definitions import lacking

OLDEST_SERVER = (1, 29)
"""As `kubeVersion` of the charts: the oldest release whose API has all that we use."""
NEWEST_SERVER = (1, 34)
"""The newest release that the contract tests have run against."""
OPERATOR, CONTROL_PLANE = "operator", "api"
COMPONENT_LABEL = "app.kubernetes.io/component"
PLATFORM_LABELS = f"app.kubernetes.io/part-of=pavane,{COMPONENT_LABEL} in ({OPERATOR},{CONTROL_PLANE})"
"""Of the pods of operator and control plane, from the chart and on a local cluster."""
ENDED = ("Succeeded", "Failed")
READ, CHANGE = ("get", "list", "watch"), ("create", "patch", "delete")
REFERRING = {"secretKeyRef": SECRETS, "secretRef": SECRETS, "configMapKeyRef": CONFIG_MAPS}
"""Fields of a spec that name an object of its namespace, and mostly a key in it."""


class Result(StrEnum):
    """How a check ended."""

    OK = "ok"
    PROBLEM = "problem"
    UNKNOWN = "unknown"
    """The user may not look, or nobody has tried it; no reason for exit code 1."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer."""

    check: str
    result: Result
    message: str
    """What was found, and of a problem what to do next."""


class Reference(NamedTuple):
    """An object that a spec names: by which field, and which key of its data is needed, if any."""

    field: str
    resource: kube.Resource
    name: str
    key: str | None = None


@in_place
def check(place: Place, everywhere: Everywhere = False, form: Output = Format.TABLE) -> None:
    """Check server, definitions, your permissions, operator and resources. Exit code 1 if there is a problem."""
    findings = run(_check(place, None if everywhere else place.namespace))
    if form.structured:
        output.structured([{**asdict(each), "result": each.result.value} for each in findings], form)
    elif form is Format.NAME:
        for each in findings:
            output.say(f"{each.result}: {each.check}")
    else:
        output.table(("CHECK", "RESULT", "MESSAGE"), [(each.check, each.result, each.message) for each in findings])
    if any(each.result is Result.PROBLEM for each in findings):
        raise typer.Exit(ExitCode.ERROR)


async def _check(where: Where, namespace: str | None) -> list[Finding]:
    if (told := stopped(where)) is not None:
        raise told
    async with cluster(where) as client:
        return [finding async for finding in examine(client, namespace)]


async def examine(client: kube.KubeClient, namespace: str | None) -> AsyncIterator[Finding]:
    """Yield all findings about a cluster and the resources of ``namespace`` (None: of all); raises nothing.

    Without an answer of the server, or when it does not know the user, that is the only finding.
    """
    try:
        version = await client.raw("GET", "/version")
        await client.own_access_review("get", PODS, namespace=namespace)
    except kube.KubeError as error:
        hint = "log in again, or renew the kubeconfig" if isinstance(error, kube.Unauthorized) else "see the kubeconfig"
        yield Finding("server", Result.PROBLEM, f"{client.server}: {error.message}; {hint}")
        return
    yield server_finding(client.server, str(version.get("gitVersion", "")))
    for name, part in (
        ("definitions", _definitions(client)),
        ("rights", _rights(client, namespace)),
        ("platform", _platform(client)),
        ("resources", _resources(client, namespace)),
    ):
        try:
            async for finding in part:
                yield finding
        except kube.Forbidden as error:
            yield Finding(name, Result.UNKNOWN, f"you may not look: {error.message}")
        except kube.KubeError as error:
            yield Finding(name, Result.PROBLEM, f"{error.message}; try again")


def server_finding(server: str, version: str) -> Finding:
    """Return whether a server of this version (``gitVersion``) is one that Pavane runs with."""
    told = f"{server} has version {version}"
    oldest, newest = (".".join(map(str, each)) for each in (OLDEST_SERVER, NEWEST_SERVER))
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    if numbers is None:
        return Finding("server", Result.UNKNOWN, f"{told}; Pavane needs {oldest} or newer")
    present = (int(numbers[1]), int(numbers[2]))
    if present < OLDEST_SERVER:
        return Finding("server", Result.PROBLEM, f"{told}; Pavane needs {oldest} or newer: upgrade the cluster")
    if present > NEWEST_SERVER:
        return Finding("server", Result.UNKNOWN, f"{told}; Pavane has been tested up to {newest}")
    return Finding("server", Result.OK, told)


async def _definitions(client: kube.KubeClient) -> AsyncIterator[Finding]:
    for expected in definitions():
        name = expected["metadata"]["name"]
        lack = lacking(expected, await client.get_or_none(CRDS, name))
        if lack is None:
            yield Finding(f"definition {name}", Result.OK, "has all fields that this release knows")
        else:
            yield Finding(f"definition {name}", Result.PROBLEM, f"the server lacks {lack}")


async def _rights(client: kube.KubeClient, namespace: str | None) -> AsyncIterator[Finding]:
    kinds = ", ".join(resource.plural for resource in RESOURCES)
    reading = [(resource, "", verb) for resource in RESOURCES for verb in READ]
    reading += [(PODS, "", "get"), (PODS, "", "list"), (PODS, "log", "get"), (CORE_EVENTS, "", "list")]
    reading += [(CONTROLLER_REVISIONS, "", "get"), (CONTROLLER_REVISIONS, "", "list")]
    changing = [(resource, "", verb) for resource in RESOURCES for verb in CHANGE]
    place = _where(namespace)
    for title, role, asked in (("read", "view", reading), ("change", "edit", changing)):
        answers = await asyncio.gather(
            *(
                client.own_access_review(verb, resource, namespace=namespace, subresource=subresource)
                for resource, subresource, verb in asked
            )
        )
        refused = [
            f"{verb} {'/'.join(filter(None, (resource.plural, subresource)))}"
            for (resource, subresource, verb), allowed in zip(asked, answers, strict=True)
            if not allowed
        ]
        if refused:
            advice = f"ask an administrator for the role `{role}`"
            yield Finding(f"right to {title}", Result.PROBLEM, f"you may not {', '.join(refused)} {place}: {advice}")
        else:
            yield Finding(f"right to {title}", Result.OK, f"{kinds} {place}")


async def _platform(client: kube.KubeClient) -> AsyncIterator[Finding]:
    somewhere = None
    try:
        pods = (await client.list_all(PODS, labels=PLATFORM_LABELS)).items
    except kube.Forbidden:
        somewhere = PLATFORM_NAMESPACE
        pods = (await client.list_all(PODS, somewhere, labels=PLATFORM_LABELS)).items
    for component in (OPERATOR, CONTROL_PLANE):
        own = [pod for pod in pods if pod["metadata"]["labels"][COMPONENT_LABEL] == component]
        yield component_finding(component, own, somewhere)


def component_finding(component: str, pods: list[kube.Object], namespace: str | None) -> Finding:
    """Return whether operator or control plane run; ``namespace`` is where we looked, None = everywhere."""
    check = "control plane" if component == CONTROL_PLANE else component
    alive = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ENDED]
    if not alive and namespace is not None:
        return Finding(check, Result.UNKNOWN, f"none in {namespace}, and you may not look elsewhere")
    if not alive and component == CONTROL_PLANE:
        text = "none runs; only `pavane raft` and `pavane trace` need one (api.enabled of the chart pavane)"
        return Finding(check, Result.OK, text)
    if not alive:
        text = "none runs: install the chart pavane (docs/install.md); its Deployment's events say why it has no pod"
        return Finding(check, Result.PROBLEM, text)
    unready = [pod for pod in alive if (condition(pod, "Ready") or {}).get("status") != "True"]
    if not unready:
        return Finding(check, Result.OK, "ready: " + ", ".join(_place(pod) for pod in alive))
    names = "; ".join(f"{_place(pod)} ({_state(pod)})" for pod in unready)
    first = unready[0]["metadata"]
    advice = f"`kubectl -n {first['namespace']} describe pod {first['name']}`, and its log"
    return Finding(check, Result.PROBLEM, f"not ready: {names}; what it waits for: {advice}")


def _place(pod: kube.Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _state(pod: kube.Object) -> str:
    status = pod.get("status") or {}
    waiting = (
        each["state"]["waiting"]
        for each in status.get("containerStatuses") or ()
        if (each.get("state") or {}).get("waiting")
    )
    return str(next((each["reason"] for each in waiting if each.get("reason")), status.get("phase", "Pending")))


async def _resources(client: kube.KubeClient, namespace: str | None) -> AsyncIterator[Finding]:
    for resource in RESOURCES:
        try:
            items = (await client.list_all(resource, namespace)).items
        except kube.NotFound:
            text = "the server does not know the kind: install the chart pavane-crds"
            yield Finding(resource.plural, Result.PROBLEM, text)
            continue
        findings = [await _resource(client, document, named=namespace is None) for document in items]
        for finding in findings:
            if finding.result is not Result.OK:
                yield finding
        well = sum(finding.result is Result.OK for finding in findings)
        yield Finding(resource.plural, Result.OK, f"{well} of {len(items)} {_where(namespace)} wait for nothing")


async def _resource(client: kube.KubeClient, document: kube.Object, *, named: bool) -> Finding:
    meta = document["metadata"]
    reference = f"{document['kind'].lower()}/{meta['name']}"
    problems, hidden = [], []
    for each in references(document.get("spec") or {}):
        try:
            found = await client.get_or_none(each.resource, each.name, meta["namespace"])
        except kube.Forbidden as error:
            hidden.append(f"you may not look at {each.field}: {error.message}")
            continue
        if found is None:
            problems.append(f"{each.field}: {each.resource.kind} {each.name} does not exist: create it.")
        elif each.key is not None and each.key not in {**found.get("data", {}), **found.get("binaryData", {})}:
            problems.append(f"{each.field}: {each.resource.kind} {each.name} has no key {each.key}: add it.")
    if waits(document) and (condition(document, "Ready") or {}).get("reason") != "Suspended":
        problems.append(explain(document, reference))
    check = f"{reference} in {meta['namespace']}" if named else reference
    if problems:
        return Finding(check, Result.PROBLEM, " ".join(problems))
    return Finding(check, Result.UNKNOWN if hidden else Result.OK, "; ".join(hidden))


def references(spec: Any, path: str = "") -> Iterator[Reference]:
    """Yield the objects of its namespace that a spec names, but for optional ones."""
    if isinstance(spec, list):
        for index, item in enumerate(spec):
            yield from references(item, f"{path}[{index}]")
    elif isinstance(spec, dict):
        for field, value in spec.items():
            inner = f"{path}.{field}".lstrip(".")
            if field == "secretName":
                yield Reference(inner, SECRETS, value)
            elif field == "imagePullSecrets":
                yield from (Reference(inner, SECRETS, each["name"]) for each in value)
            elif field in REFERRING and not value.get("optional"):
                yield Reference(inner, REFERRING[field], value["name"], value.get("key"))
            elif field != "config" and field not in REFERRING:
                yield from references(value, inner)


def _where(namespace: str | None) -> str:
    return f"in namespace {namespace}" if namespace else "in all namespaces"
