"""What an immortal tells of itself to a page: its handlers, where it is in its log, and the flows under way."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import to_jsonable_python

from pavane.ambrosia.client.definition import Method, Query
from pavane.ambrosia.client.effects import CALLED, FAILED, LATE
from pavane.ambrosia.client.flows import ERROR, OPEN, Flow, Step, remote
from pavane.ambrosia.client.values import unpack

if TYPE_CHECKING:
    from pavane.ambrosia.client.engine import Engine

FLOWS_TOLD_MAX = 50  # the oldest ones; all of them may be thousands
STEPS_TOLD_MAX = 5  # that one flow waits for
HISTORY_TOLD_MAX = 200  # steps of one answer
VALUE_BYTES_MAX = 2000  # of a value as JSON; 200 of them stay below what a caller reads of an answer


class FlowFilter(NamedTuple):
    """Which flows somebody looks for: all that is given has to be so."""

    method: str = ""
    caller: str = ""
    attributes: tuple[tuple[str, str], ...] = ()
    """Each with its value as people write it: ``7`` is the number and the text."""

    def finds(self, flow: Flow) -> bool:
        """Return whether this is one."""
        return (
            (not self.method or self.method in (flow.title, flow.title.rpartition(".")[2]))
            and (not self.caller or self.caller == flow.origin.sender)
            and all(_matches(flow.attributes, *each) for each in self.attributes)
        )


def flows(engine: Engine, sought: FlowFilter, start: int = 0) -> dict[str, Any]:
    """Return the oldest open flows that are sought, from number ``start`` on, and how many there are."""
    found = [each for each in engine.flows.values() if each.number >= start and sought.finds(each)]
    told = found[:FLOWS_TOLD_MAX]
    following = found[FLOWS_TOLD_MAX].number if len(found) > FLOWS_TOLD_MAX else None
    return {"items": [_flow(each) for each in told], "found": len(found), "next_from": following}


def history(engine: Engine, number: int, start: int = 0) -> dict[str, Any] | None:
    """Return an open flow with its arguments and its steps from ``start`` on; ``None`` if there is none.

    Values are JSON, shortened to VALUE_BYTES_MAX.
    """
    flow = engine.flows.get(number)
    if flow is None:
        return None
    signature = engine.definition.methods[flow.method].signature
    given = zip(signature.parameters, signature.unpack(flow.arguments), strict=True)
    return {
        **_flow(flow),
        "version": flow.version,
        "arguments": {name: _shown(codec.plain(value)) for (name, codec, _), value in given},
        "history": [
            _step(index, each) for index, each in enumerate(flow.steps[start : start + HISTORY_TOLD_MAX], start)
        ],
    }


def _matches(attributes: Mapping[str, Any], name: str, text: str) -> bool:
    if name not in attributes:
        return False
    value = attributes[name]
    if isinstance(value, str):
        return text == value
    try:
        wanted = json.loads(text)
    except ValueError:
        return False
    return isinstance(wanted, bool) == isinstance(value, bool) and bool(wanted == value)


def _step(index: int, step: Step) -> dict[str, Any]:
    told: dict[str, Any] = {"step": index, "kind": step.kind, "target": step.target, "name": step.method}
    if step.state == ERROR:
        told |= {"state": "failed", "error": _shown(str(remote(step.value)))}
    elif step.state == OPEN:
        told |= {"state": "open"}
    else:
        told |= {"state": "done", "result": _shown(unpack(step.value) if step.value else None)}
    if step.state != OPEN:
        told["arrived"] = step.order
    if step.due >= 0:
        told["due"] = step.due
    return {**told, "attempts": step.attempts + 1} if step.kind == "run" else told


def _shown(value: Any) -> Any:
    """Return a value as JSON; one that is too long as the beginning of its text."""
    plain = to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings", fallback=str)
    text = json.dumps(plain, ensure_ascii=False)
    data = text.encode(errors="replace")
    return plain if len(data) <= VALUE_BYTES_MAX else f"{data[:VALUE_BYTES_MAX].decode(errors='ignore')} …"


def about(engine: Engine) -> dict[str, Any]:
    """Return it as JSON values (docs/specs/ambrosia.md 18.6, ingress)."""
    return {
        "name": engine.name,
        "class": engine.kind.__qualname__,
        "life": engine.life.value,
        "seq": engine.seq,
        "called": engine.counts[CALLED],
        "failed": engine.counts[FAILED],
        "late": engine.counts[LATE],
        "flows_open": len(engine.flows),
        "flows_long": sum(each.long for each in engine.flows.values()),
        "flows": [_flow(each) for each in itertools.islice(engine.flows.values(), FLOWS_TOLD_MAX)],
        "methods": [_handler(each) for each in engine.definition.by_name.values()],
        "queries": [_handler(each) for each in engine.definition.queries.values()],
    }


def _words(step: Step) -> str:
    return f"{step.words()} (attempt {step.attempts + 1})" if step.attempts else step.words()


def _flow(flow: Flow) -> dict[str, Any]:
    waits = itertools.islice((_words(step) for step in flow.steps if step.state == OPEN), STEPS_TOLD_MAX)
    return {
        "number": flow.number,
        "method": flow.title,
        "caller": flow.origin.sender,
        "attributes": flow.attributes,
        "steps": len(flow.steps),
        "waits_for": list(waits),
    }


@functools.cache
def _handler(handler: Method[Any, ..., Any] | Query[Any, ..., Any]) -> dict[str, Any]:
    return {
        "name": handler.name,
        "text": inspect.cleandoc(handler.__doc__ or "").partition("\n")[0],
        "flow": isinstance(handler, Method) and handler.is_flow,
        "parameters": [
            {"name": name, "required": default is inspect.Parameter.empty, "schema": codec.schema()}
            for name, codec, default in handler.signature.parameters
        ],
    }
