"""``pavane trace``: what happened in one request, over all programs that took part."""

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from pavane_cli import output
from pavane_cli.output import Format, Output
from pavane_cli.reach import ControlPlane, from_plane
from pavane_cli.target import run_with

BAR_COLUMNS = 32
NAME_COLUMNS_MAX = 60


@from_plane
def list_(
    plane: ControlPlane,
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most this many, newest first.")] = 20,
    name: Annotated[str, typer.Option(help="Part of the root span's name.")] = "",
    service: Annotated[str, typer.Option(help="Program of the root span.")] = "",
    errors: Annotated[bool, typer.Option("--errors", help="Only failed ones.")] = False,
    parts: Annotated[bool, typer.Option("--all", help="Include traces that are shown as part of another one.")] = False,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Only of this one, for who may not see all.")
    ] = None,
    form: Output = Format.TABLE,
) -> None:
    """List the newest traces."""
    filters: dict[str, Any] = {"name": name, "service": service, "errors_only": errors, "parts": parts}
    if namespace is not None:
        filters["namespace"] = namespace
    items = run_with(plane.rest(), lambda rest: rest.get("/traces", limit=limit, **filters))["items"]
    if form is Format.NAME:
        for item in items:
            output.say(item["trace_id"])
        return
    rows = [
        (
            f"{datetime.fromtimestamp(item['start_ns'] / 1e9).astimezone():%H:%M:%S}",
            item["trace_id"],
            item["service"],
            item["spans"],
            item["errors"],
            duration(item["duration_ns"]),
            item["name"],
        )
        for item in items
    ]
    headers = ("TIME", "TRACE", "SERVICE", "SPANS", "ERRORS", "DURATION", "NAME")
    none = "No trace matches." if name or service or errors else "No trace has arrived yet."
    output.listing(items, headers, rows, form, none)


@from_plane
def show(
    plane: ControlPlane,
    trace_id: Annotated[str, typer.Argument(metavar="TRACE", help="32 hexadecimal digits, from `pavane trace list`.")],
    form: Output = Format.TABLE,
) -> None:
    """Show a trace as a waterfall, with the spans that links connect to it."""
    found = run_with(plane.rest(), lambda rest: rest.get(f"/traces/{trace_id}"))
    if form.structured:
        output.structured(found, form)
        return
    console = Console(highlight=False, soft_wrap=True)
    for line in waterfall(found["spans"]):
        console.print(line)
    if found["truncated"]:
        output.note("There are more spans than one answer holds.")


def waterfall(spans: list[dict[str, Any]]) -> list[Text]:
    """Return a line per span: bar on the common time line, duration, name indented below its parent, program.

    A span that came in by a link begins at the margin with ``~``; a failed one is marked with ``!``.
    """
    if not spans:
        return []
    start = min(span["start_ns"] for span in spans)
    length = max(1, max(span["end_ns"] for span in spans) - start)
    known = {span["span_id"] for span in spans}
    children: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        parent = span["parent_span_id"] if span["parent_span_id"] in known else ""
        children.setdefault(parent, []).append(span)
    own_trace = spans[0]["trace_id"]
    lines: list[Text] = []

    def add(parent: str, depth: int) -> None:
        for span in children.get(parent, ()):
            lines.append(_line(span, start, length, depth, linked=depth == 0 and span["trace_id"] != own_trace))
            add(span["span_id"], depth + 1)

    add("", 0)
    return lines


def _line(span: dict[str, Any], start: int, length: int, depth: int, *, linked: bool) -> Text:
    begin = round((span["start_ns"] - start) / length * (BAR_COLUMNS - 1))
    width = max(1, round((span["end_ns"] - span["start_ns"]) / length * BAR_COLUMNS))
    bar = (" " * begin + "━" * width)[:BAR_COLUMNS].ljust(BAR_COLUMNS)
    name = "  " * depth + ("~ " if linked else "") + ("! " if span["error"] else "") + span["name"]
    place = " ".join(part for part in (span["service"], span["instance"]) if part)
    text = Text(bar, style="red" if span["error"] else "cyan")
    text.append(f" {duration(span['end_ns'] - span['start_ns']):>9}  ", style="default")
    text.append(f"{name[:NAME_COLUMNS_MAX]}  ", style="bold")
    text.append(place, style="dim")
    if span["error"]:
        text.append(f"  {span['error']}", style="red")
    return text


def duration(nanoseconds: int) -> str:
    """Return a duration in the unit that reads best."""
    if nanoseconds < 1_000_000:
        return f"{nanoseconds / 1000:.0f} µs"
    if nanoseconds < 1_000_000_000:
        return f"{nanoseconds / 1_000_000:.1f} ms"
    return f"{nanoseconds / 1_000_000_000:.2f} s"
