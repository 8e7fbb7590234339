"""The operator with everything real: API server, kubelet, pods, Raft; only the containers are processes."""

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pavane.raft.client import RaftClient
from pavane_operator.kube.resources import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    EVENTS,
    LEASES,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    VOLUME_CLAIMS,
    Object,
)
from tests.operator.api_proxy import a_proxy
from tests.operator.changed_release import MARK
from tests.operator.killing_waltz import WALTZ_CLUSTERS
from tests.operator.operator_cluster import NAME, NAMESPACE, RAFT_CLUSTERS, Rig, a_rig, blockers, condition, state

WRITERS = 4


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with a_rig(tmp_path) as running:
        yield running


async def test_three_replicas_come_up_and_roll_under_writes_without_losing_one(rig: Rig) -> None:
    await rig.apply(replicas=3)
    status = await rig.until_active(1)
    assert condition(status, "Ready") == ("True", "Serving")
    assert len(status["configuration"]["old"]) == 3
    rolled = asyncio.Event()
    acknowledged: list[bytes] = [b"of an application"]
    way = await rig.connection()
    async with RaftClient(way.urls, way.secret, curve=way.curve, resolve=way.resolve) as application:
        await application.update(*acknowledged)
    async with rig.client() as client:

        async def write(writer: int) -> None:
            for number in itertools.count():
                if rolled.is_set():
                    return
                data = b"%d/%d" % (writer, number)
                await client.update(data)
                acknowledged.append(data)

        async with asyncio.TaskGroup() as writers:
            for writer in range(WRITERS):
                writers.create_task(write(writer))
            await rig.apply(rollout={"restart": "now"})
            status = await rig.until_active(2)
            rolled.set()
        stored = [bytes(entry.data) async for entry in client.entries() if entry.type == 0]
    assert sorted(stored) == sorted(acknowledged)
    gap_ms = status["history"][0]["writeGapMs"]
    metrics = await rig.metrics()
    assert 'pavane_operator_write_gap_seconds_count{kind="RaftCluster"} 1\n' in metrics
    assert f'pavane_operator_write_gap_seconds_sum{{kind="RaftCluster"}} {gap_ms / 1000:g}\n' in metrics
    assert 'pavane_operator_reconciles_total{kind="RaftCluster",outcome="applied"}' in metrics
    assert 'pavane_operator_api_calls_total{verb="patch",code="200"}' in metrics
    assert 'pavane_operator_rollouts_total{kind="RaftCluster",result="Promoted"} 2\n' in metrics
    assert 'pavane_operator_rollout_seconds_count{kind="RaftCluster",state="Promoting"} 2\n' in metrics
    assert 'pavane_operator_generations{kind="RaftCluster",role="Active"} 1\n' in metrics
    for counted in ("reconcile_seconds_count", "queue_seconds_count", "last_event_age_seconds", "streams", "leader 1"):
        assert f"pavane_operator_{counted}" in metrics
    assert 'pavane_operator_wakeups_total{source="pod"}' in metrics
    assert all(member.startswith("log-server-g2-") for member in status["configuration"]["old"])
    await rig.until_gone(VOLUME_CLAIMS, "data-log-server-g1-")
    assert {name for name in await rig.names(STATEFUL_SETS)} == {"log-server-g2"}
    reasons = {event["reason"] for event in (await rig.kube.list(EVENTS, NAMESPACE)).items}
    assert {"RolloutStarted", "StageReached", "Promoting", "Promoted", "OldGenerationRetired"} <= reasons


async def test_an_operator_killed_while_promoting_is_continued_by_the_next_one(rig: Rig) -> None:
    await rig.apply()
    await rig.until_active(1)
    await rig.apply(rollout={"restart": "now"})
    await rig.until(lambda status: state(status) == "Promoting")
    await rig.stop_operator(kill=True)
    await rig.start_operator()
    status = await rig.until_active(2)
    assert condition(status, "UpToDate") == ("True", "Applied")
    lease = await rig.kube.get(LEASES, "pavane-operator", "pavane-system")
    assert lease["spec"]["leaseTransitions"] == 2


