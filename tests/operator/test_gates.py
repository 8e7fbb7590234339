"""Gates of a spec: what an answer says, how answers add up, and who is asked (docs/specs/operator.md 2.5)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pavane.runtime.asking import Answer as Said
from pavane_operator.crds.gates import GateSpec, HttpGate, PrometheusGate, SqlGate
from pavane_operator.crds.status import State, Status, Verdict
from pavane_operator.plan.model import Problem
from pavane_operator.plan.planner import GATE_INTERVAL
from pavane_operator.plan.questions import SILENCE_MAX, Answer, Question, Standing, fold
from pavane_operator.plan.questions import question as question_of
from pavane_operator.runtime import gates as gates_module
from pavane_operator.runtime.gates import ANSWER_BYTES_MAX, GateAsker, Sources, judged, measured, selected, worst
from tests.operator.model_cluster import World
from tests.operator.model_cluster_gates import gate
from tests.operator.test_plan_status import Lab, conditions_of
from tests.services.eventually import eventually

HOST = "127.0.0.1"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
GOOD, BAD, NOTHING = Answer(True), Answer(False), Answer(None)


def spec(time: str = "10s", **http: Any) -> GateSpec:
    return GateSpec.read({"name": "probe", "for": time, "http": {"port": 1, "path": "/", **http}})


# ---- how answers add up


def folded(*answers: Answer, every: timedelta = SECOND, time: str = "3s") -> Standing:
    standing = None
    for number, answer in enumerate(answers):
        standing = fold(standing, answer, spec(time), NOW + number * every)
    assert standing is not None
    return standing


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ((GOOD,), Verdict.WAITING),
        ((GOOD,) * 3, Verdict.WAITING),
        ((GOOD,) * 4, Verdict.PASSED),
        ((GOOD, GOOD, GOOD, NOTHING, GOOD), Verdict.WAITING),
        ((GOOD, GOOD, GOOD, BAD, GOOD), Verdict.WAITING),
        ((GOOD,) * 9 + (BAD,), Verdict.FAILING),
        ((BAD, BAD), Verdict.FAILING),
        ((BAD, BAD, BAD), Verdict.FAILED),
        ((BAD, BAD, GOOD, BAD, BAD), Verdict.FAILING),
        ((BAD, BAD, NOTHING, BAD, BAD), Verdict.FAILING),
        ((NOTHING,) * 99, Verdict.INCONCLUSIVE),
        ((GOOD,) * 9 + (NOTHING,), Verdict.INCONCLUSIVE),
    ],
)
def test_only_what_is_good_all_the_time_passes_and_only_what_is_bad_in_a_row_fails(
    answers: tuple[Answer, ...], verdict: Verdict
) -> None:
    assert folded(*answers).verdict is verdict


def test_without_a_time_the_first_good_answer_passes() -> None:
    assert folded(GOOD, time="0s").verdict is Verdict.PASSED


def test_time_in_which_nobody_asked_does_not_count() -> None:
    late = SILENCE_MAX + SECOND
    assert folded(GOOD, GOOD, every=late).since == NOW + late
    assert folded(BAD, BAD, BAD, every=late).verdict is Verdict.FAILING


# ---- what an answer says

LAG: dict[str, Any] = {"jsonPath": "{.lag}", "max": 5}


@pytest.mark.parametrize(
    ("http", "status", "body", "good"),
    [
        ({}, 204, "", True),
        ({}, 503, "", False),
        ({}, 404, "", False),
        ({}, 302, "", None),
        (LAG, 200, '{"lag": 5}', True),
        (LAG, 200, '{"lag": 5.5}', False),
        (LAG, 200, '{"lag": "4"}', True),
        (LAG, 200, '{"lag": true}', None),
        (LAG, 200, '{"lag": NaN}', None),
        (LAG, 200, '{"lag": 1e999}', None),
        (LAG, 200, '{"lag": null}', None),
        (LAG, 200, "{}", None),
        (LAG, 200, "<html>", None),
        (LAG, 200, "[" * 999, None),
        (LAG, 503, '{"lag": 1}', None),
        ({"jsonPath": "{.pods[*].lag}", "max": 5}, 200, '{"pods": [{"lag": 1}, {"lag": 2}]}', None),
        ({"jsonPath": "{.lag}", "min": 1}, 200, '{"lag": 0}', False),
        ({"jsonPath": "{.ok}", "expect": "true"}, 200, '{"ok": true}', True),
        ({"jsonPath": "{.ok}", "expect": "true"}, 200, '{"ok": false}', False),
        ({"jsonPath": "{.o k}", "expect": "true"}, 200, '{"ok": true}', None),
        pytest.param(LAG, 200, json.dumps({"lag": "0" * 64 + " 9"}), None, id="no number, but it begins as one"),
    ],
)
def test_an_answer_is_good_or_bad_or_says_nothing(
    http: dict[str, Any], status: int, body: str, good: bool | None
) -> None:
    found = judged(HttpGate.read({"port": 1, "path": "/", **http}), Said(status, body.encode()))
    assert found.good is good
    assert found.message


def vector(*values: str) -> dict[str, Any]:
    result = [{"metric": {"pod": str(number)}, "value": [1.5, value]} for number, value in enumerate(values)]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


@pytest.mark.parametrize(
    ("told", "good"),
    [
        (vector("0.01"), True),
        (vector("0.02"), False),
        ({"status": "success", "data": {"resultType": "scalar", "result": [1.5, "0.01"]}}, True),
        (vector(), None),
        (vector("0.01", "0.01"), None),
        (vector("NaN"), None),
        (vector("+Inf"), None),
        ({"status": "success", "data": {"resultType": "matrix", "result": []}}, None),
        ({"status": "error", "errorType": "bad_data", "error": "parse error"}, None),
        ({"status": "success"}, None),
        ([], None),
        ("x", None),
    ],
)
def test_prometheus_has_to_give_one_number(told: object, good: bool | None) -> None:
    found = measured(PrometheusGate.read({"query": "x", "max": 0.01}), Said(200, json.dumps(told).encode()))
    assert found.good is good
    assert found.message


def rows(*found: object, columns: int = 1, kind: str = "int64") -> dict[str, Any]:
    names = [f"c{number}" for number in range(columns)]
    told = [dict.fromkeys(names, value) for value in found]
    return {"tick": 7, "staleMs": 900, "columns": [{"name": name, "type": kind} for name in names], "rows": told}


@pytest.mark.parametrize(
    ("status", "told", "good"),
    [
        (200, rows(3), True),
        (200, rows(6), False),
        (200, rows(4.5, kind="double"), True),
        (200, rows("4.50", kind="decimal128(9, 2)"), True),
        (200, rows("4.50", kind="string"), None),
        (200, rows("4.50", kind="list<item: decimal128(9, 2)>"), None),
        (200, rows("0a", kind="binary"), None),
        (200, rows(), None),
        (200, rows(1, 2), None),
        (200, rows(1, columns=2), None),
        (200, rows(None), None),
        (200, rows(True), None),
        (200, rows("NaN"), None),
        (200, rows("Infinity"), None),
        (200, rows("1_0"), None),
        (200, rows("٣"), None),
        (200, rows([1]), None),
        (200, rows({"a": 1}), None),
        (200, [], None),
        (200, {"rows": [{"c0": 1}]}, None),
        (200, rows(3) | {"staleMs": 30_000}, True),
        (200, rows(3) | {"staleMs": 30_001}, None),
        (200, rows(6) | {"staleMs": 30_001}, None),
        (200, rows(3) | {"staleMs": None}, None),
        (422, {"detail": "1:8: there is no column custmer."}, None),
        (404, {"detail": "There is no ComputeCluster main."}, None),
        (500, "x", None),
        (302, rows(3), None),
    ],
)
def test_views_have_to_give_one_row_with_one_number(status: int, told: object, good: bool | None) -> None:
    gate = SqlGate.read({"compute": "main", "query": "SELECT 1", "max": 5})
    found = selected(gate, Said(status, json.dumps(told).encode()))
    assert found.good is good
    assert "ComputeCluster main" in found.message


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (200, rows("secret", kind="string")),
        (200, rows("secret")),
        (200, rows(["secret"])),
        (422, {"detail": "Could not convert string 'secret' to INT32.", "errors": [{"detail": "secret", "line": 1}]}),
    ],
)
def test_no_text_of_a_view_is_shown(status: int, told: object) -> None:
    gate = SqlGate.read({"compute": "main", "query": "SELECT 1", "max": 5})
    found = selected(gate, Said(status, json.dumps(told).encode()))
    assert found.good is None
    assert "secret" not in f"{found.value} {found.message}"


def test_a_query_that_is_refused_is_told_its_place_and_other_problems_their_words() -> None:
    gate = SqlGate.read({"compute": "main", "query": "SELECT 1", "max": 5})
    refused = {"detail": "1:8: there is no column x.", "errors": [{"pointer": "sql", "line": 1, "column": 8}]}
    assert "at line 1, column 8" in selected(gate, Said(422, json.dumps(refused).encode())).message
    absent = {"detail": "There is no ComputeCluster main."}
    assert absent["detail"] in selected(gate, Said(404, json.dumps(absent).encode())).message


def test_the_worst_pod_counts_and_none_says_nothing() -> None:
    assert worst([GOOD, NOTHING, BAD, GOOD]) is BAD
    assert worst([GOOD, NOTHING]) is NOTHING
    assert worst([]).good is None


# ---- who is asked


class Server:
    """Answers on loopback as a test says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.port = 0
        self.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        self.asked: list[str] = []
        self.open = self.most = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split(b" ")[1].decode())
        self.open += 1
        self.most = max(self.most, self.open)
        await self.answers.wait()
        writer.write(self.answer)
        await writer.drain()
        self.open -= 1
        writer.close()

    def says(self, document: object) -> None:
        body = json.dumps(document).encode()
        self.answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body)


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(gates_module, "ASK_S", 0.01)
    found = Server()
    async with await asyncio.start_server(found.converse, HOST) as listening:
        found.port = listening.sockets[0].getsockname()[1]
        yield found


