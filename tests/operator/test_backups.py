"""Backups are made one at a time of each cluster, once, and say what came of them (docs/specs/operator.md 1.10)."""

import copy
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pavane.pods.main import program_of
from pavane_local.api.cluster import DEFINITIONS, DeleteOptions
from pavane_operator.crds.backup import BackupSpec, BackupStatus, Phase
from pavane_operator.crds.definitions import definitions
from pavane_operator.crds.status import Condition, Truth
from pavane_operator.kinds.backup.deciding import ATTEMPTS_MAX, DEADLINE, Decision, decide, turns
from pavane_operator.kinds.backup.keeping import BACKUPS, Backups
from pavane_operator.kinds.backup.pod import render
from pavane_operator.kinds.backup.scheduling import due, surplus
from pavane_operator.kinds.backup.scheduling import told as told_of
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.podless import Around
from pavane_operator.kube import Forbidden, Invalid, KubeClient, KubeError, Target
from pavane_operator.kube.resources import PODS, Object, Resource
from pavane_operator.plan.model import OwnCondition
from tests.local.api_server import Server, a_server
from tests.operator.restricted import violations

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CLUSTER: Object = {
    "kind": "RaftCluster",
    "metadata": {"name": "q", "namespace": "default", "uid": "c0ffee00-0123"},
    "spec": {"secretRef": {"name": "mine", "key": "ident"}, "nodeSelector": {"disk": "big"}},
    "status": {"activeGeneration": 3},
}
MADE = {"index": 71, "bytes": 4096, "digest": "ab12", "kept": ""}
DEFAULTS = RenderDefaults("pavane:1", "1", None, b"", "system")


def backup(name: str, created: datetime = NOW, status: BackupStatus | None = None, of: str = "q") -> Object:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}-0123456789", "generation": 1}
    body: Object = {"metadata": {**metadata, "creationTimestamp": created.isoformat()}}
    body["spec"] = {"of": {"name": of}, "url": "s3://store/q/"}
    return body if status is None else {**body, "status": status.dump()}


def pod(phase: str, message: str = "", **more: Any) -> Object:
    state = {"terminated": {"exitCode": int(phase == "Failed"), "message": message}}
    own = {"name": "raft", "state": state if phase in ("Succeeded", "Failed") else {"running": {}}}
    return {"metadata": {}, "status": {"phase": phase, "containerStatuses": [own], **more}}


def running(attempt: int = 1, **more: Any) -> BackupStatus:
    return BackupStatus(phase=Phase.RUNNING, attempt=attempt, started_at=NOW, **more)


def decided(body: Object, seen: Object | None = None, cluster: Object | None = CLUSTER, **options: Any) -> Decision:
    return decide(body, options.get("first", body), cluster, seen, options.get("now", NOW))


def told(decision: Decision) -> tuple[str | None, str, str]:
    """Phase, the reason that both conditions give, and the message."""
    complete, failed = decision.status.conditions
    phase = decision.status.phase
    assert (complete.status.value, failed.status.value) == (str(phase is Phase.COMPLETE), str(phase is Phase.FAILED))
    assert complete.reason == failed.reason
    return phase and phase.value, complete.reason, complete.message


def changed(body: Object, path: str, value: object) -> Object:
    found = copy.deepcopy(body)
    inner = found
    *folders, name = path.split(".")
    for each in folders:
        inner = inner[each]
    inner[name] = value
    return found


