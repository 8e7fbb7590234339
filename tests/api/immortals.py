"""An application of the test in the place of a Coordinator's pod."""

from types import SimpleNamespace
from typing import Any

import pytest

from pavane_api.immortals import about, service


def serves(handle: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the control plane reach an application for every Coordinator; returns its address."""
    host, port = handle.http

    async def address_of(*_: str) -> str:
        return str(host)

    for module in (service, about):
        monkeypatch.setattr(module, "address_of", address_of)
        monkeypatch.setattr(module, "HTTP", SimpleNamespace(number=port))
    return f"{host}:{port}"