@asynccontextmanager
async def asker(
    wake: Callable[[], None] = lambda: None, prometheus: str | None = None, sources: Sources | None = None
) -> AsyncIterator[GateAsker]:
    found = GateAsker(sources or Sources(prometheus), lambda: datetime.now(UTC), wake)
    try:
        yield found
    finally:
        await found.close()


def question(server: Server, *addresses: str, time: str = "0s", **http: Any) -> Question:
    return Question(spec(time, port=server.port, **http), addresses)


async def until(asked: GateAsker, what: Question, verdict: Verdict) -> Standing:
    await eventually(lambda: what in asked.standings and asked.standings[what].verdict is verdict)
    return asked.standings[what]


async def test_pods_are_asked_again_and_again_and_the_operator_is_woken_when_it_matters(server: Server) -> None:
    wakes: list[None] = []
    what = question(server, HOST, path="/lag?of=me", jsonPath="{.lag}", max=5)
    async with asker(lambda: wakes.append(None)) as asked:
        server.says({"lag": 3})
        asked.keep([what])
        standing = await until(asked, what, Verdict.PASSED)
        assert standing.answer.value == "3"
        await eventually(lambda: len(server.asked) > 5)
        assert len(wakes) == 1
        server.says({"lag": 9})
        assert "at most 5 is wanted" in (await until(asked, what, Verdict.FAILED)).answer.message
        assert set(server.asked) == {"/lag?of=me"}
        asked.keep([])
        assert asked.standings == {}


