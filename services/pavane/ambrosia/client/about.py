"""What an immortal tells of itself to a page: its handlers, where it is in its log, and the flows under way."""

import functools
import inspect
import itertools
from typing import Any

from pavane.ambrosia.client.definition import Method, Query
from pavane.ambrosia.client.effects import CALLED, FAILED, LATE
from pavane.ambrosia.client.engine import Engine
from pavane.ambrosia.client.flows import OPEN, Flow, Step

FLOWS_TOLD_MAX = 50  # the oldest ones; all of them may be thousands
STEPS_TOLD_MAX = 5  # that one flow waits for


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