def test_it_begins_once_its_cluster_serves_and_nothing_else_copies_it() -> None:
    begun = decided(backup("a"))
    assert told(begun) == ("Running", "Copying", "")
    assert begun.start
    assert (begun.status.attempt, begun.status.started_at) == (1, NOW)
    assert begun.status.url == "s3://store/q/c0ffee00-a-uid-a-01", "a folder that no other Backup has"
    for cluster, reason in (
        (None, "ClusterMissing"),
        (changed(CLUSTER, "metadata.deletionTimestamp", "2026-01-01T00:00:00Z"), "ClusterMissing"),
        (changed(CLUSTER, "spec.suspend", value=True), "ClusterSuspended"),
        (changed(CLUSTER, "status", {}), "ClusterNotReady"),
    ):
        waiting = decided(backup("a"), cluster=cluster)
        assert told(waiting)[:2] == ("Pending", reason)
        assert not waiting.start
    behind = decided(backup("b"), first=backup("a"))
    assert told(behind) == ("Pending", "OneAtATime", "Backup a of RaftCluster q is first")


def test_whose_turn_it_is() -> None:
    late = NOW + timedelta(minutes=1)
    ended = backup("a", status=BackupStatus(phase=Phase.COMPLETE))
    bodies = [backup("c", late), ended, backup("d"), backup("r", late, of="other")]
    assert {key[2]: body["metadata"]["name"] for key, body in turns(bodies).items()} == {"q": "d", "other": "r"}
    bodies.append(backup("z", late, status=running()))
    assert turns(bodies)["default", "RaftCluster", "q"]["metadata"]["name"] == "z", (
        "one that runs comes before an older one"
    )


def test_a_pod_that_was_lost_is_made_again_and_its_result_is_taken_over() -> None:
    body = backup("a", status=running())
    assert decided(body).start, "the operator was killed behind the status, or the node went"
    assert not decided(body, pod("Running")).start
    done = decided(body, pod("Succeeded", json.dumps(MADE)))
    assert told(done) == ("Complete", "Verified", "everything up to entry 71, read back and compared")
    status = done.status
    assert (status.index, status.bytes, status.digest, status.completed_at) == (71, 4096, "ab12", NOW)
    kept = decided(body, pod("Succeeded", json.dumps({**MADE, "digest": "", "kept": "the store is away"})))
    assert kept.status.phase is Phase.COMPLETE
    assert kept.status.digest is None, "a machine without state"
    assert told(kept)[2].endswith("older backups were not deleted: the store is away")


def test_an_attempt_that_failed_is_followed_by_another_and_the_last_one_says_why() -> None:
    body = backup("a", status=running())
    again = decided(body, pod("Failed", "listing s3://store: no answer"))
    assert told(again) == ("Running", "Retrying", f"attempt 1 of {ATTEMPTS_MAX} failed: listing s3://store: no answer")
    assert again.status.attempt == 2
    assert again.status.retry_at is not None
    assert again.status.retry_at > NOW
    body = backup("a", status=again.status)
    assert not decided(body).start, "not before its time"
    begun = decided(body, now=again.status.retry_at)
    assert begun.start
    assert told(begun) == told(again), "what failed stays to be read"
    assert told(decided(body, pod("Running"))) == told(again)
    lost = decided(backup("a", status=running()), pod("Succeeded"))
    assert told(lost)[2].endswith("failed: its pod was ended before it was done"), "told to end by a drain"
    last = decided(backup("a", status=running(ATTEMPTS_MAX)), pod("Failed", "no such bucket"))
    assert told(last) == (
        "Failed",
        "AttemptsFailed",
        f"{ATTEMPTS_MAX} attempts failed, the last: no such bucket; correct what it names and create another Backup",
    )
    assert last.status.completed_at == NOW
    evicted = pod("Failed", reason="Evicted", message="the node was low on disk")
    assert "the node was low on disk" in told(decided(backup("a", status=running()), evicted))[2]


def test_every_wait_has_an_end() -> None:
    late = NOW + DEADLINE + timedelta(seconds=1)
    for status, cluster in ((None, None), (running(), CLUSTER)):
        over = decided(backup("a", status=status), pod("Running"), cluster, now=late)
        assert told(over)[:2] == ("Failed", "DeadlineExceeded")
    held = decided(backup("a"), cluster=None)
    over = decided(backup("a", status=held.status), cluster=None, now=late)
    assert "there is no RaftCluster q" in told(over)[2]
    assert told(decided(backup("a", status=running()), cluster=None))[:2] == ("Failed", "ClusterMissing")


