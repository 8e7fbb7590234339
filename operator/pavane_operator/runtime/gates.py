"""Asks what the gates of a spec want to know: pods of a generation, Prometheus, or views (docs/specs/operator.md 2.5).

Whoever may write a resource says what is asked. So it is asked of that resource's own pods alone, by the addresses that
the kubelet reported, of the one Prometheus that the operator's administrator names, and of views of its namespace by
way of the control plane, which reads the SQL; without redirects and proxies, in bounded time, and no more than so many
bytes are read.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import structlog

from pavane.parts import jsonpath
from pavane.runtime import asking
from pavane_operator.crds.gates import HttpGate, PrometheusGate, SqlGate
from pavane_operator.kube import pods_http
from pavane_operator.plan.questions import Answer, Question, Standing, fold
from pavane_operator.runtime.streams import socket_address

ASK_S = 2.0
"""Between two questions of one gate: with three bad answers in a row a bad generation is known within some seconds."""
ANSWER_S = 5.0
"""For one answer; a server that takes longer cannot be judged."""
ANSWER_BYTES_MAX = 64 * 1024
"""Of one answer: a gate looks at a number or a word."""
ASKED_AT_ONCE_MAX = 16
"""Pods that are asked for one resource at the same time; there may be up to a thousand."""
ROUND_S = 20.0
"""For all pods together; below the silence that begins the time of a gate anew."""
STALE_MAX_S = 30.0
"""Views that have lacked rows for longer stand still, and say nothing; up to 10 s lie between two ticks of some."""
VALUE_MAX_CHARACTERS = 64
"""Of what was found: a number or a word, not a page."""
NUMERIC = re.compile(r"u?int(8|16|32|64)|float|double|decimal(128|256)\(\d+, -?\d+\)")
"""Types of columns, as Arrow names them, whose values are numbers."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sources:
    """Who is asked beside pods; None = there is none."""

    prometheus_url: str | None = None
    control_plane_url: str | None = None
    token_file: Path | None = None
    """Holds the token that the control plane is shown, a new one from time to time."""


