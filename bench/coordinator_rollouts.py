"""Rollouts of a Coordinator under calls through the REST API (ambrosia.md 14): the longest time without an answer.

Alice pays Bob one coin after the other, several callers at a time. What she and he have afterwards tells whether a call
was lost or doubled. In every second run the application gets a greater version; in every second run
of either kind the operator is killed in the middle.
"""

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2

from bench.cluster import BenchError, running
from bench.options import Options
from bench.report import Measure, greatest_of, median_of
from bench.view_rollouts import kill_pod
from pavane_api.kinds import COORDINATORS
from pavane_api.rollout.actions import ACTIONS, act
from pavane_cli import output
from pavane_cli.commands.resources import changes, is_current
from pavane_cli.plane import ApiError, RestClient, control_plane
from pavane_cli.target import Where
from pavane_operator.kube import KubeClient
from pavane_operator.kube.resources import CONFIG_MAPS

EXAMPLE = Path(__file__).parents[1] / "examples" / "bank.yaml"
VERSIONS = EXAMPLE.with_suffix("")
PAYER, PAYEE, NAMESPACE = "alice", "bob", "default"
MONEY = 1_000_000
CALLERS = 10
CALLS_PER_S = 100.0
AGAIN_S = 0.02
WARM_UP_CALLS = 100
"""Answered before a rollout begins, and again after it."""
GAP_MS, MEDIAN_MS = 1000.0, 500.0
ROLLOUT_TIMEOUT_S = 120.0
PLAIN, UPGRADE, KILL_OPERATOR, BOTH = "plain", "upgraded", "operator killed", "upgraded, operator killed"
RUNS = (PLAIN, UPGRADE, KILL_OPERATOR, BOTH)
"""What happens in one run after the other, again and again."""


class Callers:
    """Several callers that pay one coin at a time; each waits for the answer before it calls again."""

    def __init__(self, rest: RestClient) -> None:
        self.answered = 0
        self.longest_s = 0.0
        """The longest time without any answer since ``begin``."""
        self._rest = rest
        self._last = time.monotonic()
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Start to call."""
        label = uuid.uuid4().hex
        self._last = time.monotonic()
        self._tasks = [asyncio.create_task(self._call(f"{label}/{number}")) for number in range(CALLERS)]

    async def reach(self, answered: int) -> None:
        """Wait for so many answers in all."""
        while self.answered < answered:
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(AGAIN_S)

    async def stop(self) -> None:
        """Wait for the answers of all calls under way."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _call(self, label: str) -> None:
        pause, due = CALLERS / CALLS_PER_S, time.monotonic()
        for number in itertools.count():
            if self._stopping:
                return
            if await ask(self._rest, "POST", f"{PAYER}/call/transfer", [PAYEE, 1], f"{label}/{number}") is not True:
                raise BenchError(f"{PAYER} has no money left")
            now = time.monotonic()
            self.longest_s = max(self.longest_s, now - self._last)
            self._last = now
            self.answered += 1
            due = max(due + pause, now)
            await asyncio.sleep(due - now)