def test_its_own_container_counts_whatever_runs_beside_it_and_however_late_it_is_seen() -> None:
    body, late = backup("a", status=running()), NOW + DEADLINE + timedelta(days=1)
    beside = {"name": "proxy", "state": {"running": {}}}
    left = {"name": "init", "state": {"terminated": {"exitCode": 0, "message": "of the proxy"}}}
    for phase, message, reason in (("Succeeded", json.dumps(MADE), "Verified"), ("Failed", "no room", "Retrying")):
        seen = pod(phase, message)
        seen["status"] = {"phase": "Running", "containerStatuses": [left, *seen["status"]["containerStatuses"], beside]}
        assert told(decided(body, seen))[1] == reason, "a container beside it keeps the pod Running for ever"
    seen["status"]["containerStatuses"][1]["state"] = {"running": {}}
    assert told(decided(body, seen))[1] == "Copying"
    done = pod("Succeeded", json.dumps(MADE))
    assert told(decided(body, done, now=late))[:2] == ("Complete", "Verified"), "no operator ran meanwhile"
    assert told(decided(body, pod("Failed", "no room"), now=late))[:2] == ("Failed", "DeadlineExceeded")


def test_a_pod_whose_node_is_gone_is_an_attempt_that_failed() -> None:
    body = backup("a", status=running())
    gone = changed(pod("Running"), "metadata.deletionTimestamp", NOW.isoformat())
    assert told(decided(body, gone, now=NOW + timedelta(seconds=50)))[1] == "Copying"
    again = decided(body, gone, now=NOW + timedelta(seconds=70))
    assert told(again)[1:] == ("Retrying", f"attempt 1 of {ATTEMPTS_MAX} failed: its pod was ended before it was done")
    assert again.status.attempt == 2


def test_a_pod_that_does_not_start_is_explained() -> None:
    waiting = {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    stuck: Object = {"status": {"phase": "Pending", "containerStatuses": [waiting]}}
    assert told(decided(backup("a", status=running()), stuck)) == (
        "Running",
        "PodPending",
        "ErrImagePull: no such image",
    )


def test_a_pod_that_waits_without_a_reason_is_explained_after_a_minute() -> None:
    waiting = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    stuck: Object = {"status": {"phase": "Pending", "startTime": NOW.isoformat(), "containerStatuses": [waiting]}}
    body, late = backup("a", status=running()), NOW + timedelta(seconds=70)
    assert told(decided(body, stuck, now=NOW + timedelta(seconds=50)))[1] == "Copying"
    words = "its volumes or its image are not there yet"
    assert told(decided(body, stuck, now=late)) == ("Running", "PodPending", words)
    named = changed(body, "spec.secretName", "store")
    assert told(decided(named, stuck, now=late))[2] == f"{words}: is there a Secret store?"


def test_its_pod_is_that_of_the_product_where_the_members_may_run_and_has_no_rights() -> None:
    body = changed(changed(backup("a"), "spec.secretName", "store"), "spec.keep", 3)
    url = "s3://store/q/c0ffee00-a-uid-a-01"
    made = render(body, changed(CLUSTER, "metadata.uid", "another"), running(2, url=url), DEFAULTS)
    assert (made["metadata"]["name"], made["spec"]["restartPolicy"]) == ("a-backup-2", "Never")
    assert made["metadata"]["ownerReferences"][0]["uid"] == body["metadata"]["uid"], "it goes with the Backup"
    spec = made["spec"]
    (container,) = spec["containers"]
    assert (container["image"], spec["nodeSelector"]) == ("pavane:1", {"disk": "big"})
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("q", False)
    assert violations(spec) == []
    told = {each["name"]: each.get("value") for each in container["env"]}
    assert told["PAVANE_BACKUP_URL"] == "s3://store/q"
    assert told["PAVANE_BACKUP_NAME"] == "c0ffee00-a-uid-a-01", "that of its status"
    assert told["PAVANE_BACKUP_PEERS"] == "tcp://q.default.svc:8047"
    assert told["PAVANE_BACKUP_KEEP"] == "3"
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    secrets = {each["name"]: each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each}
    assert secrets == {"keys": "q-keys", "secret": "mine", "store": "store"}
    assert told["PAVANE_RAFT_SECRET_FILE"] == f"{mounted['secret']}/ident", "the ident that the user gave"
    assert program_of(told["PAVANE_KIND"] or "", told["PAVANE_ROLE"] or "") == "pavane.pods.backup_raft"


def test_its_pod_keeps_to_the_nodes_of_the_members_and_not_away_from_the_members() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "q"}}}
    pods = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    on = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
    affinity = {"nodeAffinity": on, "podAffinity": pods, "podAntiAffinity": pods}
    made = render(backup("a"), changed(CLUSTER, "spec.affinity", affinity), running(), DEFAULTS)
    assert made["spec"]["affinity"] == {"nodeAffinity": on}
    assert (
        "affinity"
        not in render(backup("a"), changed(CLUSTER, "spec.affinity", {"podAffinity": pods}), running(), DEFAULTS)[
            "spec"
        ]
    )


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with a_server(tmp_path) as running:
        for definition in definitions():
            await running.cluster.create(DEFINITIONS, copy.deepcopy(definition))
        yield running


