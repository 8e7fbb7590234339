"""The operator's stage streams and polls against real stage and ops ports (docs/specs/operator.md 3, 5.8)."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanContext, TraceFlags

from pavane.compute.wire.common import Epoch, Token
from pavane.compute.wire.responses import Blocker
from pavane.runtime.ops import OpsServer
from pavane.runtime.process import Process
from pavane.stage.client import StageStream
from pavane.stage.role import RoleReport
from pavane.stage.server import StageServer
from pavane.wire.stages import Stage
from pavane_operator.plan.model import PodBlocker, StageView
from pavane_operator.runtime import polls as polls_module
from pavane_operator.runtime.polls import POLL_S, PollTarget, StagePolls, next_turn, stage_view
from pavane_operator.runtime.streams import Epochs, StreamContext, Streams, socket_address
from tests.services.eventually import eventually
from tests.services.stage.noting_role import NotingRole

HOST = "127.64.97.1"
GENERATION = 3
NAME = "log-server-g3-0"


class Clock:
    """Moves when the test says so."""

    def __init__(self) -> None:
        self.at = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at


@dataclass
class Pod:
    role: NotingRole
    server: StageServer

    @property
    def wanted(self) -> dict[str, tuple[str, int]]:
        return {NAME: (socket_address(HOST, self.server.port), GENERATION)}


@dataclass
class Driver:
    streams: Streams
    clock: Clock
    wakes: list[None]

    def view(self) -> StageView:
        view = self.streams.view(NAME)
        assert view is not None
        return view

    async def until(self, **expected: object) -> StageView:
        def reached() -> StageView | None:
            view = self.streams.view(NAME)
            if view is not None and all(getattr(view, key) == value for key, value in expected.items()):
                return view
            return None

        found = await eventually(reached)
        assert isinstance(found, StageView)
        return found


async def start_server(role: NotingRole, port: int = 0) -> StageServer:
    server = StageServer(role, lambda code, reason: None, host=HOST, port=port)
    await server.start()
    return server


@pytest.fixture
async def pod() -> AsyncIterator[Pod]:
    role = NotingRole(generation=GENERATION)
    found = Pod(role, await start_server(role))
    yield found
    await found.server.stop()


@pytest.fixture
async def driver() -> AsyncIterator[Driver]:
    clock, wakes = Clock(), list[None]()
    context = StreamContext("raft", Epochs(7), random.Random(1), clock, lambda: wakes.append(None))
    found = Driver(Streams(context), clock, wakes)
    yield found
    await found.streams.close()


async def test_a_stream_tells_the_stage_and_leads_up_to_writing(pod: Pod, driver: Driver) -> None:
    await driver.streams.keep(pod.wanted)
    view = await driver.until(connected=True)
    assert (view.stage, view.asked) == (Stage.INITIALIZATION, None)
    assert driver.streams.advance(NAME, Stage.READ_ONLY, {"bootstrap": "entry", "initial": "[]"})
    assert driver.view().asked is Stage.READ_ONLY
    await driver.until(stage=Stage.READ_ONLY)
    driver.streams.advance(NAME, Stage.READ_WRITE, {})
    await driver.until(stage=Stage.READ_WRITE)
    told = {"bootstrap": "entry", "initial": "[]"}
    assert ("read_write", Token(GENERATION, 7), told) in pod.role.calls
    assert driver.wakes


class TracedRole(NotingRole):
    """Notes in which trace it was called."""

    async def read_only(self) -> None:
        self.calls.append(("trace", trace.get_current_span().get_span_context().trace_id))
        await super().read_only()


async def test_a_command_belongs_to_the_trace_in_which_it_was_asked_for(driver: Driver) -> None:
    cause = SpanContext(0xABC, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    role = TracedRole(generation=GENERATION)
    server = await start_server(role)
    await driver.streams.keep(Pod(role, server).wanted)
    await driver.until(connected=True)
    with trace.use_span(trace.NonRecordingSpan(cause)):
        driver.streams.advance(NAME, Stage.READ_ONLY, {})
    await driver.until(stage=Stage.READ_ONLY)
    await driver.streams.close()
    await server.stop()
    assert ("trace", cause.trace_id) in role.calls


async def test_reports_become_what_the_planner_reads(pod: Pod, driver: Driver) -> None:
    blockers = (Blocker("NoQuorum", "no leader", {"a": "b"}), Blocker("Slow", info=True))
    pod.role.latest = RoleReport(
        progress=5, target=9, blockers=blockers, leads=True, first_write_ms=11, last_write_ms=12, write_gap_ms=13
    )
    await driver.streams.keep(pod.wanted)
    await driver.until(connected=True)
    driver.streams.advance(NAME, Stage.READ_WRITE, {})
    view = await driver.until(stage=Stage.READ_WRITE, leads=True)
    assert (view.progress, view.target, view.fence) == (5, 9, GENERATION)
    assert view.blockers == (PodBlocker("NoQuorum", "no leader", {"a": "b"}),)
    assert (view.first_write_ms, view.last_write_ms, view.write_gap_ms) == (11, 12, 13)


async def test_the_lag_clock_runs_without_a_break_and_begins_anew_after_one(pod: Pod, driver: Driver) -> None:
    driver.streams.context.allowed_lag = 10
    pod.role.latest = RoleReport(progress=0, target=10)
    began = driver.clock.at
    await driver.streams.keep(pod.wanted)
    assert (await driver.until(connected=True)).within_lag_since == began
    driver.clock.at += timedelta(seconds=3)
    pod.role.latest = RoleReport(progress=5, target=10)
    pod.server.notify()
    assert (await driver.until(progress=5)).within_lag_since == began
    pod.role.latest = RoleReport(progress=5, target=16)
    pod.server.notify()
    assert (await driver.until(target=16)).within_lag_since is None
    driver.clock.at += timedelta(seconds=3)
    pod.role.latest = RoleReport(progress=16, target=16)
    pod.server.notify()
    assert (await driver.until(progress=16)).within_lag_since == driver.clock.at


async def test_a_pod_that_still_builds_what_it_serves_has_not_caught_up(pod: Pod, driver: Driver) -> None:
    pod.role.latest = RoleReport(blockers=(Blocker("NotHydrated", "the views are being built"),))
    await driver.streams.keep(pod.wanted)
    assert (await driver.until(connected=True, progress=0, target=0)).within_lag_since is None
    driver.clock.at += timedelta(seconds=3)
    pod.role.latest = RoleReport(progress=7, target=7)
    pod.server.notify()
    assert (await driver.until(progress=7)).within_lag_since == driver.clock.at


async def test_a_pod_that_restarts_is_dialled_again_and_has_to_be_led_anew(pod: Pod, driver: Driver) -> None:
    await driver.streams.keep(pod.wanted)
    await driver.until(connected=True)
    driver.streams.advance(NAME, Stage.READ_ONLY, {})
    await driver.until(stage=Stage.READ_ONLY)
    port = pod.server.port
    await pod.server.stop()
    gone = await driver.until(connected=False)
    assert (gone.asked, gone.within_lag_since) == (None, None)
    pod.role = NotingRole(generation=GENERATION)
    pod.server = await start_server(pod.role, port)
    again = await driver.until(connected=True)
    assert (again.stage, again.asked) == (Stage.INITIALIZATION, None)


async def test_a_stream_that_is_not_wanted_any_more_is_closed(pod: Pod, driver: Driver) -> None:
    await driver.streams.keep(pod.wanted)
    await driver.until(connected=True)
    await driver.streams.keep({})
    assert driver.streams.view(NAME) is None
    assert not driver.streams.advance(NAME, Stage.READ_ONLY, {})
    await eventually(lambda: pod.server.streams == 0)


async def test_nobody_answers_nothing_is_known(driver: Driver) -> None:
    await driver.streams.keep({NAME: (socket_address(HOST, 1), GENERATION)})
    assert driver.streams.view(NAME) is None


async def test_a_pod_that_knows_a_later_operator_is_told_to_the_guard(pod: Pod, driver: Driver) -> None:
    async with StageStream(
        socket_address(HOST, pod.server.port), epoch=Epoch(9, 1), kind="raft", generation=GENERATION
    ):
        await driver.streams.keep(pod.wanted)
        async with asyncio.timeout(20):
            await driver.streams.context.epochs.superseded.wait()
    epochs = driver.streams.context.epochs
    assert epochs.greatest_met == 9
    epochs.raised(10)
    await driver.until(connected=True)
    assert not epochs.superseded.is_set()


async def test_an_own_epoch_that_the_pod_has_seen_is_passed(pod: Pod, driver: Driver) -> None:
    """A pod that kept its process remembers (7, 50) of our former stream."""
    address = socket_address(HOST, pod.server.port)
    async with StageStream(address, epoch=Epoch(7, 50), kind="raft", generation=GENERATION):
        await driver.streams.keep(pod.wanted)
        await driver.until(connected=True)
    assert not driver.streams.context.epochs.superseded.is_set()


# ---- polls


@dataclass
class Ops:
    document: dict[str, Any]


@pytest.fixture
async def ops(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ops]:
    found = Ops({"stage": "ReadOnly", "progress": 1, "target": 2, "blockers": []})
    process = Process()
    server = OpsServer(
        host=HOST,
        port=0,
        live=lambda: None,
        ready=lambda: None,
        metrics=tuple,
        documents={"/stage": lambda: found.document},
    )
    await server.start(process)
    monkeypatch.setattr(polls_module, "OPS_PORT", server.port)
    yield found
    await server.stop()
    await process.cancel_tasks()


async def test_a_pod_without_a_stream_is_asked_at_once_and_then_again(
    ops: Ops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polls_module, "POLL_S", 0.02)
    wakes: list[None] = []
    async with httpx2.AsyncClient() as http:
        polls = StagePolls(http, random.Random(1), lambda: wakes.append(None))
        polls.keep({PollTarget("u1", HOST, 0): None})
        first = await eventually(lambda: polls.view("u1"))
        assert (first.stage, first.connected, first.progress) == (Stage.READ_ONLY, False, 1)
        ops.document["progress"] = 2
        await eventually(lambda: getattr(polls.view("u1"), "progress", None) == 2)
        assert len(wakes) == 2
        polls.keep({PollTarget("u1", HOST, 1): None})
        assert polls.view("u1") is None
        polls.keep({})
        assert polls.view("u1") is None
        await polls.close()


@pytest.mark.parametrize("pods", [1, 3, 50])
def test_the_pods_of_a_resource_take_turns_and_each_is_asked_no_more_often(pods: int) -> None:
    rng, dues = random.Random(pods), [0.0] * pods
    asked: list[tuple[float, int]] = []
    while len(asked) < 20 * pods:
        pod = dues.index(min(dues))
        asked.append((dues[pod], pod))
        dues[pod] = next_turn(dues[pod], dues, rng.uniform(0.8, 1.0))
    steady = asked[2 * pods :]
    gaps = [after - before for (before, _), (after, _) in pairwise(steady)]
    assert max(gaps) <= POLL_S / pods + 1e-6
    assert min(gaps) >= 0.8 * POLL_S / pods - 1e-6
    assert [pod for _, pod in steady[:pods]] == [pod for _, pod in steady[-pods:]], "in turns"


async def test_what_is_known_counts_until_the_pod_has_answered(ops: Ops) -> None:
    known = StageView(stage=Stage.READ_WRITE, connected=False)
    async with httpx2.AsyncClient() as http:
        polls = StagePolls(http, random.Random(1), lambda: None)
        polls.keep({PollTarget("u1", HOST, 0): known})
        assert polls.view("u1") is known
        await eventually(lambda: getattr(polls.view("u1"), "stage", None) is Stage.READ_ONLY)
        await polls.close()


async def test_what_a_stream_said_counts_more_than_an_older_answer(ops: Ops) -> None:
    """The older one would open the stream again, which would say the same: many times a second, until the next turn."""
    target, known = PollTarget("u1", HOST, 0), StageView(stage=Stage.READ_WRITE, connected=False)
    async with httpx2.AsyncClient() as http:
        polls = StagePolls(http, random.Random(1), lambda: None)
        polls.keep({target: None})
        await eventually(lambda: polls.view("u1"))
        ops.document["stage"] = Stage.READ_WRITE.title
        polls.keep({target: known})
        assert polls.view("u1") is known
        await eventually(lambda: getattr(polls.view("u1"), "progress", None) == 1)
        assert getattr(polls.view("u1"), "stage", None) is Stage.READ_WRITE
        await polls.close()


async def test_a_pod_that_does_not_answer_yet_is_asked_soon_again(ops: Ops) -> None:
    broken, ops.document = ops.document, {"stage": "Unheard"}
    async with httpx2.AsyncClient() as http:
        polls = StagePolls(http, random.Random(1), lambda: None)
        polls.keep({PollTarget("u1", HOST, 0): None})
        ops.document = broken
        await eventually(lambda: polls.view("u1"))
        await polls.close()


@pytest.mark.parametrize("document", [None, [], {}, {"stage": 3}, {"stage": "ReadOnly", "blockers": [{"text": "x"}]}])
def test_a_document_that_is_none_of_ours_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match="/stage"):
        stage_view(document)


def test_an_address_of_either_family_makes_a_socket_address() -> None:
    assert [socket_address("10.0.0.1", 1), socket_address("fd00::1", 1)] == ["10.0.0.1:1", "[fd00::1]:1"]