async def test_an_image_that_is_not_there_harms_nobody_and_a_revert_cleans_up(rig: Rig) -> None:
    await rig.apply()
    await rig.until_active(1)
    await rig.apply(image="nowhere.test/nothing:1")
    status = await rig.until(lambda status: "ImagePull" in blockers(status))
    assert status["activeGeneration"] == 1
    assert condition(status, "Ready") == ("True", "Serving")
    await rig.apply(image="")
    status = await rig.until(lambda status: state(status) == "Idle" and len(status["history"]) == 2)
    assert status["activeGeneration"] == 1
    await rig.until_gone(PODS, "log-server-g2")
    for resource in (STATEFUL_SETS, SERVICES, CONFIG_MAPS, CONTROLLER_REVISIONS, VOLUME_CLAIMS):
        assert not [name for name in await rig.names(resource) if "-g2" in name]
    async with rig.client() as client:
        assert await client.update(b"still here") > 0


async def test_manual_waits_for_the_number_of_the_attempt(rig: Rig) -> None:
    await rig.apply(rollout={"strategy": "Manual"})
    await rig.until_active(1)
    await rig.apply(rollout={"restart": "now"})
    await rig.until(lambda status: condition(status, "UpToDate") == ("Unknown", "WaitingForApproval"))
    await rig.until_event("WaitingForApproval")
    await rig.until_event("CaughtUp")
    await rig.apply(rollout={"promote": 2})
    await rig.until_active(2)


@pytest.mark.long
async def test_a_settings_error_stalls_and_touches_no_pod(rig: Rig) -> None:
    await rig.apply()
    await rig.until_active(1)
    await rig.apply(config={"colour": 1})
    status = await rig.until(lambda status: condition(status, "Stalled") == ("True", "InvalidConfig"))
    told = next(one["message"] for one in status["conditions"] if one["type"] == "Stalled")
    assert "spec.config.colour: no such setting" in told
    assert await rig.names(STATEFUL_SETS) == {"log-server-g1"}


@pytest.mark.long
async def test_keys_and_revision_that_somebody_deletes_come_back_although_another_operator_made_them(rig: Rig) -> None:
    await rig.apply()
    await rig.until_active(1)
    keys = await rig.kube.get(SECRETS, "log-keys", NAMESPACE)
    await rig.stop_operator()
    await rig.start_operator()
    await rig.apply(rollout={"restart": "seen by the second operator"})
    await rig.until_active(2)
    await rig.kube.delete(SECRETS, "log-keys", NAMESPACE)
    await rig.until_present(SECRETS, "log-keys", other_than=keys["metadata"]["uid"])
    assert (await rig.kube.get(SECRETS, "log-keys", NAMESPACE))["data"] == keys["data"]
    revision = await rig.kube.get(CONTROLLER_REVISIONS, "log-g2", NAMESPACE)
    await rig.kube.delete(CONTROLLER_REVISIONS, "log-g2", NAMESPACE)
    await rig.until_present(CONTROLLER_REVISIONS, "log-g2", other_than=revision["metadata"]["uid"])
    assert (await rig.kube.get(CONTROLLER_REVISIONS, "log-g2", NAMESPACE))["data"] == revision["data"]
    await rig.stop_operator()
    await rig.kube.delete(SECRETS, "log-keys", NAMESPACE)
    await rig.start_operator()
    status = await rig.until(lambda status: condition(status, "Stalled") == ("True", "KeysLost"))
    assert condition(status, "Ready") == ("True", "Serving"), "the pods go on"
    assert await rig.kube.get_or_none(SECRETS, "log-keys", NAMESPACE) is None


