"""What the rights in one namespace open in another one: nothing, on any path (docs/security.md)."""

import json
from pathlib import Path
from typing import Any

from pavane_api.openapi import document
from pavane_operator.kube.resources import NAMESPACES
from tests.api.plane import plane

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
