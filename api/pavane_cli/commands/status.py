"""``pavane status``: on one screen how a resource is, from what the API server knows; so it needs no leader."""

import base64
import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from pavane_cli import completing, output
from pavane_cli.commands.resources import Everywhere, condition
from pavane_cli.commands.tree import GENERATION_LABEL, ROLE_LABEL
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.gathering import Place, in_place
from pavane_cli.output import Format, Output
from pavane_cli.target import PLATFORM_NAMESPACE, RESOURCES, cluster, has_pods, required_reference, run
from pavane_operator import kube
from pavane_operator.kube.resources import PODS, SECRETS

CERTIFICATE = "tls.crt"

Named = Annotated[
    str | None,
    typer.Argument(
        metavar="[[KIND/]NAME]",
        autocompletion=completing.references,
        help="As quickstart or raft/quickstart. Without it: all of the namespace, or with -A of all namespaces.",
    ),
]


@in_place
def status(place: Place, named: Named = None, everywhere: Everywhere = False, form: Output = Format.TABLE) -> None:
    """Show leader, members, quorum, blockers, write gap and certificates of a resource, or a line for each resource."""
    if named is None:
        rows = run(_all(place, None if everywhere else place.namespace))
        table = [dict(zip(ALL_HEADERS, row, strict=True)) for row in rows]
        output.listing(table, [header.upper() for header in ALL_HEADERS], rows, form)
        return
    document, pods, expires = run(_read(place, named))
    facts, members = told(document, pods, expires)
    if form.structured:
        output.structured({**facts, "members": [dict(zip(HEADERS, each, strict=True)) for each in members]}, form)
        return
    for name, text in facts.items():
        output.paragraph(f"{name:<14}{text}", indent=14)
    output.say()
    output.table([header.upper() for header in HEADERS], members)


ALL_HEADERS = ("resource", "ready", "pods", "generation", "rollout", "write gap", "waits for")


async def _all(place: Place, namespace: str | None) -> list[tuple[str, ...]]:
    """Return a row for each pod of the platform, if they may be seen, and for each resource."""
    async with cluster(place) as client:
        rows: list[tuple[str, ...]] = []
        with contextlib.suppress(kube.Forbidden):
            for pod in (await client.list_all(PODS, PLATFORM_NAMESPACE)).items:
                told = ("True", "") if _is_ready(pod) else ("False", "its start")
                rows.append((f"pod/{pod['metadata']['name']}", told[0], *[""] * 4, told[1]))
        for resource in RESOURCES:
            found = await client.list_all(resource, namespace)
            rows += [_line(document, namespaced=namespace is None) for document in found.items]
    return rows


def _line(document: Mapping[str, Any], *, namespaced: bool) -> tuple[str, ...]:
    """Return a resource in one line."""
    status, metadata = document.get("status") or {}, document["metadata"]
    rollout, ready = status.get("rollout") or {}, condition(dict(document), "Ready") or {}
    blockers = rollout.get("blockers") or ()
    serves = ready.get("status") == "True"
    waits = blockers[0]["reason"] if blockers else "" if serves else ready.get("message") or ready.get("reason", "")
    gap = next((f"{each['writeGapMs']} ms" for each in status.get("history") or () if "writeGapMs" in each), "")
    return (
        "/".join(
            filter(None, (metadata["namespace"] if namespaced else "", document["kind"].lower(), metadata["name"]))
        ),
        ready.get("status", "Unknown"),
        status.get("readyPods", ""),
        " → ".join(str(status[each]) for each in ("activeGeneration", "nextGeneration") if status.get(each)),
        rollout.get("state", "Idle"),
        gap,
        waits,
    )


async def _read(place: Place, named: str) -> tuple[kube.Object, Sequence[kube.Object], str]:
    async with cluster(place) as client:
        resource, name, document = await _find(client, named, place.namespace)
        labels = f"app.kubernetes.io/instance={name},app.kubernetes.io/name={resource.kind.lower()}"
        pods = (await client.list_all(PODS, place.namespace, labels=labels)).items
        return document, pods, await _expires(client, document)


async def _find(client: kube.KubeClient, named: str, namespace: str) -> tuple[kube.Resource, str, kube.Object]:
    if "/" in named:
        resource, name = required_reference(named)
        if not has_pods(resource):
            raise UserError(f"a {resource.kind} has no pods: `pavane describe {named}` shows it", ExitCode.USAGE)
        return resource, name, await client.get(resource, name, namespace)
    found = []
    for resource in filter(has_pods, RESOURCES):
        try:
            found.append((resource, named, await client.get(resource, named, namespace)))
        except kube.NotFound:
            continue
    if not found:
        raise UserError(f"no resource of ours in namespace {namespace} is called {named}", ExitCode.NOT_FOUND)
    if len(found) > 1:
        both = " and ".join(f"{resource.kind.lower()}/{named}" for resource, _, _ in found)
        raise UserError(f"there are {both}: name one of them", ExitCode.USAGE)
    return found[0]