class GateAsker:
    """Asks the gates of one resource, each in a task of its own; `wake` is called when one stands otherwise."""

    def __init__(self, sources: Sources, now: Callable[[], datetime], wake: Callable[[], None]) -> None:
        self._sources = sources
        self._now = now
        self._wake = wake
        self._tasks: dict[Question, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._standings: dict[Question, Standing] = {}
        self._http: httpx2.AsyncClient | None = None
        """Its own, once something is asked: slow answers keep no connection from who looks after other resources."""
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    @property
    def standings(self) -> Mapping[Question, Standing]:
        """How the gates that are asked stand; missing while there is no answer yet."""
        return dict(self._standings)

    def keep(self, questions: Sequence[Question]) -> None:
        """Ask exactly these from now on, a new one at once; what others said is forgotten."""
        for question in self._tasks.keys() - set(questions):
            task = self._tasks.pop(question)
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            self._standings.pop(question, None)
        for question in questions:
            if question not in self._tasks:
                self._tasks[question] = asyncio.create_task(self._run(question), name=f"gate {question.gate.name}")

    async def close(self) -> None:
        """Ask no more."""
        self.keep(())
        if self._ending:
            await asyncio.wait(self._ending)
        if self._http is not None:
            await self._http.aclose()

    async def _run(self, question: Question) -> None:
        while True:
            answer = await self._ask(question)
            former = self._standings.get(question)
            standing = self._standings[question] = fold(former, answer, question.gate, self._now())
            if former is None or (former.verdict, former.since) != (standing.verdict, standing.since):
                self._wake()
            await asyncio.sleep(ASK_S)

    async def _ask(self, question: Question) -> Answer:
        """The worst answer of all pods; never raises but when it is cancelled."""
        try:
            async with asyncio.timeout(ROUND_S):
                if question.gate.sql is not None:
                    return await self._ask_views(question, question.gate.sql)
                if question.gate.http is None:
                    return await self._ask_prometheus(question)
                answers = await self._ask_pods(question.gate.http, question.addresses)
        except TimeoutError:
            return Answer(None, message=f"not all of {len(question.addresses)} pods answered within {ROUND_S:g} s")
        except Exception as error:
            log.exception("a gate could not be asked", gate=question.gate.name)
            return Answer(None, message=f"{type(error).__name__}: {error}")
        return worst(answers)

    async def _ask_pods(self, gate: HttpGate, addresses: Sequence[str]) -> list[Answer]:
        async def one(address: str) -> Answer:
            async with self._turns:
                return await self._ask_pod(gate, address)

        return await asyncio.gather(*map(one, addresses))

    async def _ask_pod(self, gate: HttpGate, address: str) -> Answer:
        place = socket_address(address, gate.port) if address else ""
        if not place:
            return Answer(None, message="a pod has no address yet")
        try:
            answer = await self._get(f"http://{place}{gate.path}")
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            return Answer(None, message=f"{place}: {error or type(error).__name__}")
        found = judged(gate, answer)
        return Answer(found.good, found.value, f"{place} {found.message}")

    async def _ask_prometheus(self, question: Question) -> Answer:
        gate = question.gate.prometheus
        if gate is None or self._sources.prometheus_url is None:
            return Answer(None, message="the operator knows no Prometheus: set gates.prometheus.url of its chart")
        url = f"{self._sources.prometheus_url.rstrip('/')}/api/v1/query"
        try:
            answer = await self._get(url, params={"query": question.query, "timeout": f"{ANSWER_S:g}s"})
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            return Answer(None, message=f"Prometheus: {error or type(error).__name__}")
        return measured(gate, answer)

    async def _ask_views(self, question: Question, gate: SqlGate) -> Answer:
        base, file = self._sources.control_plane_url, self._sources.token_file
        if base is None or file is None:
            return Answer(None, message="the operator knows no control plane: set api.enabled of its chart")
        url = f"{base.rstrip('/')}/{gate.path(question.namespace)}"
        try:
            token = (await asyncio.to_thread(file.read_text, encoding="ascii")).strip()
            headers = {"Authorization": f"Bearer {token}"}
            asked = {"sql": question.query}
            answer = await self._send("POST", url, headers=headers, json=asked)
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, OSError) as error:
            return Answer(None, message=f"{gate.who}: {error or type(error).__name__}")
        return selected(gate, answer)

    async def _get(self, url: str, **request: Any) -> asking.Answer:
        return await self._send("GET", url, **request)

    async def _send(self, verb: str, url: str, **request: Any) -> asking.Answer:
        if self._http is None:
            self._http = pods_http()
        limits: dict[str, Any] = {"within_s": ANSWER_S, "bytes_max": ANSWER_BYTES_MAX, "follow_redirects": False}
        return await asking.ask(self._http, verb, url, **limits, **request)


def judged(gate: HttpGate, answer: asking.Answer) -> Answer:
    """What one answer says: by its status or, with `jsonPath`, by what stands there."""
    status = str(answer.status)
    if gate.json_path is None:
        if answer.good:
            return Answer(True, status, f"answered {status}")
        bad = False if httpx2.codes.is_error(answer.status) else None
        return Answer(bad, status, f"answered {status}")
    if not answer.good:
        return Answer(None, status, f"answered {status}, without anything to look at")
    try:
        found = jsonpath.render(gate.json_path, answer.json())
    except ValueError as error:
        return Answer(None, message=f"answered what cannot be looked at: {error}")
    if not found:
        return Answer(None, message=f"answered nothing at {gate.json_path}")
    message = f"answered with this at {gate.json_path}"
    if gate.expect is not None and found != gate.expect:
        return Answer(False, found[:VALUE_MAX_CHARACTERS], f"{message}, not {gate.expect}")
    return bounded(found, message, gate.min, gate.max)


