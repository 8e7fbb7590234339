"""Backups of Coordinators and WaltzClusters beside those of RaftClusters (docs/specs/operator.md 1.10)."""

import json

import pytest

from pavane.pods.main import program_of
from pavane_operator.crds.backup import Phase
from pavane_operator.kinds.backup.deciding import NAMES, turns
from pavane_operator.kinds.backup.keeping import BACKUPS
from pavane_operator.kinds.backup.pod import render
from pavane_operator.kinds.backup.scheduling import due, surplus
from pavane_operator.kinds.waltz.names import SERVERS, WALTZ_PORT
from pavane_operator.kube import Invalid, KubeClient
from pavane_operator.kube.resources import Object
from tests.operator.network import connects
from tests.operator.restricted import violations
from tests.operator.test_backups import (
    DEFAULTS,
    MADE,
    NIGHTLY,
    NOW,
    SCHEDULED,
    backup,
    changed,
    decided,
    kube,
    of_schedule,
    running,
    server,
    told,
)
from tests.operator.test_network_policies import pod
from tests.operator.test_render_waltz import resource, shared

__all__ = ["kube", "server"]

IMMORTAL: Object = {
    "kind": "Coordinator",
    "metadata": {"name": "q", "namespace": "default", "uid": "facade00-0123"},
    "spec": {"instanceName": "alice"},
    "status": {"activeGeneration": 1},
}
LEDGER: Object = {
    "kind": "WaltzCluster",
    "metadata": {"name": "q", "namespace": "default", "uid": "c0c0a000-0123"},
    "spec": {"archive": {"url": "s3://logs/", "secretName": "logs"}, "metadata": {"raftClusterRef": {"name": "m"}}},
    "status": {"activeGeneration": 1},
}


def of_kind(kind: str) -> Object:
    return changed(backup("a"), "spec.of.kind", kind)


def variables(pod: Object) -> dict[str, str | None]:
    return {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}


def test_of_an_immortal_its_pod_reads_the_volume_on_the_node_of_the_instance() -> None:
    made = render(of_kind("Coordinator"), IMMORTAL, running(), DEFAULTS)
    assert violations(made["spec"]) == []
    (container,), told = made["spec"]["containers"], variables(made)
    assert program_of(told["PAVANE_KIND"] or "", told["PAVANE_ROLE"] or "") == "pavane.pods.backup_coordinator"
    assert told["PAVANE_INSTANCE"] == "alice"
    mount = next(each for each in container["volumeMounts"] if each["name"] == "log")
    assert mount["readOnly"]
    assert told["PAVANE_AMBROSIA_LOG"] == f"{mount['mountPath']}/ambrosia/q-facade00"
    volume = next(each for each in made["spec"]["volumes"] if each["name"] == "log")
    assert volume["persistentVolumeClaim"] == {"claimName": "q-log-facade00"}
    (term,) = made["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = {"app.kubernetes.io/name": "coordinator", "app.kubernetes.io/instance": "q"}
    assert labels.items() <= term["labelSelector"]["matchLabels"].items()
    shared = render(of_kind("Coordinator"), changed(IMMORTAL, "spec.storage", {"shared": True}), running(), DEFAULTS)
    assert "affinity" not in shared["spec"]


def test_of_a_log_its_pod_is_a_client_and_reads_the_archive() -> None:
    made = render(of_kind("WaltzCluster"), LEDGER, running(), DEFAULTS)
    assert violations(made["spec"]) == []
    told = variables(made)
    assert program_of(told["PAVANE_KIND"] or "", told["PAVANE_ROLE"] or "") == "pavane.pods.backup_waltz"
    mounted = {each["name"]: each["mountPath"] for each in made["spec"]["containers"][0]["volumeMounts"]}
    secrets = {each["name"]: each["secret"]["secretName"] for each in made["spec"]["volumes"] if "secret" in each}
    assert secrets == {"client": "q-client", "archive": "logs"}
    assert told["PAVANE_WALTZ_CLIENT"] == mounted["client"]
    assert told["PAVANE_ARCHIVE_STORE"] == mounted["archive"]
    assert (told["PAVANE_ARCHIVE_URL"] or "").startswith("s3://logs/q-")


def test_what_can_never_be_backed_up_as_it_is_fails_at_once_and_says_why() -> None:
    on_waltz = changed(IMMORTAL, "spec.log", {"waltzClusterRef": {"name": "ledger"}, "partition": 1})
    for kind, source, reason, words in (
        ("Coordinator", on_waltz, "LogOnWaltz", "in WaltzCluster ledger: make a Backup of that"),
        ("WaltzCluster", changed(LEDGER, "spec", {}), "NoArchive", "WaltzCluster q has no spec.archive"),
    ):
        failed = decided(of_kind(kind), cluster=source)
        assert not failed.start
        assert told(failed)[:2] == ("Failed", reason)
        assert words in told(failed)[2]
    for kind, source in (("Coordinator", IMMORTAL), ("WaltzCluster", LEDGER)):
        assert decided(of_kind(kind), cluster=source).start
    message = json.dumps({**MADE, "until": "record 71"})
    state = {"terminated": {"exitCode": 0, "message": message}}
    own = {
        "metadata": {},
        "status": {"phase": "Succeeded", "containerStatuses": [{"name": "coordinator", "state": state}]},
    }
    done = decided(changed(of_kind("Coordinator"), "status", running().dump()), own, IMMORTAL)
    assert told(done) == ("Complete", "Verified", "everything up to record 71, read back and compared")


@pytest.mark.parametrize("kind", ["ComputeCluster", "SwimGroup"])
async def test_of_what_has_nothing_to_copy_a_backup_is_refused_with_the_reason(kube: KubeClient, kind: str) -> None:
    spec = {"of": {"kind": kind, "name": "q"}, "url": "s3://store/q"}
    with pytest.raises(Invalid, match=f"a {kind} has nothing to back up"):
        await kube.create(BACKUPS, {"metadata": {"name": "a"}, "spec": spec}, "default")


def test_backups_of_two_kinds_with_one_name_do_not_meet() -> None:
    bodies = [of_kind(kind) for kind in ("RaftCluster", "Coordinator")]
    assert len(turns(bodies)) == 2, "one does not wait for the other"
    immortal = changed(IMMORTAL, "spec.backup", NIGHTLY)
    made = [due(each, [of_schedule(1, Phase.COMPLETE)], NOW) for each in (SCHEDULED, immortal)]
    assert made[0] is None
    assert made[1] is not None
    assert made[1]["metadata"]["name"] == "q-coord-2601010230"
    assert made[1]["spec"]["of"] == {"kind": "Coordinator", "name": "q"}
    assert surplus(changed(immortal, "spec.backup.keep", 1), [of_schedule(day, Phase.COMPLETE) for day in (1, 2)]) == []


def test_its_pod_reaches_a_log_whose_clients_are_selected() -> None:
    of = resource(networkPolicy={"clientSelector": {"podSelector": {"matchLabels": {"role": "client"}}}})
    found = [each.body for each in shared(of).values() if each.kind == "NetworkPolicy"]
    server = pod("data", SERVERS.labels(of.name, "1", 1))

    def reaches(labels: dict[str, str]) -> bool:
        return connects(found, pod("data", labels), server, WALTZ_PORT.number)

    assert reaches(NAMES["WaltzCluster"].labels("nightly", "1"))
    assert not reaches({"app": "shop"})
