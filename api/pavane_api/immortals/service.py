"""Calls and queries of an immortal, carried to the HTTP port of the pod that leads."""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2

from pavane.parts.documents import TooDeep
from pavane.runtime.asking import Answer, AnswerRefused, ask
from pavane.telemetry import TRACEPARENT, current_traceparent
from pavane_api.control import Control
from pavane_api.documents import Document
from pavane_api.immortals.schemas import FlowHistory, FoundFlows
from pavane_api.kinds import COORDINATORS
from pavane_api.problems import BadRequest, Conflict, HandlerFailed, NotFound, OutcomeUnknown, Problem, Unavailable
from pavane_api.services_http import address_of
from pavane_operator.kinds.coordinator.names import HTTP

T = TypeVar("T")
D = TypeVar("D", bound=Document)

PATIENCE_S = 25.0  # for a pod that leads; callers wait 30 s for an answer
CONNECT_S = 2.0
AGAIN_S = (0.01, 0.1)  # first, longest; doubled between
PROBLEMS: Mapping[int, type[Problem]] = {400: BadRequest, 404: NotFound, 409: Conflict, 422: HandlerFailed}


async def call(control: Control, namespace: str, name: str, method: str, arguments: Any, key: str) -> Any:
    """Call a method once, however often it is sent, and return its result.

    Raises ``kube.NotFound``, and a problem: ``HandlerFailed`` for an exception of the handler, ``OutcomeUnknown`` if
    it was sent and nobody answered.
    """
    headers = {"Idempotency-Key": key, **_within_span()}
    path = f"/call/{quote(method, safe='')}"
    return await _ask(control, namespace, name, "POST", path, _result, json=arguments, headers=headers)


async def query(control: Control, namespace: str, name: str, query: str, parameters: Mapping[str, str]) -> Any:
    """Return the answer of a query; raises as ``call`` does."""
    return await _ask(
        control,
        namespace,
        name,
        "GET",
        f"/query/{quote(query, safe='')}",
        _result,
        params=dict(parameters),
        headers=_within_span(),
    )


async def flows(control: Control, namespace: str, name: str, sought: Sequence[tuple[str, str]]) -> FoundFlows:
    """Return the open flows that ``sought`` finds: parameters of the application's own port. Raises as ``query``."""
    parameters = httpx2.QueryParams(list(sought))
    return await _ask(control, namespace, name, "GET", "/flows", _found, params=parameters)


async def history(control: Control, namespace: str, name: str, number: int, start: int) -> FlowHistory:
    """Return an open flow with its steps from ``start`` on. Raises as ``query``."""
    return await _ask(control, namespace, name, "GET", f"/flows/{number}", _history, params={"from": start})


def _within_span() -> dict[str, str]:
    """Return the header by which the application's span becomes a child of the present one, if there is one."""
    traceparent = current_traceparent()
    return {TRACEPARENT: traceparent} if traceparent else {}


async def _ask(
    control: Control, namespace: str, name: str, verb: str, path: str, read: Callable[[Answer], T], **request: Any
) -> T:
    known, sent, why = False, False, "no pod serves calls"
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE_S
    again, longest = AGAIN_S
    while (left := end - loop.time()) > 0:
        try:
            host = await address_of(namespace, name)
            url = f"http://{host}:{HTTP.number}{path}"
            answer = await ask(control.pods, verb, url, within_s=left, connect_s=CONNECT_S, **request)
            if answer.status != Unavailable.status:
                return read(answer)
            told = answer.json()
            why = str(told.get("detail", "")) if isinstance(told, dict) else "the application said nothing of why"
        except (AnswerRefused, TooDeep) as error:  # the next one would be no other
            raise _strange(error) from error
        except (socket.gaierror, httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            if not known:  # asked only now: a call that is answered costs the API server nothing
                await control.kube.get(COORDINATORS, name, namespace)
                known = True
            why = f"the application cannot be reached: {error}"
        except (httpx2.HTTPError, ValueError) as error:
            sent, why = True, f"the application did not answer: {error!r}"
        await asyncio.sleep(again)
        again = min(again * 2, longest)
    text = f"{why}. `pavane why coord/{name}` says what the Coordinator waits for."
    if sent and verb == "POST":
        raise OutcomeUnknown(f"{text} Repeat the call with the same Idempotency-Key: it happens once.")
    raise Unavailable(text, headers={"Retry-After": "1"})


def _result(answer: Answer) -> Any:
    try:
        content = answer.json()
        if answer.good:
            return content["result"]
    except (ValueError, KeyError, TypeError) as error:
        raise _strange(error) from error
    raise _refused(answer, content)


def _found(answer: Answer) -> FoundFlows:
    return _told(FoundFlows, answer)


def _history(answer: Answer) -> FlowHistory:
    return _told(FlowHistory, answer)


def _told(kind: type[D], answer: Answer) -> D:
    try:
        content = answer.json()
        if answer.good:
            return kind.model_validate(content)
    except ValueError as error:
        if answer.status == NotFound.status:  # its server knows no such path
            text = "The application runs an earlier version of Pavane, which does not tell of its flows one by one."
            raise NotFound(text) from error
        raise _strange(error) from error
    raise _refused(answer, content)


def _refused(answer: Answer, content: Any) -> Problem:
    try:
        detail = f"{content['error']}: {content['detail']}"
    except (KeyError, TypeError) as error:
        return _strange(error)
    return PROBLEMS.get(answer.status, Unavailable)(detail)


def _strange(error: Exception) -> Unavailable:
    return Unavailable(f"The application's answer on port {HTTP.number} is none that is passed on: {error!r}")
