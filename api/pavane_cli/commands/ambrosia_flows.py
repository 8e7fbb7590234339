"""``pavane ambrosia flows|flow``: what waits in an immortal, found by its search attributes, and the history of one."""

import json
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import urlencode

import typer

from pavane_api.immortals.schemas import FlowHistory, FlowStep, FoundFlows
from pavane_cli import output
from pavane_cli.commands.ambrosia_call import DEFAULT_LOG, Log, Name, Timeout, answer_of
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.output import Format, Output
from pavane_cli.reach import ControlPlane, through_plane

VALUE_CHARACTERS = 60  # of a result in a table


@through_plane
def flows(
    plane: ControlPlane,
    name: Name,
    attribute: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A search attribute; may be given more than once: all count."),
    ] = None,
    method: Annotated[str, typer.Option(help="What runs.")] = "",
    caller: Annotated[str, typer.Option(help="Name of the immortal that waits for it.")] = "",
    from_: Annotated[int, typer.Option("--from", min=0, help="The first number.")] = 0,
    log: Log = DEFAULT_LOG,
    timeout: Timeout = 60.0,
    form: Output = Format.TABLE,
) -> None:
    """Find open flows of an immortal, 50 at most, the oldest first. NAME as for `call`."""
    for each in attribute or ():
        if "=" not in each:
            raise UserError(f"{each}: write NAME=VALUE", ExitCode.USAGE)
    sought = [*(("attribute", each) for each in attribute or ()), ("method", method), ("caller", caller)]
    path = f"flows?{urlencode([*sought, ('from', str(from_))])}"
    found = FoundFlows.model_validate(answer_of(plane, "GET", path, log, name, timeout))
    rows = [
        (
            *(each.number, each.method, each.steps, each.caller),
            " ".join(f"{key}={_text(value)}" for key, value in each.attributes.items()),
            ", ".join(each.waits_for),
        )
        for each in found.items
    ]
    titles = "FLOW", "METHOD", "STEPS", "CALLER", "ATTRIBUTES", "WAITS FOR"
    output.listing(found.model_dump(mode="json", by_alias=True), titles, rows, form, "no open flow was found")
    if found.next_from is not None and not form.structured:
        output.note(f"{found.found - len(found.items)} more: --from {found.next_from}")


@through_plane
def flow(
    plane: ControlPlane,
    name: Name,
    number: Annotated[int, typer.Argument(min=0, help="Number of the flow.")],
    from_: Annotated[int, typer.Option("--from", min=0, help="The first step.")] = 0,
    log: Log = DEFAULT_LOG,
    timeout: Timeout = 60.0,
    form: Output = Format.TABLE,
) -> None:
    """Show the history of an open flow, at most 200 steps: arguments, results, attempts and timers."""
    found = FlowHistory.model_validate(answer_of(plane, "GET", f"flows/{number}?from={from_}", log, name, timeout))
    if not form.structured:
        given = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in found.arguments.items())
        output.say(f"{found.method}({given}), begun with version {found.version}")
    rows = [
        (each.step, each.kind, " ".join(filter(None, (each.target, each.name))), _state(each), _came(each))
        for each in found.history
    ]
    titles = "STEP", "KIND", "OF", "STATE", "RESULT"
    output.listing(found.model_dump(mode="json", by_alias=True), titles, rows, form, "it has asked for nothing yet")
    following = found.history[-1].step + 1 if found.history else found.steps
    if following < found.steps and not form.structured:
        output.note(f"{found.steps - following} more: --from {following}")


def _state(step: FlowStep) -> str:
    said = step.state
    if (step.attempts or 0) > 1:
        said += f", attempt {step.attempts}"
    if step.state == "open" and step.due is not None:
        try:
            said += f", due {datetime.fromtimestamp(step.due / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
        except (ValueError, OverflowError, OSError):
            said += ", due after the year 9999"
    return said


def _came(step: FlowStep) -> str:
    if step.state == "open":
        return ""
    text = step.error or json.dumps(step.result, ensure_ascii=False)
    return text if len(text) <= VALUE_CHARACTERS else text[:VALUE_CHARACTERS] + " …"


def _text(value: str | float | bool) -> str:
    return value if isinstance(value, str) else json.dumps(value)