@pytest.fixture
async def kube(server: Server) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(Target(server.api.kubeconfig)) as client:
        yield client


class Killed(KubeError):
    """The operator ends before, or behind, this call."""


class Dying:
    """The client of an operator that is killed at one of its calls; `behind`: after the server has carried it out."""

    def __init__(self, kube: KubeClient, at: int, *, behind: bool) -> None:
        self._kube, self._left, self._behind = kube, at, behind
        self.died = False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._kube, name)

        async def counted(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                self.died = True
            if self.died and not self._behind:
                raise Killed("killed", status=500, reason="Killed")
            found = await call(*arguments, **options)
            if self.died:
                self._behind = False  # it makes no further call
                raise Killed("killed", status=500, reason="Killed")
            return found

        return counted


class Stage:
    """The API server, and what a kubelet does that ends every pod as told."""

    def __init__(self, server: Server, kube: KubeClient, ends: Iterator[tuple[str, str]]) -> None:
        self.server = server
        self.kube = kube
        self.pods: Sequence[Object] = ()
        self.made: list[str] = []
        self.now = NOW
        self.cluster = CLUSTER
        self.condition: OwnCondition | None = None
        self._ends = ends

    def known(self, resource: Resource) -> list[Object]:
        return [self.cluster] if self.cluster["kind"] == resource.kind else []

    def tell(self, _: Object, conditions: tuple[OwnCondition, ...]) -> None:
        self.condition = conditions[0] if conditions else None

    def around(self, kube: Any, http: httpx2.AsyncClient) -> Around:
        def members(_: str, __: str, name: str) -> list[tuple[Resource, Object]]:
            own = "app.kubernetes.io/instance"
            return [(PODS, each) for each in self.pods if each["metadata"]["labels"][own] == name]

        return Around(kube, http, members, lambda: self.now, DEFAULTS, self.known, self.tell)

    async def turn(self) -> None:
        """A while passes: pods that run end, and the watch tells of them a turn later."""
        self.now += timedelta(minutes=5)
        self.pods = (await self.kube.list(PODS, "default")).items
        runs = [each for each in self.pods if each["status"]["phase"] == "Pending"]
        assert len(runs) <= 1, "never two of one cluster at a time"
        for each in self.pods:
            name = each["metadata"]["name"]
            if each["metadata"].get("deletionTimestamp"):
                await self.server.cluster.delete("pods", "default", name, DeleteOptions(grace_seconds=0))
            elif each in runs:
                self.made.append(name)
                phase, message = next(self._ends)
                patch = {"metadata": {"name": name}, "status": pod(phase, message)["status"]}
                await self.kube.apply(PODS, patch, "default", manager="kubelet", subresource="status", force=True)


@pytest.mark.parametrize("behind", [False, True])
async def test_an_operator_that_is_killed_at_any_call_leaves_nothing_undone_and_does_nothing_twice(
    server: Server, kube: KubeClient, behind: bool
) -> None:
    names = ("first", "second")
    async with httpx2.AsyncClient() as http:
        for at in range(40):
            ends = iter([("Failed", "the store is away"), *[("Succeeded", json.dumps(MADE))] * 9])
            stage = Stage(server, kube, ends)
            for name in names:
                body = {"metadata": {"name": name}, "spec": {"of": {"name": "q"}, "url": "s3://store/q"}}
                await kube.create(BACKUPS, body, "default")
            dying = Dying(kube, at, behind=behind)
            keeper = Backups(stage.around(dying, http))
            for _ in range(20):
                with suppress(KubeError):
                    await keeper.look()
                if dying.died:
                    keeper = Backups(stage.around(kube, http))
                keeper.changed()
                await stage.turn()
            for name in names:
                status = (await kube.get(BACKUPS, name, "default"))["status"]
                assert (status["phase"], status["index"]) == ("Complete", 71), (at, name)
                await kube.delete(BACKUPS, name, "default")
            assert not stage.pods, "what has ended is cleared away"
            assert len(stage.made) == 3, "one that failed, and one of each Backup"
            if not dying.died:
                assert at > 8, "there are calls to be killed at"
                return
    raise AssertionError("it makes more calls than were tried")


async def test_a_backup_cannot_be_changed_and_a_finished_one_is_not_run_again(server: Server, kube: KubeClient) -> None:
    body = {"metadata": {"name": "a"}, "spec": {"of": {"name": "q"}, "url": "s3://store/q"}}
    await kube.create(BACKUPS, body, "default")
    with pytest.raises(Invalid, match="a Backup is made once: create another one"):
        await kube.patch(BACKUPS, "a", {"spec": {"url": "s3://store/other"}}, "default")
    done = BackupStatus(phase=Phase.COMPLETE)
    await kube.apply_status(BACKUPS, {"metadata": {"name": "a"}, "status": done.dump()}, "default")
    async with httpx2.AsyncClient() as http:
        stage = Stage(server, kube, iter(()))
        keeper = Backups(stage.around(kube, http))
        await keeper.look()
        await stage.turn()
        assert stage.made == []


class Refusing:
    """The client of an operator whose pods the API server refuses, as long as `error` is there."""

    def __init__(self, kube: KubeClient, error: KubeError) -> None:
        self._kube = kube
        self.error: KubeError | None = error
        self.written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kube, name)

    async def create(self, resource: Resource, *arguments: Any) -> Any:
        if resource == PODS and self.error:
            raise self.error
        return await self._kube.create(resource, *arguments)

    async def apply_status(self, *arguments: Any) -> Any:
        self.written += 1
        return await self._kube.apply_status(*arguments)


