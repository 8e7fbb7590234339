"""Transactions found by text, JSON and header, and consumers that are moved: REST and the command line."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from pavane.waltz.client import NoConsumer, Transaction, Waltz
from pavane.waltz.wire.fields import ReqId
from pavane_api.waltzlog import service
from pavane_api.waltzlog.finding import JSON_BYTES_MAX, STEPS_MAX, Condition, Sought
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.main import app
from tests.api.plane import LEDGER, Plane, plane
from tests.api.waltz import waltz_cluster
from tests.services.waltz.running import running_log
from tests.services.waltz.scripted import Cluster

BASE = "/api/v1/namespaces/default/waltzclusters/ledger/partitions/0"

ORDER = b'{"id": 7, "customer": {"name": "Ann", "vip": true}, "items": [{"price": 5}, {"price": 120}], "note": null}'
DATA = (b"opened", ORDER, b'{"id": 8, "customer": {"name": "Bob"}}', b"\xff\x00 Ann", b'["Ann"]')

# -- conditions ---------------------------------------------------------------------------------------------------


def finds(where: str, data: bytes) -> bool:
    return Sought.of(where=[where]).finds(Transaction(0, 0, data, ReqId(0, 0, 0, 0)))


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("$.id = 7", [1]),
        ("$.id", [1, 2]),
        ("$.id != 7", [2]),
        ("$.id>=7.5", [2]),
        ("$['customer'].name < \"B\"", [1]),
        ('$.customer["name"] = "Bob"', [2]),
        ("$.customer.vip = true", [1]),
        ("$.customer.vip = 1", []),
        ("$.items[*].price > 100", [1]),
        ("$.items[0].price > 100", []),
        ("$.items[9]", []),
        ("$.note", [1]),
        ("$.note = null", [1]),
        ('$[0] = "Ann"', [4]),
        ('$[*] = "Ann"', [4]),
        ("$", [1, 2, 4]),
        ('$.id > "6"', []),
    ],
)
def test_a_condition_finds(where: str, found: list[int]) -> None:
    assert [number for number, data in enumerate(DATA) if finds(where, data)] == found


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("id = 7", "begins with"),
        ("$.id ~ 7", "neither .name"),
        ("$..id", "neither .name"),
        ("$.id = seven", 'a number, "text"'),
        ("$.id = [7]", 'a number, "text"'),
        ("$.id = NaN", 'a number, "text"'),
        ("$.id = 1e999", 'a number, "text"'),
        ("$.id < null", "use = or !="),
        ("$" + ".a" * (STEPS_MAX + 1), f"at most {STEPS_MAX}"),
    ],
)
def test_what_is_no_condition_is_refused_in_words(where: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Condition.of(where)


@pytest.mark.parametrize("data", [b'{"a": NaN}', b"[" * 100_000, b'{"a": 1', b"\xff", b"9" * 5000, b""])
def test_what_is_no_json_is_found_by_no_condition(data: bytes) -> None:
    assert not finds("$", data)


NAMES = st.sampled_from(["a", "b", "c-d", "e f", "é", "0"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([0.5, 2.0]) | st.sampled_from(["", "x", "y", "2"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
PATHS = st.lists(NAMES | st.integers(0, 2) | st.just(None), max_size=4)


@given(VALUES, PATHS)
def test_a_path_finds_what_duckdb_finds(document: Any, path: list[str | int | None]) -> None:
    def ours(step: str | int | None) -> str:
        return f"['{step}']" if isinstance(step, str) else f"[{'*' if step is None else step}]"

    theirs = "$" + "".join(f'."{step}"' if isinstance(step, str) else ours(step) for step in path)
    (found,) = DUCK.execute(f"SELECT json_extract($1::JSON, '{theirs}')", [json.dumps(document)]).fetchone() or ()
    there = bool(found) if None in path else found is not None
    assert finds("$" + "".join(map(ours, path)), json.dumps(document).encode()) == there
    if None not in path and there and not isinstance(json.loads(found), dict | list):
        assert finds("$" + "".join(map(ours, path)) + f" = {found}", json.dumps(document).encode())


DUCK = duckdb.connect()


def test_a_document_that_is_too_large_is_not_parsed() -> None:
    sought = Sought.of(where=["$.a"])
    data = b'{"a": "%s"}'
    small, large = (Transaction(0, 0, data % (b"x" * size), ReqId(1, 0, 0, 1)) for size in (9, JSON_BYTES_MAX))
    assert (sought.finds(small), sought.finds(large)) == (True, False)
    assert Sought.of(text="xxx").finds(large)


# -- a search -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def api(tmp_path: Path, cluster: Cluster) -> AsyncIterator[Plane]:
    async with plane(tmp_path) as api:
        await waltz_cluster(api, cluster.addresses)
        async with Waltz(cluster.addresses) as log:
            for number, data in enumerate(DATA):
                await log.append(0, data, header=number % 2)
        yield api


async def search(api: Plane, **query: Any) -> tuple[list[int], int, int, int]:
    """Return the numbers of those found, from where it looked, where it goes on, and the end."""
    answer = await api.http.get(f"{BASE}/search", params=query)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    return [each["transaction"] for each in said["items"]], said["lookedFrom"], said["nextFrom"], said["end"]


async def test_transactions_are_found_by_what_is_in_them(api: Plane) -> None:
    assert await search(api) == ([0, 1, 2, 3, 4], 0, 5, 5)
    assert await search(api, text="Ann") == ([1, 3, 4], 0, 5, 5)
    assert await search(api, text="Ann", header=1) == ([1, 3], 0, 5, 5)
    assert await search(api, where=["$.id", '$.customer.name = "Bob"']) == ([2], 0, 5, 5)
    assert await search(api, text="Ann", **{"from": 2}, before=4) == ([3], 2, 4, 4)
    assert await search(api, **{"from": 9}) == ([], 9, 9, 9)
    for query, status, words in (
        ("where=id", 400, "begins with $"),
        ("limit=0", 422, "limit"),
        ("where=" + "$" * 1001, 422, "where"),
        ("&".join(["where=$"] * 11), 422, "where"),
    ):
        answer = await api.http.get(f"{BASE}/search?{query}")
        assert answer.status_code == status
        assert words in answer.text
    stranger = {"Authorization": f"Bearer {await api.service_account_token('stranger')}"}
    assert (await api.http.get(f"{BASE}/search", headers=stranger)).status_code == 403


async def test_a_search_goes_on_where_a_step_ended(
    api: Plane, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await search(api, text="Ann", limit=1) == ([1], 0, 3, 5)  # 3 is the next one: 2 was looked at
    assert await search(api, text="Ann", limit=1, **{"from": 3}, before=5) == ([3], 3, 4, 5)
    monkeypatch.setattr(service, "LOOKED_MAX", 2)
    assert await search(api, text="Ann") == ([1], 0, 2, 5)
    monkeypatch.setattr(service, "LOOKED_MAX", 100)
    monkeypatch.setattr(service, "LOOKED_BYTES_MAX", len(DATA[0]) + 1)
    assert await search(api, text="Ann") == ([1], 0, 2, 5)
    async with Waltz(cluster.addresses) as log:
        await log.trim(0, 1)
    assert await search(api, text="Ann") == ([1], 1, 2, 5)
    assert (await api.http.get(f"{BASE}/search?from=0")).status_code == 410


async def typed(*arguments: str) -> tuple[str, str]:
    result = await asyncio.to_thread(CliRunner().invoke, app, ["waltz", *arguments])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


async def test_a_search_from_the_shell_goes_on_to_the_end(
    api: Plane, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOOKED_MAX", 2)
    by_name = "ledger", "--api", str(api.http.base_url), "--token", api.token
    by_servers = "--no-tls", "--servers", ",".join(cluster.addresses)
    for reach in (by_name, by_servers):
        said, told = await typed("find", *reach, "--text", "Ann")
        assert [line.split("  ")[:2] for line in said.splitlines()] == [["1", "1"], ["3", "1"], ["4", "0"]]
        assert told == "found 3 of 5 transactions from 0 on\n"
        said, told = await typed("find", *reach, "--where", "$.id", "--count", "1", "--header", "1", "-o", "json")
        assert json.loads(said)["transaction"] == 1
        assert told == "found 1 of 2 transactions from 0 on; to look further: --from 2\n"
        with pytest.raises(UserError, match=r"begins with \$") as caught:
            await typed("find", *reach, "--where", "id")
        assert caught.value.code is ExitCode.USAGE


# -- positions ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[tuple[Plane, str]]:
    """A control plane, and the address of a log on disks: its positions are what this is about."""
    async with running_log(tmp_path / "log", partitions=1, host=LEDGER) as log, plane(tmp_path) as api:
        await log.settled()
        address = f"{log.host}:{log.servers[0].port}"
        await waltz_cluster(api, [address])
        async with Waltz([address]) as client:
            for data in DATA:
                await client.append(0, data)
        yield api, address


async def test_a_consumer_is_moved_after_it_was_said_what_that_means(kept: tuple[Plane, str]) -> None:
    api, address = kept
    by_name = "ledger", "--api", str(api.http.base_url), "--token", api.token
    by_servers = "--no-tls", "--servers", address
    async with Waltz([address]) as log:
        billing = log.consumer("billing")
        await billing.start(0, 3)
        where = f"{BASE}/consumers/billing/move"
        dry = await api.http.post(f"{where}?to=1&dryRun=true")
        moved = {"partition": 0, "name": "billing", "former": 3, "position": 1, "highWaterMark": 4}
        assert (dry.status_code, dry.json(), await billing.position(0)) == (200, moved, 3)
        stranger = {"Authorization": f"Bearer {await api.service_account_token('stranger')}"}
        assert (await api.http.post(f"{where}?to=1", headers=stranger)).status_code == 403
        assert (await api.http.post(f"{where}?to=1")).json() == moved
        with pytest.raises(NoConsumer, match="given another position"):  # who runs is told, and starts anew
            await billing.commit(0, 3)
        for reach, to, would, does in (
            (by_name, 4, "would never read 3 transactions, from 1 to 3", "never reads 3 transactions, from 1 to 3"),
            (by_servers, 3, "would read 1 transaction again, from 3 to 3", "reads 1 transaction again, from 3 to 3"),
        ):
            options = "move", *reach, "--consumer", "billing", "--to", str(to)
            with pytest.raises(UserError, match="add --yes"):
                await typed(*options)
            result = await asyncio.to_thread(CliRunner().invoke, app, ["waltz", *options])
            assert result.stdout == f"consumer billing of partition 0 {would}\n"
            assert (await typed(*options, "--yes"))[0] == f"consumer billing of partition 0 {does}\n"
            assert await log.consumer("billing").position(0) == to


async def test_where_a_consumer_cannot_be_moved_to_is_said(kept: tuple[Plane, str]) -> None:
    api, address = kept
    async with Waltz([address]) as log:
        await log.trim(0, 2)
        for name in ("billing", "coordinator.bank", "computecluster.views"):
            await log.consumer(name).start(0, 3)
        for dry in ("true", "false"):
            for name, to, status, words in (
                ("absent", 3, 404, "no consumer absent"),
                ("billing", 6, 409, "ends with transaction 4"),
                ("billing", 1, 410, "begins with transaction 2"),
                ("coordinator.bank", 4, 409, "alone knows where it is"),
                ("computecluster.views", 4, 409, "alone knows where it is"),
            ):
                answer = await api.http.post(f"{BASE}/consumers/{name}/move?to={to}&dryRun={dry}")
                assert answer.status_code == status, answer.text
                assert words in answer.json()["detail"]
        assert [one.position for one in await log.consumers(0)] == [3, 3, 3]
