"""Views of a ComputeCluster by HTTP, over a real log: section "Over HTTP" of docs/compute.md, and what it omits."""

import asyncio
import json
import os
import re
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from pavane.dataflow.evaluating import Limits, QueryTooSlow
from pavane.dataflow.keeping import Clocks, Keeper, Place
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.querying import Query
from pavane.dataflow.sql import parse
from pavane.waltz.client import Waltz
from pavane_api.kinds import COMPUTE_CLUSTERS
from pavane_api.views import kept, service
from pavane_api.waltz_clients import WaltzClients
from pavane_operator.crds.gates import GateSpec
from pavane_operator.crds.status import Verdict
from pavane_operator.plan.questions import Question, question
from pavane_operator.runtime import gates
from pavane_operator.runtime.gates import GateAsker, Sources
from tests.api.plane import LEDGER, Plane, plane
from tests.api.waltz import waltz_cluster
from tests.services.eventually import eventually
from tests.services.waltz.running import running_log

PAGE = Path(__file__).parents[2] / "docs" / "compute.md"
BASE = "/api/v1/namespaces/default/computeclusters/main"
TICKS, VIEWS = 2, 3
WAIT_S = 60.0
SCRIPT = """CREATE TABLE orders (id BIGINT, customer STRING, cents BIGINT) USING waltz OPTIONS (partitions '0-1');
CREATE MATERIALIZED VIEW revenue AS SELECT customer, count(*) AS n, sum(cents) AS total FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW every AS SELECT id, cents FROM orders;"""