@pytest.mark.parametrize("error", [Forbidden("exceeded quota: pods=0"), Invalid("spec.containers: no")])
async def test_a_pod_that_is_refused_is_told_and_tried_again(
    server: Server, kube: KubeClient, error: KubeError
) -> None:
    body = {"metadata": {"name": "a"}, "spec": {"of": {"name": "q"}, "url": "s3://store/q"}}
    await kube.create(BACKUPS, body, "default")
    async with httpx2.AsyncClient() as http:
        stage = Stage(server, kube, iter([("Succeeded", json.dumps(MADE))]))
        refusing: Any = Refusing(kube, error)
        keeper = Backups(stage.around(refusing, http))

        async def seen(turns: int) -> tuple[str, str]:
            for _ in range(turns):
                await keeper.look()
                await stage.turn()
            (complete, _) = (await kube.get(BACKUPS, "a", "default"))["status"]["conditions"]
            return complete["reason"], complete["message"]

        assert await seen(4) == ("PodRefused", str(error))
        assert refusing.written == 2, "the start, and what was refused"
        refusing.error = None
        assert (await seen(4))[0] == "Verified"


NIGHTLY = {"schedule": "30 2 * * *", "url": "s3://store/q", "secretName": "store", "keep": 2}
SCHEDULED = changed(CLUSTER, "spec", {"backup": NIGHTLY})


