"""Calls and queries that the control plane carries to an immortal."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pavane.ambrosia import serve
from pavane_api.immortals import about, service
from pavane_api.problems import BadRequest, Conflict, NotFound
from pavane_operator.kube import pods_http
from tests.services.ambrosia.accounts import Account
from tests.services.ambrosia.test_server import options, running


async def test_an_immortal_is_called_and_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = options(tmp_path, "ann")
    async with (
        running(given),
        serve(Account, name="ann", rp=given.receive_port, sp=given.send_port, http="127.0.0.1:0") as handle,
        pods_http() as http,
    ):
        assert handle.http is not None
        host, port = handle.http

        async def address_of(_: str, __: str) -> str:
            return host

        for module in (service, about):
            monkeypatch.setattr(module, "address_of", address_of)
            monkeypatch.setattr(module, "HTTP", SimpleNamespace(number=port))
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
