"""``/api/v1/…/waltzclusters/NAME/partitions`` over an embedded cluster, with servers that do what the test says."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pavane.pods.consumers import of_immortal
from pavane.runtime.certificates import Certificates
from pavane.waltz.client import Unavailable, Waltz
from pavane_api.kinds import COORDINATORS
from pavane_api.waltzlog.endpoints import BODY_BYTES_MAX
from pavane_operator.kube.resources import SECRETS
from pavane_operator.tls.certificates import Pair
from tests.api.plane import LEDGER, Plane, plane
from tests.api.waltz import waltz_cluster
from tests.services.stage.certificates import authority, certificate, publish
from tests.services.waltz.scripted import Cluster, running

BASE = "/api/v1/namespaces/default/waltzclusters/ledger/partitions"


@pytest.fixture
async def api(tmp_path: Path, cluster: Cluster) -> AsyncIterator[Plane]:
    """A control plane with WaltzCluster ``ledger``, whose servers are the scripted ones."""
    async with plane(tmp_path) as api:
        await waltz_cluster(api, cluster.addresses)
        yield api


async def events(api: Plane, count: int, headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """The first events of a stream of partition 0."""
    found: list[dict[str, Any]] = []
    fields: dict[str, str] = {}
    path = f"{BASE}/0/transactions?watch=true&from=0"
    async with api.http.stream("GET", path, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
            elif fields:
                found.append({"id": fields.get("id"), "event": fields.get("event"), **json.loads(fields["data"])})
                fields = {}
                if len(found) == count:
                    break
    return found


async def test_append_list_get_stream_and_partitions(api: Plane, cluster: Cluster) -> None:
    answer = await api.http.post(f"{BASE}/0/transactions?write=account/7&header=5", content=b"opened")
    assert (answer.status_code, answer.json()) == (201, {"partition": 0, "transaction": 0})
    answer = await api.http.post(f"{BASE}/0/transactions?write=account/7&seen=0", content=b"closed")
    assert (answer.status_code, answer.json()) == (201, {"partition": 0, "transaction": 1})

    conflict = await api.http.post(f"{BASE}/0/transactions?write=account/7&seen=0", content=b"late")
    assert conflict.status_code == 409
    assert conflict.json()["type"].endswith("lock-conflict")
    assert "append again with seen=1" in conflict.json()["detail"]

    opened = {"transaction": 0, "header": 5, "data": base64.b64encode(b"opened").decode()}
    assert (await api.http.get(f"{BASE}/0/transactions/0")).json() == opened
    page = (await api.http.get(f"{BASE}/0/transactions?limit=1")).json()
    assert page == {"items": [opened], "nextFrom": 1}
    assert (await api.http.get(f"{BASE}/0/transactions?from=2")).json() == {"items": [], "nextFrom": 2}

    assert await events(api, 1) == [{"id": "0", "event": "transaction", **opened}]
    assert [event["transaction"] for event in await events(api, 1, {"Last-Event-ID": "0"})] == [1]

    assert (await api.http.get(BASE)).json()["items"] == [
        {"partition": 0, "server": cluster.addresses[0], "generation": 1, "stage": "ReadWrite", "highWaterMark": 1},
        {"partition": 1, "server": cluster.addresses[1], "generation": 1, "stage": "ReadWrite", "highWaterMark": -1},
    ]


async def test_a_partition_is_trimmed_by_who_may_delete_and_readers_are_told(api: Plane) -> None:
    for data in (b"a", b"b", b"c"):
        await api.http.post(f"{BASE}/0/transactions", content=data)
    trimmed = {"partition": 0, "formerFirst": 0, "first": 2, "highWaterMark": 2, "passed": []}
    for query in ("before=2&dryRun=true", "before=2"):
        assert (await api.http.get(f"{BASE}/0/transactions/1")).status_code == 200
        answer = await api.http.post(f"{BASE}/0/trim?{query}")
        assert (answer.status_code, answer.json()) == (200, trimmed)
    gone = await api.http.get(f"{BASE}/0/transactions/1")
    assert (gone.status_code, gone.json()["type"].rpartition("/")[2]) == (410, "trimmed")
    assert (await api.http.get(f"{BASE}/0/transactions?from=2")).json()["nextFrom"] == 3


async def test_consumers_are_listed_waited_for_and_forgotten(api: Plane, cluster: Cluster) -> None:
    path = BASE.replace("partitions", "consumers")
    assert (await api.http.get(path)).json() == {"items": [], "unanswered": []}
    for data in (b"a", b"b", b"c"):
        await api.http.post(f"{BASE}/0/transactions", content=data)
    async with Waltz(cluster.addresses) as log:
        await log.consumer("billing", who="pod-1").start(0, 1)
    (shown,) = (await api.http.get(path)).json()["items"]
    assert shown.items() >= {"partition": 0, "name": "billing", "position": 1, "lag": 2, "who": "pod-1"}.items()
    assert (shown["heldSeconds"], shown["stuck"]) == (None, False)
    refused = await api.http.post(f"{BASE}/0/trim?before=2")
    assert refused.status_code == 409
    assert (await api.http.post(f"{BASE}/0/trim?before=2&force=true&dryRun=true")).json()["passed"] == ["billing"]
    stranger = {"Authorization": f"Bearer {await api.service_account_token('stranger')}"}
    for status, headers in ((403, stranger), (204, {}), (404, {})):
        assert (await api.http.delete(f"{path}/billing", headers=headers)).status_code == status
    assert (await api.http.delete(f"{path}/a%20b")).status_code == 422
    assert (await api.http.post(f"{BASE}/0/trim?before=2")).json()["first"] == 2


async def test_a_partition_without_a_server_hides_no_consumer_of_another(api: Plane, cluster: Cluster) -> None:
    path = BASE.replace("partitions", "consumers")
    async with Waltz(cluster.addresses) as log:
        await log.consumer("billing").start(0, 0)
    cluster.move(1, owner=9)
    found = (await api.http.get(path)).json()
    assert ([one["name"] for one in found["items"]], found["unanswered"]) == (["billing"], [1])
    for count in (1, 0):  # it may be in partition 1 as well: then retention waits for it still
        answer = await api.http.delete(f"{path}/billing")
        assert answer.status_code == 503
        assert f"partition 1: billing was removed from {count} others" in answer.json()["detail"]
    assert (await api.http.get(path)).json() == {"items": [], "unanswered": [1]}
    cluster.move(1, owner=1)
    assert (await api.http.delete(f"{path}/billing")).status_code == 404


async def test_the_partition_of_an_immortal_is_its_own(api: Plane, cluster: Cluster) -> None:
    """One foreign transaction in it, or one that is gone, and it could never start again."""
    spec = {"log": {"waltzClusterRef": {"name": "ledger"}, "partition": 1}}
    bank = await api.kube.create(COORDINATORS, {"metadata": {"name": "bank"}, "spec": spec}, "default")
    for path in ("1/transactions", "1/trim?before=0"):
        answer = await api.http.post(f"{BASE}/{path}", content=b"mine")
        assert answer.status_code == 409
        assert "Partition 1 is for the log of Coordinator bank" in answer.json()["detail"]
    assert (await api.http.post(f"{BASE}/0/transactions", content=b"mine")).status_code == 201
    async with Waltz(cluster.addresses) as log:  # it says now what it needs
        for data in (b"a", b"b", b"c"):
            await log.append(1, data)
        await log.consumer(of_immortal(f"bank-{bank['metadata']['uid'][:8]}")).start(1, 2)
    for query, status in (("before=3", 409), ("before=3&force=true", 409), ("before=2", 200)):
        assert (await api.http.post(f"{BASE}/1/trim?{query}")).status_code == status


async def test_what_cannot_be_done_is_a_problem(api: Plane, cluster: Cluster) -> None:
    for method, path, status, words in (
        ("POST", "/0/transactions?write=account", 400, "looks like account/7"),
        ("POST", "/0/transactions?seen=9", 409, "CLIENT_AHEAD"),
        ("POST", "/7/transactions", 404, "partitions 0 to 1, not 7"),
        ("GET", "/0/transactions/3", 404, "no transaction 3"),
        ("GET", "/0/transactions?from=-1", 422, "from"),
    ):
        answer = await api.http.request(method, BASE + path, content=b"x" if method == "POST" else None)
        assert answer.status_code == status, answer.text
        assert words in answer.text
    stranger = {"Authorization": f"Bearer {await api.service_account_token('stranger')}"}
    assert (await api.http.get(f"{BASE}/0/transactions", headers=stranger)).status_code == 403
    await api.kube.delete(SECRETS, "ledger-client", "default")
    answer = await api.http.get(f"{BASE}/0/transactions")
    assert answer.status_code == 503
    assert "pavane why waltz/ledger" in answer.json()["detail"]


async def test_partitions_that_nobody_answers_for_are_waited_for_together(
    api: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await api.http.get(BASE)).status_code == 200
    asked: list[int] = []
    answered: list[int] = []

    async def hwm(log: Waltz, partition: int) -> int:
        asked.append(partition)
        await asyncio.sleep(0)
        answered.append(len(asked))
        raise Unavailable("nobody answers")

    monkeypatch.setattr(Waltz, "hwm", hwm)
    items = (await api.http.get(BASE)).json()["items"]
    assert [item["highWaterMark"] for item in items] == [None, None]
    assert answered == [2, 2]  # when the first was answered, both were asked


async def test_a_body_beyond_the_limit_is_told_apart_from_what_the_log_takes(api: Plane) -> None:
    answer = await api.http.post(f"{BASE}/0/transactions", content=bytes(BODY_BYTES_MAX + 1))
    assert answer.status_code == 413
    assert "by HTTP has at most" in answer.json()["detail"]


async def test_a_log_that_asks_for_certificates_is_shown_its_pods_own(tmp_path: Path) -> None:
    pods, clients = authority(), authority()
    (tmp_path / "tls").mkdir()
    publish(tmp_path / "tls", certificate(pods), pods)
    port = Certificates(tmp_path / "tls").mutual_port

    def held(pair: Pair) -> dict[str, str]:
        files = {"ca.crt": pods.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}
        return {name: base64.b64encode(data).decode() for name, data in files.items()}

    async with running(tls=port, host=LEDGER) as cluster, plane(tmp_path) as api:
        await waltz_cluster(api, cluster.addresses)
        client = await api.kube.get(SECRETS, "ledger-client", "default")
        client["data"] |= held(certificate(clients, "client"))
        await api.kube.replace(SECRETS, client, "default")
        answer = await api.http.post(f"{BASE}/0/transactions", content=b"early")
        assert answer.status_code == 503
        body = {"metadata": {"name": "ledger-tls"}, "data": held(certificate(pods))}
        await api.kube.create(SECRETS, body, "default")
        answer = await api.http.post(f"{BASE}/0/transactions", content=b"known")
        assert (answer.status_code, answer.json()) == (201, {"partition": 0, "transaction": 0})