def of_schedule(day: int, phase: Phase | None, message: str = "") -> Object:
    """The Backup of a night, as it stands."""
    at = datetime(2026, 1, day, 2, 30, tzinfo=UTC)
    conditions = [Condition(type="Failed", status=Truth.TRUE, last_transition_time=at, reason="r", message=message)]
    ended = at if phase in (Phase.COMPLETE, Phase.FAILED) else None
    status = BackupStatus(phase=phase, completed_at=ended, conditions=conditions if message else [])
    body = backup(f"q-2601{day:02}0230", at, status)
    return changed(body, "metadata.labels", {"pavane.dev/scheduled-for": "q"})


def test_what_is_due_of_a_schedule() -> None:
    made = due(SCHEDULED, [], NOW)
    assert made is not None, "the first is made at once"
    labels = {"pavane.dev/scheduled-for": "q"}
    assert made["metadata"] == {"name": "q-2601010230", "namespace": "default", "labels": labels}
    store = {"url": "s3://store/q", "secretName": "store", "keep": 2}
    assert made["spec"] == {"of": {"kind": "RaftCluster", "name": "q"}, **store}
    BackupSpec.read(made["spec"])
    done = [of_schedule(1, Phase.COMPLETE)]
    assert due(SCHEDULED, done, NOW) is None
    assert due(SCHEDULED, done, NOW + timedelta(hours=14)) is None
    later = due(SCHEDULED, done, NOW + timedelta(days=5))
    assert later is not None
    assert later["metadata"]["name"] == "q-2601060230", "of those that were missed the last"
    failed = [of_schedule(1, Phase.FAILED)]
    assert due(SCHEDULED, failed, NOW) is None, "the next is due in its turn"
    assert due(SCHEDULED, failed, NOW + timedelta(days=1)) is not None
    for phase in (None, Phase.PENDING, Phase.RUNNING):
        assert due(SCHEDULED, [of_schedule(1, phase)], NOW + timedelta(days=1)) is None, "never two at a time"
    found = due(changed(SCHEDULED, "spec.backup.timeZone", "Asia/Tokyo"), [], NOW)
    assert found is not None
    assert found["metadata"]["name"] == "q-2512311730"
    for cluster in (
        CLUSTER,
        changed(SCHEDULED, "status", {}),
        changed(SCHEDULED, "spec.suspend", value=True),
        changed(SCHEDULED, "metadata.deletionTimestamp", "2026-01-01T00:00:00Z"),
        changed(SCHEDULED, "spec.backup.schedule", "61 * * * *"),
    ):
        assert due(cluster, [], NOW) is None


def test_a_changed_schedule_makes_no_backup_of_a_time_before_the_newest() -> None:
    nights = [of_schedule(day, Phase.COMPLETE) for day in range(1, 15)]
    monthly = changed(changed(SCHEDULED, "spec.backup.schedule", "0 0 1 * *"), "spec.backup.keep", 14)
    assert due(monthly, nights, NOW + timedelta(days=13)) is None, "it would be deleted as the oldest, and made again"
    assert surplus(monthly, nights) == []
    later = due(monthly, nights, NOW + timedelta(days=31))
    assert later is not None
    assert later["metadata"]["name"] == "q-2602010000"


