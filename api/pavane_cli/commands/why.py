"""``pavane why``: what a resource waits for, since when, and what a user can do about it."""

from typing import Any

from pavane_cli import output
from pavane_cli.commands.resources import BACKUP, condition
from pavane_cli.gathering import One, about_one, read
from pavane_cli.live import alike, state_of
from pavane_cli.target import run

ADVICE = {
    "Paused": "Resume with `pavane rollout resume {reference}`.",
    "WaitingForApproval": "Approve it with `pavane rollout promote {reference}`.",
    "NotFollowing": "It continues when the pod follows, and rolls out anew when the bake is over.",
    "GateFailed": "Correct what the gate names, or abort with `pavane rollout abort {reference}`.",
    "GateInconclusive": "It continues when the gate can be judged; correct its port, path or query, or remove it.",
    "OutsideWindow": "It continues by itself; `pavane rollout force-promote {reference}` does not wait.",
    "WindowNeverOpens": "Correct spec.rollout.windows; `pavane rollout force-promote {reference}` does not wait.",
    "Lagging": "It continues when the pods have caught up; `pavane rollout force-promote` does not wait.",
    "WithinStabilityPeriod": "It continues by itself.",
    "PodPending": "The pod has not started; `pavane describe {reference}` and the pod's events say why.",
    "PodRefused": "Change what refuses the pod, a quota or a policy of the namespace; it is tried again by itself.",
    "VolumePending": "The volume is not bound; look at its claim and storage class.",
    "PodNotScheduled": "No node takes the pod; look at its events.",
    "ImagePull": "The image cannot be pulled: correct spec.image; the change supersedes this attempt.",
    "CrashLoop": "The pods crash: look at their log (`pavane logs POD --previous`), then correct what they name.",
    "StageUnreachable": "The pod runs but its stage port does not answer; look at its log.",
    "NotInitialized": "The pod is starting; it continues by itself.",
    "NoQuorum": "A majority of the members does not answer: get their pods running again.",
    "NoLeader": "It continues by itself once the pod has found the leader.",
    "Joining": "It continues by itself.",
    "HandingOver": "It continues by itself, within a second as a rule.",
    "ActiveDown": "The active generation does not answer; what its pods wait for follows, or look at their logs.",
    "RegistryLost": "Make the registry again: `pavane waltz adopt NAME`; keep the volumes of the storage nodes.",
    "StateLost": "The pod lost its volume and may not vote; the operator removes and adds it again.",
    "VolumeFull": "Raise spec.storage.size, or see 'A full volume' in docs/operations.md.",
    "Suspended": "Start it again with `pavane resume-resource {reference}`.",
    "PodTerminating": "It continues when the pod has stopped.",
    "QuorumLost": "Bring a lost volume back, or see 'A majority is gone for good' in docs/operations.md.",
    "ReferenceNotReady": "Create or correct what the message names; it then continues.",
    "InvalidConfig": "Correct the spec; the message names the field.",
    "DeadlineExceeded": "Correct the spec, abort with `pavane rollout abort {reference}`, or keep waiting.",
    "Cancelled": "Change the spec, or try again with `pavane rollout retry {reference}`.",
    "CatchingUp": "It continues when the pod has caught up.",
    "NoGroup": "No member admits it: check that those of spec.seeds are reachable and have the same group and keys.",
    "NoFullMember": "Observers admit nobody: get a pod of the active generation running again.",
    "MembersUnknown": "It continues when a pod answers on its ops port.",
    "LeaveNotVisible": "It continues within seconds.",
    "DigestDisagrees": "It continues when the members agree; `pavane swim members {reference}` asks one.",
    "InvalidScript": "Correct spec.script; `pavane sql check` checks it without a cluster.",
    "NameTaken": "Remove that script from spec.scripts, or give the Dataflow another name.",
    "ComputeClusterMissing": "Create it, or correct spec.computeClusterRef.",
    "RollingOut": "`pavane why compute/NAME` says what the ComputeCluster waits for.",
    "ViewFailed": "Correct the script or the rows; the view is built anew by the next generation.",
    "ReplicaMissing": "The views go on while another replica is there; the log of the pod says what it waits for.",
    "CopyUnusable": "It is rebuilt by itself; look at the disk of the node, and see docs/waltz.md, damaged copies.",
    "ReplicasMissing": "It continues when the storage nodes run again and have caught up.",
    "ConsumerStuck": "Let it go on, or `pavane waltz consumers NAME --remove CONSUMER` if it never comes back.",
    "ArchiveBehind": "Look at the store and at the keys in the Secret of spec.archive; it goes on by itself.",
    "ClusterMissing": "Create it; it then continues.",
    "InvalidSchedule": "Correct spec.backup.",
    "LastFailed": "The next one comes by itself; look at the URL and the keys in the Secret of spec.backup.",
    "Rejected": "The cluster refused the pods: correct the spec.",
}
"""What a user can do, by reason."""

OWN = ("VolumesHaveRoom", "Replicated", "LogHealthy", "ConsumerStuck", "ArchiveBehind", "BackupFailed")
"""Conditions that some kinds have, of their volumes, views and logs; those that all kinds have tell of the rest."""

BAD_WHEN_TRUE = {"InUse", "Stalled", "Reconciling", "TemplateDrift", "ConsumerStuck", "ArchiveBehind", "BackupFailed"}