async def test_a_redirect_is_not_followed(server: Server) -> None:
    what = question(server, HOST)
    server.answer = b"HTTP/1.1 302 Found\r\nlocation: /secret\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    async with asker() as asked:
        asked.keep([what])
        await until(asked, what, Verdict.INCONCLUSIVE)
        await eventually(lambda: len(server.asked) > 2)
    assert set(server.asked) == {"/"}


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (ANSWER_BYTES_MAX + 1), b"no HTTP\r\n\r\n"]
)
async def test_no_answer_and_too_much_of_one_say_nothing(server: Server, answer: bytes) -> None:
    what = question(server, HOST)
    server.answer = answer
    async with asker() as asked:
        asked.keep([what])
        assert HOST in (await until(asked, what, Verdict.INCONCLUSIVE)).answer.message


async def test_a_server_that_is_silent_says_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates_module, "ANSWER_S", 0.2)
    what = question(server, HOST)
    server.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"
    async with asker() as asked:
        asked.keep([what])
        await until(asked, what, Verdict.INCONCLUSIVE)


async def test_only_so_many_pods_are_asked_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates_module, "ASKED_AT_ONCE_MAX", 2)
    what = question(server, *[HOST] * 7)
    server.answers.clear()
    async with asker() as asked:
        asked.keep([what])
        await eventually(lambda: server.open >= 2)
        server.answers.set()
        await until(asked, what, Verdict.PASSED)
    assert server.most == 2