def test_two_clusters_with_long_names_have_backups_of_different_names() -> None:
    names = set()
    for end in "ab":
        cluster = changed(SCHEDULED, "metadata.name", f"{'x' * 31}{end}")
        made = due(cluster, [], NOW)
        assert made is not None
        assert len(made["metadata"]["name"]) <= 32
        names.add(made["metadata"]["name"])
    assert len(names) == 2


def test_the_newest_good_backups_stay_however_many_failed_since() -> None:
    good, bad = Phase.COMPLETE, Phase.FAILED
    phases = {1: good, 2: good, 3: good, 4: bad, 5: bad, 6: bad, 7: None}
    bodies = [of_schedule(day, phase) for day, phase in phases.items()]
    own = changed(backup("by-hand", status=BackupStatus(phase=Phase.FAILED)), "metadata.labels", {})
    gone = {each["metadata"]["name"] for each in surplus(SCHEDULED, [*bodies, own])}
    assert gone == {"q-2601010230", "q-2601040230"}
    assert surplus(CLUSTER, bodies) == [], "without a schedule nothing is cleared away"


def test_a_cluster_says_that_its_last_backup_failed_since_when_and_which_was_good() -> None:
    def says(*bodies: Object, cluster: Object = SCHEDULED) -> tuple[bool | None, str, str]:
        (condition,) = told_of(cluster, bodies, NOW)
        assert condition.type == "BackupFailed"
        return condition.status, condition.reason, condition.message

    good, away = of_schedule(1, Phase.COMPLETE), "the store is away"
    assert told_of(CLUSTER, [good], NOW) == ()
    assert says() == (False, "NoneYet", "")
    assert says(good) == (False, "LastVerified", "the last good one is q-2601010230 of 2026-01-01 02:30 UTC")
    failed = [of_schedule(day, Phase.FAILED, away) for day in (2, 3)]
    status, reason, message = says(good, *failed, of_schedule(4, Phase.RUNNING))
    assert (status, reason) == (True, "LastFailed")
    assert message == (
        "2 in a row since q-2601020230 of 2026-01-02 02:30 UTC; Backup q-2601030230 of 2026-01-03 02:30 UTC: "
        "the store is away; the last good one is q-2601010230 of 2026-01-01 02:30 UTC"
    )
    assert says(*failed[:1])[2].endswith("the store is away; there is no good one")
    assert says(good, *failed, of_schedule(4, Phase.COMPLETE))[:2] == (False, "LastVerified")
    renamed = changed(of_schedule(4, Phase.FAILED, away), "metadata.name", "q-2512010000")
    assert says(good, of_schedule(3, Phase.COMPLETE), renamed)[1] == "LastFailed", "the newest by its time"
    for text, words in (("61 * * * *", "'61' is no minute"), ("0 0 30 2 *", "names no day that comes")):
        status, reason, message = says(cluster=changed(SCHEDULED, "spec.backup.schedule", text))
        assert (status, reason) == (True, "InvalidSchedule")
        assert words in message


async def test_a_schedule_goes_on_behind_a_run_that_failed(server: Server, kube: KubeClient) -> None:
    good, bad = ("Succeeded", json.dumps(MADE)), ("Failed", "the store is away")
    async with httpx2.AsyncClient() as http:
        stage = Stage(server, kube, iter([good, *[bad] * ATTEMPTS_MAX, good, good, good]))
        stage.cluster = SCHEDULED
        keeper = Backups(stage.around(kube, http))
        seen = []
        for night in range(5):
            stage.now = NOW + timedelta(days=night)
            for _ in range(30):
                await keeper.look()
                await stage.turn()
            assert stage.condition is not None
            seen.append((stage.condition.status, stage.condition.reason))
        fine = (False, "LastVerified")
        assert seen == [fine, (True, "LastFailed"), fine, fine, fine]
        left = [each["status"]["phase"] for each in (await kube.list(BACKUPS, "default")).items]
        assert left == ["Complete", "Complete"], "older ones are cleared away"
