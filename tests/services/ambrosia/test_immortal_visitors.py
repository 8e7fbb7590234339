"""The HTTP port of an immortal asks nobody who they are, so it takes nothing that a stranger's page can send."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from pavane.ambrosia import serve
from tests.services.ambrosia.accounts import Account
from tests.services.ambrosia.test_server import options, running

JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    given = options(tmp_path, "ann")
    async with (
        running(given),
        serve(Account, name="ann", rp=given.receive_port, sp=given.send_port, http="127.0.0.1:0") as handle,
    ):
        assert handle.http is not None
        url = f"http://{handle.http[0]}:{handle.http[1]}"
        async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
            yield client


async def balance(http: httpx2.AsyncClient) -> int:
    return int((await http.post("/call/deposit", content=b"[0]", headers=JSON)).json()["result"])


@pytest.mark.parametrize(
    ("headers", "status", "error"),
    [
        # What a page sends without asking: forms, and fetch() without CORS.
        ({"Content-Type": "text/plain"}, 415, "NotJson"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "NotJson"),
        ({}, 415, "NotJson"),
        ({**JSON, "Origin": "https://evil.example"}, 403, "ForeignOrigin"),
        ({**JSON, "Origin": "null"}, 403, "ForeignOrigin"),
        ({**JSON, "Origin": "http://[evil"}, 403, "ForeignOrigin"),
        # A page whose name leads to this machine by now.
        ({**JSON, "Host": "evil.example", "Origin": "http://evil.example"}, 421, "ForeignHost"),
        ({**JSON, "Host": "127.0.0.1.evil.example"}, 421, "ForeignHost"),
        ({**JSON, "Host": "svc.evil.example:80"}, 421, "ForeignHost"),
        ({**JSON, "Host": "[evil"}, 421, "ForeignHost"),
    ],
)
async def test_what_a_strangers_page_can_send_calls_nothing(
    http: httpx2.AsyncClient, headers: dict[str, str], status: int, error: str
) -> None:
    answer = await http.post("/call/deposit", content=b"[5]", headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert await balance(http) == 0


async def test_arguments_that_are_too_deep_for_anybody_are_refused_in_words(http: httpx2.AsyncClient) -> None:
    deep = b"[" * 5_000 + b"]" * 5_000
    answer = await http.post("/call/deposit", content=deep, headers=JSON)
    assert (answer.status_code, answer.json()["error"]) == (400, "BadArguments")
    answer = await http.get("/query/total", params={"since": deep.decode()})
    assert (answer.status_code, answer.json()["error"]) == (400, "BadArguments")


async def test_a_name_of_a_stranger_reads_nothing(http: httpx2.AsyncClient) -> None:
    for path in ("/", "/query/total"):
        answer = await http.get(path, headers={"Host": "evil.example"})
        assert (answer.status_code, answer.json()["error"]) == (421, "ForeignHost")


@pytest.mark.parametrize(
    "headers",
    [
        JSON,
        {"Content-Type": "Application/JSON; charset=utf-8"},
        {"Content-Type": "application/vnd.bank+json"},
        {**JSON, "Host": "localhost:80", "Origin": "http://localhost:80"},
        {**JSON, "Host": "ann.default.svc:7000"},
        {**JSON, "Host": "Ann.Default.Svc.Cluster.Local."},
        {**JSON, "Host": "[::1]:80"},
        {**JSON, "Host": "machine"},
    ],
)
async def test_programs_and_pages_of_the_same_address_call(http: httpx2.AsyncClient, headers: dict[str, str]) -> None:
    answer = await http.post("/call/deposit", content=b"[5]", headers=headers)
    assert (answer.status_code, answer.json()) == (200, {"result": 5})