async def test_all_pods_have_to_answer_well(server: Server) -> None:
    what = question(server, HOST, "127.0.0.2")  # nobody listens on the other one
    async with asker() as asked:
        asked.keep([what])
        assert "127.0.0.2" in (await until(asked, what, Verdict.INCONCLUSIVE)).answer.message


QUERY = 'max(lag{namespace="${namespace}",pod=~"${name}-.*-g${generation}-.*"})'


def asking_prometheus() -> Question:
    asked = GateSpec.read({"name": "lag", "for": "0s", "prometheus": {"query": QUERY, "max": 5}})
    return question_of(asked, (HOST,), {"namespace": "data", "name": "log", "generation": "2"})


async def test_prometheus_is_asked_where_the_operators_settings_say_about_this_generation(server: Server) -> None:
    what = asking_prometheus()
    server.says(vector("3"))
    async with asker(prometheus=f"http://{HOST}:{server.port}/prefix/") as asked:
        asked.keep([what])
        assert (await until(asked, what, Verdict.PASSED)).answer.value == "3"
    url = httpx2.URL(server.asked[0])
    assert url.path == "/prefix/api/v1/query"
    assert url.params["query"] == 'max(lag{namespace="data",pod=~"log-.*-g2-.*"})'


async def test_without_a_prometheus_a_query_says_nothing() -> None:
    what = asking_prometheus()
    async with asker() as asked:
        asked.keep([what])
        assert "gates.prometheus.url" in (await until(asked, what, Verdict.INCONCLUSIVE)).answer.message


async def test_views_are_asked_in_the_namespace_of_the_resource_about_this_generation(
    server: Server, tmp_path: Path
) -> None:
    query = "SELECT max(lag) FROM lags WHERE pod LIKE '${name}-%-g${generation}-%'"
    gate = GateSpec.read({"name": "lag", "for": "0s", "sql": {"compute": "main", "query": query, "max": 5}})
    what = question_of(gate, (HOST,), {"namespace": "data", "name": "log", "generation": "2"})
    server.says(rows(3))
    (tmp_path / "token").write_text("secret\n")
    sources = Sources(control_plane_url=f"http://{HOST}:{server.port}/", token_file=tmp_path / "token")
    async with asker(sources=sources) as asked:
        asked.keep([what])
        assert (await until(asked, what, Verdict.PASSED)).answer.value == "3"
    assert set(server.asked) == {"/api/v1/namespaces/data/computeclusters/main/sql"}
    assert what.query == "SELECT max(lag) FROM lags WHERE pod LIKE 'log-%-g2-%'"


@pytest.mark.parametrize(
    "sources", [Sources(), Sources(control_plane_url="http://127.0.0.1:9", token_file=Path("/no"))]
)
async def test_without_a_control_plane_or_a_token_views_say_nothing(sources: Sources) -> None:
    gate = GateSpec.read({"name": "lag", "for": "0s", "sql": {"compute": "main", "query": "SELECT 1", "max": 5}})
    what = question_of(gate, (), {"namespace": "data", "name": "log", "generation": "2"})
    async with asker(sources=sources) as asked:
        asked.keep([what])
        assert (await until(asked, what, Verdict.INCONCLUSIVE)).answer.message