AFTERWARDS = dict.fromkeys(
    ("DeadlineExceeded", "GateFailed", "ImagePull", "CrashLoop"),
    "Correct the spec, or try again with `pavane rollout retry {reference}`.",
)
"""The same once the attempt has failed and its pods are gone."""


@about_one
def why(one: One) -> None:
    """Explain what a resource is waiting for and what you can do."""
    output.paragraph(explain(run(read(one)), one.reference))


def explain(document: dict[str, Any], reference: str) -> str:
    """Return the paragraph about a resource."""
    sentences = [_state_sentence(document, reference), *_waits(document, reference)]
    unique = dict.fromkeys(sentence for sentence in sentences if sentence)
    return " ".join(sentence if sentence.endswith((".", "!")) else sentence + "." for sentence in unique)


def waits(document: dict[str, Any]) -> bool:
    """Whether there is anything to explain: no operator has seen it, or it is held up, not Ready or not up to date."""
    return not document.get("status") or bool(_waits(document, ""))


def _waits(document: dict[str, Any], reference: str) -> list[str]:
    status = document.get("status") or {}
    sentences = []
    for name in ("InUse", "Stalled", "Ready", "UpToDate", "TemplateDrift", *OWN):
        found = condition(document, name)
        if name in OWN and name not in _lacking(document):
            continue
        if found is None or _is_fine(found) or (name == "UpToDate" and state_of(document) != "Idle"):
            continue
        if name == "UpToDate" and found["reason"] == (condition(document, "Stalled") or {}).get("reason"):
            continue  # told already
        text = f"{name} is {found['status']} since {output.age(found['lastTransitionTime'])}: {found['reason']}"
        sentences.append(f"{text} – {found['message']}" if found.get("message") else f"{text}.")
        sentences.append(_advice(found["reason"], reference, after=state_of(document) == "Idle"))
    for found_in in alike((status.get("rollout") or {}).get("blockers") or ()):
        reason, message = found_in[0]["reason"], found_in[0].get("message", "")
        pods = ", ".join(blocker["pod"] for blocker in found_in if blocker.get("pod"))
        since = min(blocker["since"] for blocker in found_in)
        text = f"For {output.age(since)} it waits for {pods}{': ' if pods else ''}{reason}"
        sentences.append(f"{text} – {message}" if message else f"{text}.")
        sentences.append(_advice(reason, reference))
    failed = status.get("failed")
    if failed:
        sentences.append(
            f"The last attempt, generation {failed['generation']}, ended {output.age(failed['at'])} ago with "
            f"{failed['reason']}{_because(failed)}; its spec is not tried again by itself."
        )
        sentences.append(_advice(failed["reason"], reference, after=True))
    return sentences


def _state_sentence(document: dict[str, Any], reference: str) -> str:
    state = state_of(document)
    status = document.get("status") or {}
    if document["metadata"].get("deletionTimestamp"):
        return f"{reference} is being deleted."
    if not status:
        return f"{reference} has not been seen by an operator yet: is one running? `pavane check`"
    active, upcoming = status.get("activeGeneration"), status.get("nextGeneration")
    if document.get("kind") == BACKUP:
        return _of_backup(document, reference)
    if "activeGeneration" not in status and document.get("kind") == "Dataflow":
        return "" if _waits(document, reference) else f"{reference} waits for nothing: its views are up to date."
    if state == "Idle":
        settled = all(_is_fine(condition(document, name) or {"type": name}) for name in ("Ready", "UpToDate"))
        settled = settled and not _lacking(document)
        return f"{reference} waits for nothing: generation {active} is active." if settled else f"{reference} is idle."
    if upcoming is None and active:  # it has taken over; what it replaced retires
        told = (condition(document, "CanSwitchBack") or {}).get("message")
        return f"{reference} is {state}: generation {active} is active{'; ' + told if told else ''}."
    beside = f", generation {active} is active and untouched" if active and state != "Promoting" else ""
    return f"{reference} is {state} with generation {upcoming}{beside}."


def _of_backup(document: dict[str, Any], reference: str) -> str:
    phase, told = document["status"].get("phase", "Pending"), condition(document, "Complete") or {}
    if phase == "Complete":
        return f"{reference} waits for nothing: {told.get('message') or 'it is complete'}."
    words = f": {told['reason']}" if told else ""
    text = f"{reference} is {phase}{words}{' – ' if told.get('message') else ''}{told.get('message', '')}"
    # What is said of reasons is about rollouts, and the message of one that failed says what to do.
    advice = _advice(told.get("reason", ""), reference) if phase != "Failed" else ""
    return f"{text}. {advice}".strip()


def _is_fine(condition: dict[str, Any]) -> bool:
    return condition.get("status") == ("False" if condition["type"] in BAD_WHEN_TRUE else "True")


def _lacking(document: dict[str, Any]) -> list[str]:
    """Own conditions known to be bad; other kinds do not have them, and a cluster that is down cannot say."""
    bad = {name: "True" if name in BAD_WHEN_TRUE else "False" for name in OWN}
    return [name for name in OWN if (condition(document, name) or {}).get("status") == bad[name]]


def _because(failed: dict[str, Any]) -> str:
    return f" ({failed['message']})" if failed.get("message") else ""


def _advice(reason: str, reference: str, *, after: bool = False) -> str:
    found = AFTERWARDS.get(reason) if after else None
    return (found or ADVICE.get(reason, "")).format(reference=reference)