@pytest.mark.long
async def test_a_killed_pod_comes_back_by_itself_while_the_operator_is_away(rig: Rig) -> None:
    await rig.apply()
    await rig.until_active(1)
    async with rig.client() as client:
        before = await client.update(b"before")
    await rig.stop_operator()
    await rig.kill_pod("log-server-g1-0")
    async with rig.client() as client:
        assert await client.update(b"after") > before
        assert b"before" in [bytes(entry.data) async for entry in client.entries()]


@pytest.mark.parametrize(("policy", "kept"), [("Delete", set()), ("Retain", {"data-log-server-g1-0"})])
async def test_a_deletion_takes_all_along_and_the_volumes_as_asked(rig: Rig, policy: str, kept: set[str]) -> None:
    await rig.apply(deletionPolicy=policy)
    await rig.until_active(1)
    await rig.kube.delete(RAFT_CLUSTERS, NAME, NAMESPACE)
    await rig.until_gone(RAFT_CLUSTERS, NAME)
    for resource in (PODS, STATEFUL_SETS, SERVICES, CONTROLLER_REVISIONS):
        await rig.until_gone(resource, NAME)
    assert await rig.names(VOLUME_CLAIMS) == kept


async def test_what_a_log_refers_to_is_not_deleted_before_it(rig: Rig) -> None:
    await rig.apply(suspend=True)
    await rig.until(lambda status: condition(status, "Ready"))
    spec = {"suspend": True, "metadata": {"raftClusterRef": {"name": NAME}}}
    await rig.kube.apply(WALTZ_CLUSTERS, {"metadata": {"name": "ledger"}, "spec": spec}, NAMESPACE, manager="test")
    await rig.kube.delete(RAFT_CLUSTERS, NAME, NAMESPACE)
    status = await rig.until(lambda status: condition(status, "InUse") == ("True", "Referenced"))
    assert "WaltzCluster/ledger" in str(status["conditions"])
    await rig.until_event("InUse")
    await rig.kube.delete(WALTZ_CLUSTERS, "ledger", NAMESPACE)
    await rig.until_gone(RAFT_CLUSTERS, NAME)


@pytest.mark.long
async def test_a_namesake_counts_on_where_the_volumes_of_the_former_one_end(rig: Rig) -> None:
    await rig.apply()
    await rig.until_active(1)
    await rig.kube.delete(RAFT_CLUSTERS, NAME, NAMESPACE)
    await rig.until_gone(RAFT_CLUSTERS, NAME)
    await rig.apply()
    status = await rig.until_active(2)
    assert status["configuration"]["old"] == ["log-server-g2-0"]
    assert await rig.names(VOLUME_CLAIMS) == {"data-log-server-g1-0", "data-log-server-g2-0"}


@pytest.mark.long
async def test_an_upgrade_of_the_operator_restarts_no_pod_and_changes_no_template(rig: Rig) -> None:
    """Another default image, other templates: both count from the next generation on (2.2, 9.8)."""

    async def pods() -> list[tuple[str, str, int]]:
        items = (await rig.kube.list(PODS, NAMESPACE)).items
        return [(pod["metadata"]["name"], pod["metadata"]["uid"], restarts(pod)) for pod in items]

    async def sets() -> list[tuple[str, int, Object]]:
        items = (await rig.kube.list(STATEFUL_SETS, NAMESPACE)).items
        return [(one["metadata"]["uid"], one["metadata"]["generation"], one["spec"]["template"]) for one in items]

    def restarts(pod: Object) -> int:
        return sum(each["restartCount"] for each in pod["status"]["containerStatuses"])

    await rig.apply(replicas=3)
    await rig.until_active(1)
    before = await pods(), await sets()
    assert await rig.stop_operator() == 0
    await rig.start_operator("tests.operator.changed_release", PAVANE_DEFAULT_IMAGE="pavane:next")
    await rig.apply(rollout={"deadline": "1h"})
    generation = (await rig.kube.get(RAFT_CLUSTERS, NAME, NAMESPACE))["metadata"]["generation"]
    await rig.until(lambda status: status.get("observedGeneration") == generation)
    assert (await pods(), await sets()) == before

    await rig.apply(rollout={"restart": "now"})
    await rig.until_active(2)
    ((_, _, template),) = await sets()
    assert template["metadata"]["annotations"][MARK] == "a later release"
    assert template["spec"]["containers"][0]["image"] == "pavane:next"