async def test_a_proxy_of_the_environment_is_not_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://{HOST}:9")
    what = question(server, HOST)
    async with asker() as asked:
        asked.keep([what])
        await until(asked, what, Verdict.PASSED)


@pytest.mark.parametrize("path", ["//other.example/", "/@other.example:80/", "/%2e%2e/", "/?url=http://other.example/"])
def test_no_path_leads_to_another_host(path: str) -> None:
    assert httpx2.URL(f"http://10.0.0.1:7071{path}").netloc == b"10.0.0.1:7071"
    assert HttpGate.read({"port": 1, "path": path}).path == path


@pytest.mark.parametrize("path", [".ok", "ok", "{.ok", "n={.ok}", "{.a}{.b}", '{"true"}', "{range .a[*]}{.b}{end}"])
def test_a_json_path_is_one_path_so_that_text_beside_it_is_never_taken_for_a_bad_answer(path: str) -> None:
    with pytest.raises(ValueError, match="jsonPath"):
        HttpGate.read({"port": 1, "path": "/", "jsonPath": path, "expect": "true"})


@pytest.mark.parametrize("path", ["other.example", "", "/a b", "/a\r\nx: y", "/a#b"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        HttpGate.read({"port": 1, "path": path})


# ---- what a user reads


def held(answer: bool | None, on_failure: str = "Hold") -> Lab:
    lab = Lab(gates=[gate(on_failure)])
    lab.active(1)
    lab.world.faults.answers["probe"] = answer
    lab.world.rollout(restart="1")
    return lab


def reported(status: Status) -> list[tuple[str, str, str | None]]:
    assert status.rollout is not None
    return [(each.name, each.verdict, each.value) for each in status.rollout.gates]


def test_a_gate_that_cannot_be_judged_is_named_in_status_conditions_and_an_event() -> None:
    lab = held(None)
    world = lab.until(lambda world: world.condition("UpToDate") == ("Unknown", "GateInconclusive"))
    assert reported(world.status) == [("probe", "Inconclusive", "1")]
    assert world.status.rollout is not None
    (blocker,) = world.status.rollout.blockers
    assert blocker.reason == "GateInconclusive"
    assert "gate probe is inconclusive since 00:00:" in blocker.message
    assert "1: as the test says" in blocker.message
    assert conditions_of(world.status)["CaughtUp"] == ("True", "CaughtUp")
    assert "GateInconclusive" in lab.told


def test_a_gate_that_says_something_else_each_second_is_written_as_often_as_a_text() -> None:
    lab = held(None)
    lab.until(lambda world: world.condition("UpToDate") == ("Unknown", "GateInconclusive"))
    written, began = lab.world.resource_version, lab.world.now

    def changing(world: World) -> bool:
        passed = world.now - began
        world.faults.answers["probe"] = None if passed // SECOND % 2 else True
        return passed >= 60 * SECOND

    lab.until(changing)
    assert 2 <= int(lab.world.resource_version) - int(written) <= 12


def test_what_a_gate_found_is_written_seldom_and_how_it_stands_at_once() -> None:
    lab = held(None)
    lab.until(lambda world: world.condition("UpToDate") == ("Unknown", "GateInconclusive"))
    written, began = lab.world.resource_version, lab.world.now
    lab.until(lambda world: world.now - began >= GATE_INTERVAL - 10 * SECOND)
    assert lab.world.resource_version == written
    lab.world.faults.answers["probe"] = True
    lab.until(lambda world: world.condition("UpToDate") == ("Unknown", "GateWaiting"))


def test_a_gate_that_only_waits_for_its_own_time_does_not_run_into_the_deadline() -> None:
    lab = Lab(gates=[gate("Hold", "probe", "80s")], deadline="30s", onDeadline="Abort")
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.condition("UpToDate") == ("Unknown", "GateWaiting"))
    began = lab.world.now
    lab.until(lambda world: world.status.active_generation == 2)
    assert lab.world.now - began >= 75 * SECOND


def test_an_answer_that_is_lost_beyond_the_deadline_costs_no_attempt_whose_gate_was_good() -> None:
    lab = Lab(gates=[gate("Hold", "probe", "80s")], deadline="60s", onDeadline="Abort")
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.condition("UpToDate") == ("Unknown", "GateWaiting"))
    began = lab.world.now
    lab.until(lambda world: world.now - began >= 70 * SECOND)
    lab.world.faults.answers["probe"] = None
    world = lab.until(lambda world: world.condition("UpToDate") == ("Unknown", "GateInconclusive"))
    assert world.status.rollout is not None
    assert world.status.rollout.held_seconds is not None
    assert 70 <= world.status.rollout.held_seconds <= 80
    lab.world.faults.answers["probe"] = True
    lab.until(lambda world: world.status.active_generation == 2)
    assert lab.world.now - began >= 150 * SECOND, "its time began anew"