async def _expires(client: kube.KubeClient, document: kube.Object) -> str:
    """Say when the certificate of the pods ends."""
    tls = document["spec"].get("tls") or {}
    if tls.get("mode") == "Disabled":
        return "none: TLS is disabled"
    name = tls.get("secretName") or f"{document['metadata']['name']}-tls"
    try:
        secret = await client.get(SECRETS, name, document["metadata"]["namespace"])
        from cryptography import x509  # noqa: PLC0415 - no part of the default install

        pem = base64.b64decode((secret.get("data") or {})[CERTIFICATE])
        ends = x509.load_pem_x509_certificate(pem).not_valid_after_utc
    except kube.NotFound:
        return f"there is no Secret {name}"
    except kube.Forbidden:
        return f"you may not read Secret {name}"
    except ModuleNotFoundError:
        return f"not read: pip install 'pavane[services]' (Secret {name})"
    except (KeyError, ValueError):
        return f"Secret {name} holds no certificate"
    left = ends - datetime.now(UTC)
    when = f"{ends:%Y-%m-%d %H:%M} UTC"
    return f"ended {when}" if left.total_seconds() < 0 else f"valid until {when}, {left.days} days"


HEADERS = ("pod", "generation", "role", "ready", "restarts", "lag")


def told(
    document: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], certificates: str
) -> tuple[dict[str, str], list[tuple[str, ...]]]:
    """Return what there is to say, by heading, and a row for each pod."""
    status, metadata = document.get("status") or {}, document["metadata"]
    rollout = status.get("rollout") or {}
    facts = {"Resource": f"{document['kind']} {metadata['namespace']}/{metadata['name']}"}
    facts["Ready"] = _condition(document, "Ready")
    facts |= _of_kind(document)
    state = rollout.get("state", "Idle")
    upcoming = f", generation {status['nextGeneration']}" if status.get("nextGeneration") else ""
    facts["Rollout"] = f"{state}{upcoming}; generation {status.get('activeGeneration', '–')} is active"
    blockers = [
        " ".join(filter(None, (each["reason"], each.get("pod", ""), each.get("message", ""))))
        for each in rollout.get("blockers") or ()
    ]
    facts["Blockers"] = "; ".join(blockers) or "none"
    promoted = [each for each in status.get("history") or () if "writeGapMs" in each]
    last = promoted[0] if promoted else None
    facts["Write gap"] = (
        f"{last['writeGapMs']} ms, generation {last['generation']}, {output.age(last['finishedAt'])} ago"
        if last
        else "none was measured yet"
    )
    facts["Certificates"] = certificates
    return facts, [_row(pod, status) for pod in sorted(pods, key=lambda each: str(each["metadata"]["name"]))]


def _of_kind(document: Mapping[str, Any]) -> dict[str, str]:
    status = document.get("status") or {}
    match document["kind"]:
        case "RaftCluster":
            leader, term = status.get("leader"), status.get("term", "–")
            return {
                "Leader": f"{leader}, term {term}" if leader else f"none; {_condition(document, 'LeaderElected')}",
                "Quorum": _condition(document, "QuorumAvailable"),
                "Volumes": _condition(document, "VolumesHaveRoom"),
            }
        case "SwimGroup":
            counts = status.get("members") or {}
            seen = ", ".join(f"{number} {state}" for state, number in counts.items())
            return {"Members": seen or "not known yet", "Digest": str(status.get("digest", "–"))}
        case "WaltzCluster":
            partitions = status.get("partitions") or {}
            counted = ", ".join(f"{number} {state}" for state, number in partitions.items())
            return {"Partitions": counted or "not known yet"}
        case "Coordinator":
            return {"Instance": str(status.get("instance", "–"))}
        case _:
            return {"Log": str(status.get("log", "–"))}


def _condition(document: Mapping[str, Any], kind: str) -> str:
    found = condition(dict(document), kind)
    if found is None:
        return "not known yet"
    text = f"{found['status']}, {found['reason']} for {output.age(found['lastTransitionTime'])}"
    return f"{text}: {found['message']}" if found.get("message") else text


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _row(pod: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[str, ...]:
    labels, seen = pod["metadata"].get("labels") or {}, pod.get("status") or {}
    name = pod["metadata"]["name"]
    member = next(
        (each for each in status.get("members") or () if isinstance(each, dict) and each.get("name") == name), {}
    )
    commit, match = status.get("commitIndex"), member.get("matchIndex")
    role = "Leader" if name == status.get("leader") else member.get("role") or labels.get(ROLE_LABEL, "")
    return (
        name,
        labels.get(GENERATION_LABEL, ""),
        role,
        "yes" if _is_ready(pod) else "no",
        str(sum(int(each.get("restartCount") or 0) for each in seen.get("containerStatuses") or ())),
        "" if commit is None or match is None else str(max(0, commit - match)),
    )