async def ask(rest: RestClient, verb: str, path: str, body: Any = None, key: str = "") -> Any:
    """Ask until somebody answers: with the same key a call happens once."""
    while True:
        try:
            headers = {"Idempotency-Key": key} if key else None
            answer = await rest.send(verb, f"/namespaces/{NAMESPACE}/coordinators/{path}", body, headers)
        except (ApiError, httpx2.TransportError) as error:
            if isinstance(error, ApiError) and error.status not in (503, 504):
                raise
            await asyncio.sleep(AGAIN_S)
        else:
            return answer["result"]


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Roll out again and again; every run has callers and a proof of its own."""
    longest: dict[str, list[float]] = {}
    told, lost, doubled, answered = [], 0, 0, 0
    # --fast: an operator that is killed again and again comes back soon
    with running(folder, "--fast", str(EXAMPLE)) as cluster:
        await cluster.until_ready()
        where = Where(cluster.kubeconfig)
        async with control_plane(where, None, None) as rest, cluster.client() as kube:
            await ask(rest, "POST", f"{PAYER}/call/open", [MONEY], uuid.uuid4().hex)
            version = 0
            for number, what in zip(range(options.runs), itertools.cycle(RUNS), strict=False):
                version += what in (UPGRADE, BOTH)
                callers = Callers(rest)
                before = await balance(rest, PAYEE)
                async with calling(callers):
                    gap_ms, took_s = await roll(kube, what, version)
                moved = await balance(rest, PAYEE) - before
                lost += max(0, callers.answered - moved)
                doubled += max(0, moved - callers.answered)
                answered += callers.answered
                longest.setdefault(what, []).append(callers.longest_s * 1000)
                told.append(gap_ms)
                output.note(
                    f"rollout {number + 1}, {what}: {callers.answered} answered, {moved} happened, longest wait "
                    f"{longest[what][-1]:.0f} ms, writeGapMs {gap_ms:.0f}, {took_s:.1f} s"
                )
            missing = MONEY - await balance(rest, PAYER) - await balance(rest, PAYEE)
    each = list(itertools.chain.from_iterable(longest.values()))
    return [
        median_of("longest time without an answer, median", "ms", each, MEDIAN_MS),
        *(median_of(f"of these {what}", "ms", found) for what, found in longest.items()),
        greatest_of("longest time without an answer, each", "ms", each, GAP_MS),
        greatest_of("writeGapMs of status.history, each", "ms", told, GAP_MS),
        Measure("calls answered, all runs", answered, ""),
        Measure("answered calls lost, all runs", lost, "", 0, vital=True),
        Measure("calls doubled, all runs", doubled, "", 0, vital=True),
        Measure("coins missing at the end", missing, "", 0, vital=True),
    ]


@contextlib.asynccontextmanager
async def calling(callers: Callers) -> AsyncIterator[None]:
    """Have calls answered before, during and after what is done inside."""
    callers.begin()
    try:
        await callers.reach(WARM_UP_CALLS)
        yield
        await callers.reach(callers.answered + WARM_UP_CALLS)
    finally:
        await callers.stop()


async def balance(rest: RestClient, account: str) -> int:
    money: Mapping[str, int] = await ask(rest, "GET", f"{account}/query/money")
    return money["balance"]


async def roll(kube: KubeClient, what: str, version: int) -> tuple[float, float]:
    """One rollout; returns its `writeGapMs` and its seconds."""
    before = (await kube.get(COORDINATORS, PAYER, NAMESPACE))["status"]["activeGeneration"]
    began, killed = time.monotonic(), False
    if what in (UPGRADE, BOTH):
        await _upgrade(kube, version)
    else:
        await act(kube, COORDINATORS, NAMESPACE, PAYER, ACTIONS["restart"])
    async with asyncio.timeout(ROLLOUT_TIMEOUT_S):
        async with changes(kube, COORDINATORS, NAMESPACE, PAYER) as seen:
            async for change in seen:
                status = change.object["status"]
                state = (status.get("rollout") or {}).get("state", "Idle")
                if what in (KILL_OPERATOR, BOTH) and not killed and state in ("CaughtUp", "Promoting"):
                    killed = await kill_pod(kube, "pavane-system", "operator")
                if is_current(change.object) and status["activeGeneration"] > before:
                    if what in (KILL_OPERATOR, BOTH) and not killed:
                        raise BenchError("the rollout was over before the operator could be killed")
                    return float(status["history"][0]["writeGapMs"]), time.monotonic() - began
    raise BenchError("the watch of the resource ended")


async def _upgrade(kube: KubeClient, version: int) -> None:
    """Give the application of the payer a version greater than the one before: `bank2`, again and again."""
    files = {path.name: path.read_text(encoding="utf-8") for path in VERSIONS.glob("bank*.py")}
    await kube.apply(CONFIG_MAPS, {"metadata": {"name": "bank-2"}, "data": files}, NAMESPACE, manager="pavane-cli")
    former = "bank:Account" if version == 1 else "bank2:Account"
    command = ["pavane", "ambrosia", "run", former, "--upgrade", "bank2:Account"]
    application = {"command": command, "files": "bank-2", "version": version}
    await kube.patch(COORDINATORS, PAYER, {"spec": {"application": application}}, NAMESPACE)