def test_time_that_is_held_by_two_counts_once() -> None:
    lab = Lab(gates=[gate("Hold", "probe", "10m")], deadline="60s", onDeadline="Abort")
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.condition("UpToDate") == ("Unknown", "GateWaiting"))
    began = lab.world.now
    lab.until(lambda world: world.now - began >= 20 * SECOND)
    lab.world.rollout(paused=True)
    lab.until(lambda world: world.now - began >= 40 * SECOND)
    lab.world.rollout(paused=False)
    lab.until(lambda world: world.now - began >= 60 * SECOND)
    lab.world.faults.answers["probe"] = None
    world = lab.until(lambda world: world.condition("UpToDate") == ("Unknown", "GateInconclusive"))
    assert world.status.rollout is not None
    assert world.status.rollout.held_seconds is not None
    assert 60 <= world.status.rollout.held_seconds <= 70


@pytest.mark.parametrize("answer", [False, None])
def test_a_gate_that_is_not_good_runs_into_the_deadline(answer: bool | None) -> None:
    lab = Lab(gates=[gate("Hold", "probe", "10m")], deadline="60s", onDeadline="Abort")
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.condition("UpToDate") == ("Unknown", "GateWaiting"))
    lab.world.faults.answers["probe"] = answer
    world = lab.until(lambda world: world.status.failed is not None)
    assert world.status.failed is not None
    assert world.status.failed.reason == "DeadlineExceeded"


def test_an_answer_of_long_ago_passes_nothing() -> None:
    lab = held(None)
    lab.until(
        lambda world: world.state is State.CAUGHT_UP and reported(world.status) == [("probe", "Inconclusive", "1")]
    )
    (what,) = lab.operator.questions
    passed = Standing(Verdict.PASSED, lab.world.now - timedelta(hours=1), lab.world.now, GOOD)
    status = lab.status(gates={what: passed})
    assert status.rollout is not None
    assert status.rollout.state is State.PROMOTING
    lab.world.now += SILENCE_MAX + SECOND
    status = lab.status(gates={what: passed})
    assert status.rollout is not None
    assert status.rollout.state is State.CAUGHT_UP


def test_a_pod_that_is_missing_is_asked_too_so_that_the_gate_waits_for_it() -> None:
    lab = held(None)
    lab.until(lambda world: world.condition("UpToDate") == ("Unknown", "GateInconclusive"))
    pods = lab.operator.observe().pods
    gone = next(pod for pod in pods if pod.generation == 2)
    (all_of_them,) = lab.plan(pods=pods).questions
    (without_it,) = lab.plan(pods=tuple(pod for pod in pods if pod is not gone)).questions
    assert len(without_it.addresses) == len(all_of_them.addresses)
    assert "" in without_it.addresses


def test_an_attempt_that_is_forced_is_not_given_up_for_a_gate() -> None:
    lab = held(None, "Abort")
    lab.until(lambda world: world.condition("UpToDate") == ("Unknown", "GateInconclusive"))
    lab.world.rollout(forcePromote=2)
    silent = dataclasses.replace(lab.operator.observe().facts, safety=Problem("NoQuorum", "no majority"))
    assert lab.plan(facts=silent).questions == ()