@dataclass
class Board:
    """A control plane, a log, and the views of `SCRIPT` in it, kept by this process in place of a pod."""

    api: Plane
    log: Waltz
    keeping: asyncio.Task[None]
    events: list[dict[str, Any]] = field(default_factory=list)

    async def order(self, number: int, customer: str, cents: int, partition: int = 0) -> str:
        row = {"id": number, "customer": customer, "cents": cents}
        return f"{partition}:{await self.log.append(partition, json.dumps(row).encode())}"

    async def query(self, sql: str, status: int = 200, **more: Any) -> dict[str, Any]:
        answer = await self.api.http.post(f"{BASE}/sql", json={"sql": sql, **more}, timeout=WAIT_S)
        assert answer.status_code == status, answer.text
        document: dict[str, Any] = answer.json()
        return document

    @asynccontextmanager
    async def followed(self, view: str, after: str | None = None) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events of a view, without those that only tell the time."""
        headers = {"Last-Event-ID": after} if after is not None else {}
        async with (
            asyncio.timeout(WAIT_S),
            self.api.http.stream("GET", f"{BASE}/views/{view}/changes", headers=headers, timeout=WAIT_S) as answer,
        ):
            assert answer.status_code == 200

            async def events() -> AsyncIterator[dict[str, Any]]:
                fields: dict[str, str] = {}
                async for line in answer.aiter_lines():
                    name, _, value = line.partition(": ")
                    if line:
                        fields[name] = value
                    elif fields.get("event") and fields["event"] != "progress":
                        yield {"event": fields["event"], "id": fields.get("id"), **json.loads(fields["data"])}
                        fields = {}

            yield events()


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    async with running_log(tmp_path / "log", partitions=4, host=LEDGER) as running, plane(tmp_path) as api:
        await running.settled()
        server = f"{LEDGER}:{running.servers[0].port}"
        await waltz_cluster(api, [server])
        spec: dict[str, Any] = {"waltzClusterRef": {"name": "ledger"}, "partitions": {"ticks": TICKS, "views": VIEWS}}
        body = {"metadata": {"name": "main"}, "spec": {**spec, "scripts": {"revenue": SCRIPT}}}
        await api.kube.create(COMPUTE_CLUSTERS, body, "default")
        async with Waltz([server]) as log:
            clocks = Clocks(lambda: time.time_ns() // 1_000_000, time.monotonic, lambda: uuid.uuid4().hex)
            keeper = Keeper(log, [parse(SCRIPT)], Place(TICKS, VIEWS), PlainEngine, 0.05, clocks)
            keeper.allowed.set()
            keeping = asyncio.create_task(keeper.run(lambda _: None, lambda _: None))
            try:
                yield Board(api, log, keeping)
            finally:
                keeping.cancel()
                await asyncio.wait({keeping})


async def test_the_page_does_what_it_says(board: Board) -> None:
    await board.order(1, "ann", 250)
    await board.order(2, "bob", 120, partition=1)
    await board.query("SELECT 1 AS one FROM revenue", after=await board.order(3, "ann", 80))
    (typed,) = re.findall(r"^```sh http\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    typed = typed.replace("curl -s", "echo; curl -s")
    follow = r"sed '/^$/q' < <(exec curl \1 2>/dev/null); kill $!"  # the first event; it would follow for ever
    typed = re.sub(r"curl (.* -N \S+)", follow, typed)
    environment = {
        **os.environ,
        "PAVANE_API_URL": str(board.api.http.base_url).rstrip("/"),
        "PAVANE_API_TOKEN": board.api.token,
        "NO_PROXY": "*",
    }
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", typed, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(WAIT_S):
        said = (await process.communicate())[0].decode()
    listed, answered, refused, followed, bad = said.strip().split("\n", 3)[:3] + said.strip().split("\n", 3)[3].rsplit(
        "\n", 1
    )
    revenue, every = json.loads(listed)["items"]
    assert (revenue["script"], revenue["columns"][2]) == ("revenue", {"name": "total", "type": "BIGINT"})
    assert revenue["sql"].startswith("SELECT customer")
    assert every["name"] == "every"
    expected = [{"customer": "ann", "n": 2, "total": 330}, {"customer": "bob", "n": 1, "total": 120}]
    assert json.loads(answered)["rows"] == expected
    assert json.loads(refused)["errors"][0] == {
        "pointer": "sql", "line": 1, "column": 8, "detail": json.loads(refused)["errors"][0]["detail"],
    }  # fmt: skip
    assert "custmer" in json.loads(refused)["detail"]
    assert followed.startswith("event: snapshot\n")
    assert '"row": {"customer": "ann", "n": 2, "total": 330}' in followed
    assert "`pavane why compute/main`" in json.loads(bad)["detail"]  # no pod is here


@pytest.mark.timeout(180)
async def test_a_stream_goes_on_where_it_was_cut_off(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PIECE_ROWS", 2)
    token = await board.order(1, "ann", 250)
    await board.query("SELECT 1 AS one FROM revenue", after=token)
    async with board.followed("revenue") as events:
        first = await anext(events)
        assert (first["event"], first["changes"]) == (
            "snapshot", [{"diff": 1, "row": {"customer": "ann", "n": 1, "total": 250}}],
        )  # fmt: skip
        assert first["id"] == str(first["tick"])
        await board.order(2, "ann", 50)
        change = await anext(events)
        assert change["event"] == "changes"
        assert sorted((each["diff"], each["row"]["total"]) for each in change["changes"]) == [(-1, 250), (1, 300)]
    token = await board.order(3, "bob", 1)
    await board.query("SELECT 1 AS one FROM revenue", after=token)
    async with board.followed("revenue", after=change["id"]) as events:
        missed = await anext(events)
        assert (missed["event"], missed["changes"]) == (
            "changes", [{"diff": 1, "row": {"customer": "bob", "n": 1, "total": 1}}],
        )  # fmt: skip
    # A tick that is not there, as of a log that was made anew: the rows come again.
    async with board.followed("every", after="99999") as events:
        again = [await anext(events) for _ in range(3)]
    assert [each["event"] for each in again] == ["reset", "snapshot", "snapshot"]
    assert [each["complete"] for each in again[1:]] == [False, True]
    assert [each["id"] is None for each in again[1:]] == [True, False]
    assert sorted(row["row"]["id"] for each in again[1:] for row in each["changes"]) == [1, 2, 3]


@pytest.mark.timeout(180)
async def test_ticks_limits_and_what_is_refused(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "QUERY", Limits(rows=12, seconds=60.0))
    for number in range(12):
        token = await board.order(number, f"c{number % 3}", number)
    now = await board.query("SELECT count(*) AS n FROM every", after=token)
    assert now["rows"] == [{"n": 12}]
    later = await board.query("SELECT sum(n) AS n FROM revenue", after=await board.order(12, "c0", 1))
    assert later["rows"] == [{"n": 13}]
    assert (await board.query("SELECT sum(n) AS n FROM revenue", asOf=now["tick"]))["rows"] == [{"n": 12}]
    joined = "WITH big AS (SELECT * FROM every WHERE cents > 9) SELECT count(*) AS n FROM big JOIN revenue ON true"
    assert (await board.query(joined))["rows"] == [{"n": 6}]

    arrow = await board.api.http.post(
        f"{BASE}/sql",
        json={"sql": "SELECT id FROM every LIMIT 5"},
        headers={"Accept": "application/vnd.apache.arrow.stream"},
    )
    assert pa.ipc.open_stream(arrow.content).read_all().num_rows == 5
    assert int(arrow.headers["Pavane-Tick"]) >= later["tick"]

    for sql, more, status, line_and_column, words in (
        ("SELECT n\nFROM revenu", {}, 422, (2, 6), "there is no view revenu; views here: every, revenue"),
        ("SELECT n FROM", {}, 422, (1, 13), "this is no SQL"),
        ("SELECT n,\n  tootal FROM revenue", {}, 422, (2, 3), "tootal"),
        ("DROP TABLE revenue", {}, 422, (1, 1), "a query is one SELECT"),
        ("SELECT * FROM range(3)", {}, 422, (1, 15), "is no view"),
        ("SELECT * FROM read_csv('/etc/passwd')", {}, 422, (1, 15), "is no view"),
        ("SELECT n FROM revenue", {"asOf": 1 << 40}, 422, None, "can be read at ticks from"),
        ("SELECT n FROM revenue", {"after": "3:0"}, 400, None, "No table of the ComputeCluster reads partition 3"),
        ("SELECT n FROM revenue", {"after": "seven"}, 422, None, "wrong fields"),
    ):  # fmt: skip
        problem = await board.query(sql, status, **more)
        assert words in problem["detail"], problem
        if line_and_column is not None:
            assert (problem["errors"][0]["line"], problem["errors"][0]["column"]) == line_and_column, problem
    assert (await board.api.http.get(f"{BASE}/views/nothing")).status_code == 404
    assert (await board.api.http.get(f"{BASE}/views/nothing/changes")).status_code == 404
    token = await board.api.service_account_token("nobody")
    for verb, path in (("GET", "/views"), ("POST", "/sql"), ("GET", "/views/revenue/changes"), ("GET", "/bad-rows")):
        answer = await board.api.http.request(
            verb, BASE + path, headers={"Authorization": f"Bearer {token}"}, json={"sql": "SELECT 1"}
        )
        assert answer.status_code == 403, path

    for partition, use in ((TICKS, "ticks"), (VIEWS, "views")):
        for what in ("transactions", "trim?before=0"):
            path = f"/api/v1/namespaces/default/waltzclusters/ledger/partitions/{partition}/{what}"
            answer = await board.api.http.post(path, content=b"mine")
            assert answer.status_code == 409
            assert f"Partition {partition} is for the {use} of ComputeCluster main" in answer.json()["detail"]

    much = "SELECT length(repeat('x', 2000000000)) AS n FROM every"
    assert "more than the 1024 MiB of memory" in (await board.query(much, 413))["detail"]
    assert "more than 12 rows" in (await board.query("SELECT * FROM every", 413))["detail"]
    assert (await board.query("SELECT count(*) AS n FROM every"))["rows"] == [{"n": 13}]

    mine = board.api.app.state.control.queries
    await mine.close()
    mine._confined = None
    monkeypatch.setattr(kept, "QUERY", Limits(rows=12, seconds=3.0))
    bomb = "SELECT count(*) AS n FROM " + ", ".join(f"every e{number}" for number in range(12))
    beside = False
    while not beside:  # a slow machine may answer others after that time
        bombs = [asyncio.create_task(board.query(bomb, 504)) for _ in range(2)]
        async with mine.admitted("another") as answer:  # another namespace's turn
            with suppress(QueryTooSlow):
                assert (await answer(Query("SELECT 1 AS one"), dict)).to_pylist() == [{"one": 1}]
                beside = not any(each.done() for each in bombs)
        for each in bombs:
            assert "longer than 3 s" in (await each)["detail"]


async def test_a_query_whose_caller_has_gone_keeps_nobody_waiting(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "QUERY", Limits(rows=12, seconds=2 * WAIT_S))
    for number in range(12):
        token = await board.order(number, "ann", number)
    assert (await board.query("SELECT count(*) AS n FROM every", after=token))["rows"] == [{"n": 12}]
    bomb = "SELECT count(*) AS n FROM " + ", ".join(f"every e{number}" for number in range(12))
    asking = asyncio.create_task(board.query(bomb))
    queries = board.api.app.state.control.queries
    await eventually(lambda: queries._confined._busy == 1, WAIT_S)
    asking.cancel()
    assert (await board.query("SELECT count(*) AS n FROM every"))["rows"] == [{"n": 12}]


async def test_views_of_a_namesake_in_another_partition_are_read_anew() -> None:
    """A ComputeCluster that was deleted and made again may keep its views elsewhere."""

    class Logs:
        def __init__(self) -> None:
            self.log = Waltz(["127.0.0.1:1"])

        @asynccontextmanager
        async def of(self, namespace: str, name: str) -> AsyncIterator[Waltz]:
            yield self.log

    views = kept.KeptViews(cast("WaltzClients", Logs()))
    found = []
    for partition in (3, 3, 4):
        async with views.of("default", "main", "ledger", TICKS, partition) as lent:
            found.append(lent)
    assert found[0] is found[1] is not found[2]


async def test_a_gate_asks_a_view_and_takes_nothing_but_one_number_for_an_answer(board: Board, tmp_path: Path) -> None:
    await board.order(1, "ann", 250)
    await board.query("SELECT 1 AS one FROM revenue", after=await board.order(2, "bob", 120))
    wanted = {
        "SELECT count(*) AS n FROM every": Verdict.PASSED,
        "SELECT CAST(sum(cents) AS DECIMAL(20, 2)) AS c FROM every": Verdict.PASSED,
        "SELECT n FROM revenue WHERE customer = 'ann'": Verdict.FAILED,
        "SELECT n FROM revenue": Verdict.INCONCLUSIVE,
        "SELECT n, n + 1 AS m FROM revenue WHERE customer = 'ann'": Verdict.INCONCLUSIVE,
        "SELECT n FROM revenue WHERE customer = 'carl'": Verdict.INCONCLUSIVE,
        "SELECT sum(cents) AS c FROM every WHERE cents < 0": Verdict.INCONCLUSIVE,
        "SELECT customer FROM revenue WHERE customer = 'ann'": Verdict.INCONCLUSIVE,
        "SELECT CAST('NaN' AS DOUBLE) AS d FROM revenue WHERE customer = 'ann'": Verdict.INCONCLUSIVE,
        "SELECT custmer FROM revenue": Verdict.INCONCLUSIVE,
        "DELETE FROM revenue": Verdict.INCONCLUSIVE,
    }
    (tmp_path / "token").write_text(board.api.token)
    asker = GateAsker(Sources(None, str(board.api.http.base_url), tmp_path / "token"), now, lambda: None)
    questions = {sql: asked_of("main", sql) for sql in wanted}
    stranger = asked_of("other", "SELECT count(*) AS n FROM every")

    def verdicts() -> dict[str, Verdict]:
        standings = asker.standings
        return {sql: standings[each].verdict for sql, each in questions.items() if each in standings}

    try:
        asker.keep((*questions.values(), stranger))
        await eventually(lambda: verdicts() == wanted and stranger in asker.standings, WAIT_S)
        assert asker.standings[stranger].verdict is Verdict.INCONCLUSIVE
        assert "at line 1, column 8" in asker.standings[questions["SELECT custmer FROM revenue"]].answer.message
    finally:
        await asker.close()


async def test_a_gate_says_nothing_once_views_have_stood_still(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "STALE_MAX_S", 2.0)
    monkeypatch.setattr(gates, "ASK_S", 0.1)
    sql = "SELECT count(*) AS n FROM every"
    for number in (1, 2):
        await board.query(sql, after=await board.order(number, "ann", 1))
    (tmp_path / "token").write_text(board.api.token)
    asker = GateAsker(Sources(None, str(board.api.http.base_url), tmp_path / "token"), now, lambda: None)
    asked = asked_of("main", sql)
    try:
        asker.keep((asked,))
        await eventually(lambda: _verdict(asker, asked) is Verdict.PASSED, WAIT_S)
        board.keeping.cancel()
        await asyncio.wait({board.keeping})
        for _ in range(5):
            assert (await board.query(sql))["staleMs"] == 0, "they lack nothing"
        await board.order(3, "ann", 1)
        await eventually(lambda: _verdict(asker, asked) is Verdict.INCONCLUSIVE, WAIT_S)
        assert "lacked rows of their tables" in asker.standings[asked].answer.message
        assert (await board.query(sql))["staleMs"] > 2000
    finally:
        await asker.close()


def _verdict(asker: GateAsker, asked: Question) -> Verdict | None:
    standing = asker.standings.get(asked)
    return standing.verdict if standing is not None else None


def now() -> datetime:
    return datetime.now(UTC)


def asked_of(compute: str, sql: str) -> Question:
    gate = GateSpec.read({"name": "g", "for": "0s", "sql": {"compute": compute, "query": sql, "min": 2}})
    return question(gate, (), {"namespace": "default", "name": "q", "generation": "2"})


async def test_a_token_for_gates_opens_queries_and_nothing_else(board: Board) -> None:
    token = await board.api.service_account_token("asking", "pavane-gates")
    headers = {"Authorization": f"Bearer {token}"}
    answer = await board.api.http.post(f"{BASE}/sql", json={"sql": "SELECT 1 AS one FROM revenue"}, headers=headers)
    assert answer.status_code == 403, "it is known who asks, and it has no right to"
    assert (await board.api.http.get(f"{BASE}/views", headers=headers)).status_code == 401