def measured(gate: PrometheusGate, answer: asking.Answer) -> Answer:
    """What Prometheus says: one number, or nothing."""
    try:
        told = answer.json()
        if told["status"] != "success":
            return Answer(None, message=f"Prometheus refused the query: {told.get('error')}")
        kind, result = told["data"]["resultType"], told["data"]["result"]
        if kind not in ("scalar", "vector"):
            return Answer(None, message=f"Prometheus answered with a {kind}: the query has to give one number")
        if kind == "vector" and len(result) != 1:
            several = f"{len(result)} series, one is wanted: add them up" if result else "no data"
            return Answer(None, message=f"Prometheus answered with {several}")
        found = str((result if kind == "scalar" else result[0]["value"])[1])
    except (ValueError, LookupError, TypeError, AttributeError):
        return Answer(None, message=f"Prometheus answered {answer.status}, with what is no result of a query")
    return bounded(found, "found by Prometheus", gate.min, gate.max)


def selected(gate: SqlGate, answer: asking.Answer) -> Answer:
    """What the views say: one row with one number, or nothing.

    Whoever reads the status may not be who may read the views. So nothing of them but a number is shown: no text, and
    of a query that is refused the place alone, for the words may hold what could not be converted.
    """
    who = gate.who
    try:
        told = answer.json()
        if not answer.good:
            return Answer(None, message=f"{who} answered {answer.status}{_why_not(answer.status, told)}")
        columns, rows, stale_ms = told["columns"], told["rows"], told["staleMs"]
        if stale_ms is None or stale_ms > STALE_MAX_S * 1000:
            age = "nobody knows how long" if stale_ms is None else f"up to {stale_ms / 1000:.0f} s"
            return Answer(None, message=f"{who} answered from views that have lacked rows of their tables for {age}")
        if len(columns) != 1 or len(rows) != 1:
            much = f"{len(rows)} rows of {len(columns)} columns"
            return Answer(None, message=f"{who} answered with {much}: the query has to give one number")
        kind, found = columns[0]["type"], rows[0][columns[0]["name"]]
        if not NUMERIC.fullmatch(kind):
            return Answer(None, message=f"{who} answered with a column that holds no numbers: CAST it, as to DOUBLE")
    except (ValueError, LookupError, TypeError, AttributeError):
        return Answer(None, message=f"{who} answered {answer.status}, with what is no result of a query")
    if found is None:
        return Answer(None, message=f"{who} answered with NULL, which is no number")
    text = "" if isinstance(found, bool | list | dict) else str(found).strip()
    judged = bounded(text, f"found by {who}", gate.min, gate.max)
    return judged if judged.good is not None else Answer(None, message=judged.message)


def _why_not(status: int, problem: Mapping[str, Any]) -> str:
    if status != httpx2.codes.UNPROCESSABLE_CONTENT:
        return f": {problem['detail']}"
    place: Mapping[str, Any] = next(iter(problem.get("errors") or ()), {})
    at = ", ".join(f"{name} {int(place[name])}" for name in ("line", "column") if place.get(name))
    return f": it refuses the query{f' at {at}' if at else ''}; ask it with `pavane sql query`, which says why"


def bounded(found: str, message: str, least: float | None, greatest: float | None) -> Answer:
    """Whether what was found, all of it, is within the limits; what is no finite number says nothing."""
    value = found[:VALUE_MAX_CHARACTERS]
    if least is None and greatest is None:
        return Answer(True, value, message)
    try:
        number = float(found) if found.isascii() and "_" not in found else math.nan  # float() takes more than numbers
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        return Answer(None, value, f"{message}, which is no number")
    if least is not None and number < least:
        return Answer(False, value, f"{message}, at least {least:g} is wanted")
    if greatest is not None and number > greatest:
        return Answer(False, value, f"{message}, at most {greatest:g} is wanted")
    return Answer(True, value, message)


def worst(answers: Sequence[Answer]) -> Answer:
    """Of several pods: a bad one counts, then one that says nothing, and so does that there is none."""
    if not answers:
        return Answer(None, message="there is no pod to ask")
    return min(answers, key=lambda each: (False, None, True).index(each.good))
