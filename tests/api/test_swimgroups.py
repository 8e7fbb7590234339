"""SwimGroups over REST: the same endpoints as those of RaftClusters, and who is in the group."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pavane.runtime.ops import OpsServer
from pavane.runtime.process import Process
from pavane.swim.config import Config, id_of_name
from pavane.swim.control import members_json
from pavane.swim.member import SwimMember
from pavane_api.kinds import SWIM_GROUPS
from pavane_operator.kube.resources import CONTROLLER_REVISIONS
from tests.api.plane import Plane, plane
from tests.services.eventually import eventually
from tests.services.pods.raft_pods import claimed_address
from tests.services.swim.test_member import FAST

BASE = "/api/v1/namespaces/default/swimgroups"
POD = "q-member-g1-0"


async def created(api: Plane, **spec: Any) -> Any:
    document = {"metadata": {"name": "q"}, "spec": spec}
    answer = await api.http.put(f"{BASE}/q", json=document, headers={"If-None-Match": "*"})
    assert answer.status_code == 201, answer.text
    return answer


async def give_status(api: Plane, **status: Any) -> None:
    await api.kube.apply_status(SWIM_GROUPS, {"metadata": {"name": "q"}, "status": status}, "default")


async def test_a_group_is_created_read_changed_and_deleted(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        first = await created(api, replicas=3)
        assert first.json()["kind"] == "SwimGroup"
        assert first.json()["spec"]["encryption"] == "e1"  # the server's default
        listed = (await api.http.get("/api/v1/swimgroups")).json()
        assert [item["metadata"]["name"] for item in listed["items"]] == ["q"]
        assert (await api.http.get("/api/v1/raftclusters")).json()["items"] == []

        tag = {"If-Match": first.headers["ETag"]}
        changed = await api.http.patch(f"{BASE}/q", json={"spec": {"profile": "wan"}}, headers=tag)
        assert (changed.status_code, changed.json()["spec"]["profile"]) == (200, "wan")
        wrong = await api.http.patch(f"{BASE}/q", json={"spec": {"capacity": 5}}, headers={"If-Match": "*"})
        assert wrong.status_code == 422
        assert "generations overlap" in wrong.text

        assert (await api.http.delete(f"{BASE}/q", headers={"If-Match": "*"})).status_code == 202
        gone = await api.http.put(f"{BASE}/q", json={"spec": {}}, headers={"If-Match": "*"})
        assert (gone.status_code, "There is no SwimGroup q" in gone.json()["detail"]) == (412, True)


async def test_decisions_about_a_rollout_are_taken_as_of_any_kind(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api, replicas=3, image="new", capacity=40)
        await give_status(api, nextGeneration=3, rollout={"state": "CaughtUp"})
        promoted = await api.http.post(f"{BASE}/q/rollout/promote", headers={"Idempotency-Key": "k"})
        assert (promoted.status_code, promoted.json()) == (202, {"field": "spec.rollout.promote", "value": 3})
        scaled = await api.http.post(f"{BASE}/q/scale", json={"replicas": 4})
        assert (scaled.status_code, scaled.json()["value"]) == (202, 4)
        refused = await api.http.post(f"{BASE}/q/scale", json={"replicas": 30})
        assert (refused.status_code, "generations overlap" in refused.text) == (422, True)
        assert (await api.http.post(f"{BASE}/q/suspend")).status_code == 202

        labels = {"app.kubernetes.io/instance": "q", "pavane.dev/generation": "1"}
        fields = {"image": "old", "capacity": 30}
        revision = {"metadata": {"name": "q-g1", "labels": labels}, "revision": 1, "data": {"fields": fields}}
        await api.kube.create(CONTROLLER_REVISIONS, revision, "default")
        undone = await api.http.post(f"{BASE}/q/rollout/undo", json={"generation": 1})
        assert (undone.status_code, undone.json()["changes"]) == (202, {"image": "old", "capacity": 30})
        spec = (await api.http.get(f"{BASE}/q")).json()["spec"]
        assert (spec["image"], spec["replicas"], spec["suspend"], spec["rollout"]["promote"]) == ("old", 4, True, 3)


@asynccontextmanager
async def pod(api: Plane) -> AsyncIterator[SwimMember]:
    """The only pod of the group: a member in this process, with its ops port, in place of the pods of an operator."""
    process = Process()
    with claimed_address() as address:
        config = Config(id=id_of_name(f"default/{POD}"), profile=FAST, rollout=1)
        async with SwimMember(config, (address, 0)) as member:
            ops = OpsServer(
                host=address,
                live=lambda: None,
                ready=lambda: None,
                metrics=tuple,
                documents={"/members": lambda: members_json(member)},
            )
            await ops.start(process)
            endpoint = {"name": "swim", "address": address, "port": member.bound.port, "protocol": "UDP"}
            generations = [{"number": 1, "role": "Active", "pods": 1, "podsReady": 1}]
            await give_status(api, activeGeneration=1, endpoints=[endpoint], generations=generations)
            try:
                yield member
            finally:
                await ops.stop()
                await process.cancel_tasks()


async def test_members_are_those_that_a_pod_sees_with_the_foreign_ones_among_them(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api, replicas=1)
        async with pod(api) as ours:
            seeds = [str(ours.bound)]
            async with SwimMember(Config(profile=FAST), ("127.0.0.1", 0), seeds) as stranger:
                stranger.set_meta(b"role=db")
                await eventually(lambda: any(each.meta == b"role=db" for each in ours.members()))
                answer = await api.http.get(f"{BASE}/q/members")
                assert answer.status_code == 200, answer.text
                told = answer.json()
                assert (told["asked"], told["dead"], len(told["digest"])) == (POD, 0, 16)
                found = {each["id"]: each for each in told["items"]}
                assert found.keys() == {ours.info.id, stranger.info.id}
                assert found[ours.info.id] == {
                    "id": ours.info.id,
                    "pod": POD,
                    "foreign": False,
                    "address": str(ours.bound),
                    "state": "Alive",
                    "stage": "ReadWrite",
                    "rollout": 1,
                    "incarnation": ours.info.gen,
                    "meta": None,
                }
                other = found[stranger.info.id]
                assert (other["pod"], other["foreign"], other["rollout"]) == (None, True, 0)
                assert (other["meta"], other["address"]) == ("role=db", str(stranger.bound))
                await stranger.leave()
            left = (await api.http.get(f"{BASE}/q/members")).json()
            assert [each["pod"] for each in left["items"]] == [POD]
            async with SwimMember(Config(profile=FAST), ("127.0.0.1", 0), seeds) as killed:
                await eventually(lambda: len(ours.members()) == 2)
            await eventually(lambda: ours.dead == 1)
            said = (await api.http.get(f"{BASE}/q/members")).json()
            dead = [(each["id"], each["pod"], each["rollout"]) for each in said["deadMembers"]]
            assert (said["dead"], dead) == (1, [(killed.info.id, None, 0)])  # who has left is not among them


async def test_without_a_pod_that_answers_it_is_said_what_to_do(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        missing = await api.http.get(f"{BASE}/q/members")
        assert missing.status_code == 404
        await created(api)
        silent = await api.http.get(f"{BASE}/q/members")
        assert (silent.status_code, silent.headers["content-type"]) == (503, "application/problem+json")
        assert "`pavane why swim/q`" in silent.json()["detail"]


async def test_who_may_do_nothing_with_groups_is_refused(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        headers = {"Authorization": f"Bearer {await api.service_account_token('stranger')}"}
        for method, path, verb in (
            ("GET", BASE, "list"),
            ("GET", f"{BASE}/q", "get"),
            ("GET", f"{BASE}/q/members", "get"),
            ("POST", f"{BASE}/q/rollout/restart", "patch"),
            ("DELETE", f"{BASE}/q", "delete"),
        ):
            answer = await api.http.request(method, path, headers=headers)
            assert answer.status_code == 403, (method, path)
            assert f"may not {verb} swimgroups in namespace default" in answer.json()["detail"]
