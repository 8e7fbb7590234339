"""Steps of flows that are carried out beside the log: what has to be done, and what came of it (18.8).

Messages to oneself tell what came of a step; all of them may come twice, and then the first one counts.
"""

from collections.abc import Sequence
from typing import Any

from pavane.ambrosia.client.effects import Outside
from pavane.ambrosia.client.flows import ERROR, VALUE, Flow, error_bytes
from pavane.ambrosia.client.values import pack

RAN, FIRED, CLOCK, INGRESS = -16, -17, -18, -19
"""Methods of Impulses to oneself: the result of ``run``, a timer, the clock, a request from outside."""
KINDS = frozenset({"sleep", "now", "run"})
MALFORMED = (ValueError, TypeError, LookupError, ArithmeticError)
"""What reading content raises that this library does not write."""
_NONE = pack(None)


def wanted(flow: Flow, index: int) -> Outside:
    """Return what has to be done for a step of one of ``KINDS`` that has no result yet."""
    step = flow.steps[index]
    if step.kind == "run":
        if step.due >= 0:
            return Outside("timer", flow.number, index, due=step.due, attempt=step.attempts)
        *detail, retry = flow.details[index]
        return Outside("run", flow.number, index, detail=tuple(detail), attempt=step.attempts, retry=retry)
    if step.due >= 0:
        return Outside("timer", flow.number, index, due=step.due)
    return Outside("clock", flow.number, index)


def result(outside: Outside, value: Any) -> Sequence[Any]:
    """Return what is logged of a run that returned value. What cannot be written is no reason to run it again."""
    try:
        return True, outside.detail[-1].codec.pack(value)
    except Exception as error:  # of any kind: types of the application write themselves
        logged = (False, error_bytes(error))
        return logged if outside.retry is None else (*logged, outside.attempt, -1)


def failure(outside: Outside, error: Exception, now_ms: int) -> Sequence[Any]:
    """Return what is logged of a run that raised: with a policy also which attempt it was and when the next is due."""
    logged = (False, error_bytes(error))
    if outside.retry is None:
        return logged
    again = isinstance(error, outside.retry.on)
    delay_ms = outside.retry.delay_ms(outside.attempt + 1) if again else None
    return (*logged, outside.attempt, -1 if delay_ms is None else now_ms + delay_ms)


def again(logged: Sequence[Any]) -> bool:
    """Say whether a failure is followed by another attempt."""
    return len(logged) > 2 and logged[3] >= 0


def as_number(value: Any, bits: int = 63) -> int:
    """Return a number of at most so many bits that was logged; raises ``ValueError`` for anything else."""
    if not isinstance(value, int) or not 0 <= value < 1 << bits:
        raise ValueError(f"{str(value)[:100]} is no number that was logged")
    return value


def as_bytes(value: Any) -> bytes:
    """Return bytes that were logged; raises ``ValueError`` for anything else: of a number ``bytes`` makes zeros."""
    if not isinstance(value, bytes):
        raise ValueError(f"bytes were logged, not {type(value).__name__}")
    return value


def name_of(function: Any) -> str:
    """Return how a function that is run is called."""
    return getattr(function, "__qualname__", type(function).__name__)


def told(outside: Outside, *content: Any) -> tuple[int, bytes]:
    """Return method and arguments of the message that tells what came of it."""
    if outside.kind == "timer":
        content = () if outside.attempt < 0 else (outside.attempt,)
    method = {"clock": CLOCK, "timer": FIRED, "run": RAN}[outside.kind]
    return method, pack([outside.flow, outside.step, *content])


def came(flow: Flow, index: int, method: int, content: Sequence[Any], clock: int) -> tuple[int, bool]:
    """Take what a message tells of an open step; returns the clock from then on, and whether the message counts.

    Raises one of ``MALFORMED`` for content that this library does not write.
    """
    step = flow.steps[index]
    if method == CLOCK:
        clock = max(clock, int(content[0]))
        if step.kind == "now":
            flow.settle(step, VALUE, pack(clock))
        elif step.due < 0:
            step.due = clock + round(float(step.method) * 1000)
        else:
            return clock, False
    elif method == FIRED and step.kind != "run":
        flow.settle(step, VALUE, _NONE)
    elif method == FIRED:
        if step.due < 0 or int(content[0]) != step.attempts:
            return clock, False
        step.due = -1
    elif method == RAN:
        state, value = VALUE if content[0] else ERROR, as_bytes(content[1])
        attempt, due = map(int, content[2:4] or (step.attempts, -1))
        if step.due >= 0 or attempt != step.attempts:
            return clock, False
        if due < 0:
            flow.settle(step, state, value)
        else:
            step.attempts, step.due = step.attempts + 1, due
    return clock, True
