"""Calls and queries that the control plane carries to an immortal."""

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pavane.ambrosia import serve
from pavane.runtime import names
from pavane_api import services_http
from pavane_api.immortals import about, service
from pavane_api.problems import BadRequest, Conflict, NotFound, Unavailable
from pavane_operator.kube import pods_http
from tests.api.immortals import serves
from tests.services.ambrosia.accounts import Account
from tests.services.ambrosia.test_server import options, running


async def test_an_immortal_is_called_and_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = options(tmp_path, "ann")
    async with (
        running(given),
        serve(Account, name="ann", rp=given.receive_port, sp=given.send_port, http="127.0.0.1:0") as handle,
        pods_http() as http,
    ):
        serves(handle, monkeypatch)
        control: Any = SimpleNamespace(pods=http)
        for _ in range(2):
            assert await service.call(control, "default", "ann", "deposit", [5], "once") == 5
        assert await service.call(control, "default", "ann", "deposit", {"amount": 2}, "twice") == 7
        assert await service.query(control, "default", "ann", "total", {}) == 7
        with pytest.raises(NotFound, match="deposit"):
            await service.call(control, "default", "ann", "no", [], "third")
        with pytest.raises(BadRequest, match="amount"):
            await service.call(control, "default", "ann", "deposit", ["five"], "fourth")
        with pytest.raises(Conflict):
            await service.call(control, "default", "ann", "deposit", [6], "once")
        told = await about._application(http, "default", "ann")
        assert told is not None
        assert told.life == "primary"

        def system(name: str, *_: Any, **__: Any) -> list[tuple[Any, ...]]:  # a Service of type ExternalName
            official = name if name.startswith("kubernetes.") else "ann.default.svc"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, f"{official}.cluster.local", ("127.0.0.1", 0))]

        async def get(*_: Any) -> None:
            """There may be a Coordinator of the alias' name, too."""

        monkeypatch.delenv("PAVANE_HOSTS_FILE", raising=False)
        monkeypatch.setattr(names, "_system_getaddrinfo", system)
        names._cluster_domain.cache_clear()
        monkeypatch.setattr(service, "address_of", services_http.address_of)
        monkeypatch.setattr(service, "PATIENCE_S", 0.1)
        control.kube = SimpleNamespace(get=get)
        with pytest.raises(Unavailable, match="ExternalName"):
            await service.call(control, "tenants", "alias", "deposit", [100], "fifth")
        assert await handle.query(Account.total) == 7
    names._cluster_domain.cache_clear()
