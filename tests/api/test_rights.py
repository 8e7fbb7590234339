"""What the rights in one namespace open in another one: nothing, on any path (docs/security.md)."""

import base64
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pavane.runtime import names
from pavane_api import waltz_clients
from pavane_api.openapi import document
from pavane_api.problems import Unavailable
from pavane_api.waltz_clients import WaltzClients
from pavane_operator.kinds.swim import access
from pavane_operator.kube.resources import NAMESPACES
from tests.api.plane import LEDGER, plane
from tests.api.waltz import waltz_cluster
from tests.services.waltz.scripted import running

OF_ALL = {"export_traces", "get_trace", "list_traces", "follow_resources", "list_resource_series"}
"""What a caller gets there is by his rights in each namespace: `test_traces` and `test_series` look at that."""


async def test_rights_in_one_namespace_are_none_in_another(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await api.kube.create(NAMESPACES, {"metadata": {"name": "tenants"}})
        own = {"Authorization": f"Bearer {await api.service_account_token('tenant', namespace='tenants')}"}
        control = api.app.state.control

        async def allowed(*_: Any, namespace: str | None, **__: Any) -> bool:
            return namespace == "tenants"

        control.kube.access_review = allowed
        opened: dict[str, int] = {}
        closed: list[str] = []
        for path, operations in json.loads(document())["paths"].items():
            for method, operation in operations.items():
                if operation["operationId"] in OF_ALL or not path.startswith("/api/v1/"):
                    continue
                for namespace in ("default", "tenants"):
                    named = path.replace("{namespace}", namespace)
                    answer = await api.http.request(method.upper(), named, headers=own, json={})
                    if namespace == "tenants" and "{namespace}" in path:
                        closed += [f"{method} {path}"] * (answer.status_code == 403)
                    elif answer.status_code != 403:
                        opened[f"{method} {path}"] = answer.status_code
        assert opened == {}
        assert closed == []


@pytest.fixture
def aliases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All names of namespace `tenants` lead to a Service of another one."""

    def system(name: str, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        official = "victim.default.svc" if ".tenants." in name else name
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, f"{official}.cluster.local", ("10.0.0.4", 0))]

    monkeypatch.delenv("PAVANE_HOSTS_FILE", raising=False)
    monkeypatch.setattr(names, "_system_getaddrinfo", system)
    names._cluster_domain.cache_clear()
    yield
    names._cluster_domain.cache_clear()


@pytest.mark.usefixtures("aliases")
async def test_a_log_in_clear_is_not_looked_for_behind_another_name() -> None:
    servers = base64.b64encode(b"ledger.tenants.svc:55180").decode()

    async def get(*_: Any) -> dict[str, Any]:
        return {"metadata": {"uid": "of-ledger"}, "data": {"servers": servers}}

    kube: Any = SimpleNamespace(get=get)
    with pytest.raises(Unavailable, match="ExternalName"):
        async with WaltzClients(kube).of("tenants", "ledger"):
            pytest.fail("it was lent")


@pytest.mark.parametrize("server", ["victim.default.svc:55180", "10.0.0.4:55180", "tenants.svc:55180"])
async def test_nor_at_an_address_that_is_none_of_its_namespace(server: str) -> None:
    servers = base64.b64encode(server.encode()).decode()

    async def get(*_: Any) -> dict[str, Any]:
        return {"metadata": {"uid": "of-ledger"}, "data": {"servers": servers}}

    kube: Any = SimpleNamespace(get=get)
    with pytest.raises(Unavailable, match="is no name in namespace tenants"):
        async with WaltzClients(kube).of("tenants", "ledger"):
            pytest.fail("it was lent")


async def test_nor_where_a_server_of_its_own_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has a Service may run what he likes behind it, also a server that tells of another namespace's servers."""
    monkeypatch.setattr(waltz_clients, "PATIENCE_S", 1.0)
    async with running(host=LEDGER) as cluster, plane(tmp_path) as api:
        await waltz_cluster(api, cluster.addresses)
        Path(os.environ[names.HOSTS_FILE_VARIABLE]).write_text(f"127.0.0.1 victim.tenants.svc {LEDGER}\n")
        cluster.hosts = ["victim.tenants.svc"] * len(cluster.hosts)
        where = "/api/v1/namespaces/default/waltzclusters/ledger/partitions/0/transactions"
        answer = await api.http.post(where, content=b"stolen")
        assert (answer.status_code, cluster.logs[0].records) == (503, [])
        cluster.hosts, cluster.version = [LEDGER] * len(cluster.hosts), cluster.version + 1
        assert (await api.http.post(where, content=b"own")).status_code == 201


@pytest.mark.usefixtures("aliases")
async def test_nor_are_members_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(*_: Any) -> None:
        pytest.fail("a stranger was asked")

    monkeypatch.setattr(access, "ask", ask)
    endpoint = {"name": access.PORT_NAME, "address": "crew.tenants.svc"}
    group = {"metadata": {"name": "crew", "namespace": "tenants"}, "status": {"endpoints": [endpoint]}}
    http: Any = None
    with pytest.raises(access.NotServing):
        await access.group_members(http, group)
