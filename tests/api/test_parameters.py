"""No query parameter is ignored: whoever misspells one is told, on every path of the description."""

import json
from pathlib import Path

from pavane_api.openapi import document
from pavane_api.parameters import PARAMETERS_TOLD_MAX
from tests.api.plane import BASE, created, plane

FREE = {"query_immortal"}
"""Its parameters are the arguments of an immortal's query."""


async def test_an_unknown_parameter_is_refused_on_every_path(tmp_path: Path) -> None:
    described = json.loads(document())["paths"]
    async with plane(tmp_path) as api:
        for path, operations in described.items():
            named = path.replace("{namespace}", "default").replace("{name}", "absent")
            for method, operation in operations.items():
                taken = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
                parameters = {name: "true" for name in taken & {"watch"}} | {"wtach": "true"}
                answer = await api.http.request(method.upper(), named, params=parameters, json={})
                problem = answer.json()
                if operation["operationId"] in FREE:
                    assert answer.status_code == 404, (method, path, answer.text)
                    continue
                assert answer.status_code == 422, (method, path, answer.status_code, answer.text)
                assert [error["pointer"] for error in problem["errors"]] == ["query.wtach"], (method, path)
                said = "no parameter wtach" + ("; did you mean watch" if "watch" in taken else "")
                assert said in problem["detail"], (method, path, problem["detail"])


async def test_a_stranger_learns_no_parameters(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        answer = await api.http.get(BASE, params={"limt": "2"}, headers={"Authorization": ""})
        assert answer.status_code == 401, answer.text


async def test_each_wrong_parameter_is_named_with_what_it_may_have_meant(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        answer = await api.http.get(BASE, params={"limt": "2", "labelselector": "a=b", "xyz": "", "limit": "1"})
        assert answer.status_code == 422, answer.text
        assert {error["pointer"]: error["detail"] for error in answer.json()["errors"]} == {
            "query.limt": "There is no parameter limt; did you mean limit?",
            "query.labelselector": "There is no parameter labelselector; did you mean labelSelector?",
            "query.xyz": "There is no parameter xyz; this path takes continue, fieldSelector, labelSelector, limit, "
            "resourceVersion, watch.",
        }
        assert (await api.http.get(BASE, params={"limit": "2", "labelSelector": "a=b"})).status_code == 200
        many = await api.http.get(BASE, params={f"p{number}": "" for number in range(1000)})
        assert (many.status_code, len(many.json()["errors"])) == (422, PARAMETERS_TOLD_MAX)