@pytest.mark.long
async def test_a_template_that_somebody_changed_is_told_and_rolls_nothing(rig: Rig) -> None:
    await rig.apply()
    await rig.until_active(1)
    before = (await rig.kube.get(PODS, "log-server-g1-0", NAMESPACE))["metadata"]["uid"]
    change = [{"op": "replace", "path": "/spec/template/spec/terminationGracePeriodSeconds", "value": 77}]
    await rig.kube.patch(STATEFUL_SETS, "log-server-g1", change, NAMESPACE, manager="somebody")
    await rig.until_event("TemplateDrift")
    changed = await rig.kube.get(STATEFUL_SETS, "log-server-g1", NAMESPACE)
    assert changed["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 77
    assert (await rig.kube.get(PODS, "log-server-g1-0", NAMESPACE))["metadata"]["uid"] == before


async def test_an_idle_resource_costs_no_write(rig: Rig) -> None:
    """A restart of the operator and a repeated apply change no child (docs/specs/operator.md 9.7)."""

    async def versions() -> dict[str, str]:
        found = {}
        for resource in (CONFIG_MAPS, CONTROLLER_REVISIONS, SERVICES, STATEFUL_SETS):
            for item in (await rig.kube.list(resource, NAMESPACE)).items:
                found[f"{resource.plural}/{item['metadata']['name']}"] = item["metadata"]["resourceVersion"]
        return found

    await rig.apply()
    await rig.until_active(1)
    before = await versions()
    assert await rig.stop_operator() == 0
    stored = await rig.kube.get(RAFT_CLUSTERS, NAME, NAMESPACE)
    await rig.start_operator()
    await rig.until_operator_ready()
    await rig.until_metric('pavane_operator_reconciles_total{kind="RaftCluster",outcome="waiting"}')
    assert await rig.kube.get(RAFT_CLUSTERS, NAME, NAMESPACE) == stored
    await rig.apply(rollout={"deadline": "1h"})
    generation = (await rig.kube.get(RAFT_CLUSTERS, NAME, NAMESPACE))["metadata"]["generation"]
    await rig.until(lambda status: status.get("observedGeneration") == generation)
    assert await versions() == before


async def test_a_child_that_somebody_deleted_comes_back(rig: Rig) -> None:
    await rig.apply()
    await rig.until_active(1)
    for resource, name in ((SERVICES, "log-server-g1"), (SERVICES, "log"), (CONFIG_MAPS, "log-live")):
        former = (await rig.kube.get(resource, name, NAMESPACE))["metadata"]["uid"]
        await rig.kube.delete(resource, name, NAMESPACE)
        await rig.until_present(resource, name, other_than=former)


@pytest.mark.long
async def test_what_belongs_to_somebody_else_is_not_taken_over(rig: Rig) -> None:
    theirs = {"metadata": {"name": "log-live"}, "data": {"precious": "yes"}}
    await rig.kube.create(CONFIG_MAPS, theirs, NAMESPACE)
    await rig.apply()
    status = await rig.until(lambda status: "NotOurs" in blockers(status))
    told = next(one["message"] for one in status["rollout"]["blockers"] if one["reason"] == "NotOurs")
    assert "ConfigMap log-live exists and does not belong to RaftCluster log: delete it" in told
    assert (await rig.kube.get(CONFIG_MAPS, "log-live", NAMESPACE))["data"] == {"precious": "yes"}
    await rig.kube.delete(CONFIG_MAPS, "log-live", NAMESPACE)
    await rig.until_active(1)


async def test_a_hot_standby_takes_over_as_soon_as_the_leader_ends_in_order(rig: Rig) -> None:
    await rig.apply()
    await rig.until_active(1)
    leader, rig.operator = rig.operator, None
    assert leader is not None
    await rig.start_operator(POD_UID="another-pod")
    assert await rig.until_operator_ready() == "ok\n"
    assert "pavane_operator_leader 0\n" in await rig.metrics()
    leader.terminate()
    assert await leader.wait() == 0
    await rig.until_lease(transitions=2)
    await rig.apply(rollout={"restart": "now"})
    await rig.until_active(2)
    assert "pavane_operator_leader 1\n" in await rig.metrics()


@pytest.mark.long
async def test_a_leader_that_was_frozen_ends_and_undoes_nothing(rig: Rig) -> None:
    """A later operator has the Lease when the first one wakes: it must be gone before it does anything."""
    await rig.apply()
    await rig.until_active(1)
    frozen, rig.operator = rig.operator, None
    assert frozen is not None
    frozen.send_signal(signal.SIGSTOP)
    await rig.start_operator(POD_UID="another-pod")
    await rig.until_lease(transitions=2)
    await rig.apply(rollout={"restart": "now"})
    await rig.until_active(2)
    frozen.send_signal(signal.SIGCONT)
    async with asyncio.timeout(30):
        assert await frozen.wait() == 3
    status = await rig.until_active(2)
    assert [entry["result"] for entry in status["history"]] == ["Promoted", "Promoted"]
    lease = await rig.kube.get(LEASES, "pavane-operator", "pavane-system")
    assert lease["spec"]["holderIdentity"].startswith("another-pod_")


@pytest.mark.long
async def test_a_leader_without_api_server_is_gone_before_another_one_acts(rig: Rig) -> None:
    await rig.stop_operator()
    async with a_proxy(rig.local.kubeconfig.read_text(), lambda: None) as (proxy, kubeconfig):
        (rig.folder / "kubeconfig").write_text(kubeconfig)
        await rig.start_operator(KUBECONFIG=str(rig.folder / "kubeconfig"))
        await rig.apply()
        await rig.until_active(1)
        leader, rig.operator = rig.operator, None
        assert leader is not None
        await rig.start_operator(POD_UID="another-pod")
        await rig.until_operator_ready()
        proxy.cut_off = True
        assert await leader.wait() == 3
    lease = await rig.kube.get(LEASES, "pavane-operator", "pavane-system")
    assert lease["spec"]["holderIdentity"].startswith("the-same-pod_")
    await rig.apply(rollout={"restart": "now"})
    await rig.until_active(2)
    lease = await rig.kube.get(LEASES, "pavane-operator", "pavane-system")
    assert lease["spec"]["holderIdentity"].startswith("another-pod_")


@pytest.mark.long
async def test_an_operator_of_one_namespace_looks_after_no_other(rig: Rig) -> None:
    await rig.stop_operator()
    await rig.kube.create(NAMESPACES, {"metadata": {"name": "elsewhere"}})
    await rig.start_operator(PAVANE_WATCH_NAMESPACES=f"{NAMESPACE}, unused")
    other = {"metadata": {"name": NAME}, "spec": {"stateMachine": "Broadcast", "replicas": 1}}
    await rig.kube.apply(RAFT_CLUSTERS, other, "elsewhere", manager="pavane-cli")
    await rig.apply()
    await rig.until_active(1)
    assert "status" not in await rig.kube.get(RAFT_CLUSTERS, NAME, "elsewhere")


async def test_an_operator_with_wrong_settings_says_which(rig: Rig) -> None:
    await rig.stop_operator()
    await rig.start_operator(PAVANE_IMAGE_PULL_LIMIT="soon")
    assert rig.operator is not None
    assert await rig.operator.wait() == 2
    assert "PAVANE_IMAGE_PULL_LIMIT" in (rig.folder / "operator.log").read_text()
