"""A resource while it changes: in place and in colour on a terminal, elsewhere a line for each step of a rollout."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TextIO

STAGE_COLOURS: Mapping[str, str] = {
    "Creation": "dim",
    "Initialization": "yellow",
    "ReadOnly": "cyan",
    "ReadWrite": "green",
}
BAR_COLUMNS = 12
BLOCKERS_SHOWN_MAX = 3
"""Of one resource; where several are shown each has one, so that they fit on a screen."""
REFRESH_PER_S = 5
SETTLED_S = 5.0
"""A line that stays so long within a step is printed too: pods come one by one, and each waits for something."""


class LiveView:
    """Shows what ``update`` is given, on ``stream``, while its context is open.

    ``closing`` tells in one sentence how it ended.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._documents: dict[str, Mapping[str, Any]] = {}
        self._states: dict[str, str] = {}
        self._told: dict[str, str] = {}
        self._waiting: dict[str, asyncio.TimerHandle] = {}
        self._live: Any = None
        self._started = time.monotonic()
        self._since = datetime.now(UTC)

    @property
    def in_place(self) -> bool:
        """Whether it draws on a terminal; elsewhere it writes lines."""
        return self._live is not None

    def __enter__(self) -> Self:
        if self._stream.isatty() and os.environ.get("TERM") != "dumb":  # which cannot erase
            from rich.console import Console  # noqa: PLC0415 - where no terminal is, nothing of it is needed
            from rich.live import Live  # noqa: PLC0415

            console = Console(file=self._stream, highlight=False)
            self._live = Live(
                console=console, get_renderable=self._picture, refresh_per_second=REFRESH_PER_S, transient=True
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for waiting in self._waiting.values():
            waiting.cancel()
        if self._live is not None:
            self._live.stop()
            if error is not None:  # what it was like is part of what went wrong
                self._live.console.print(self._picture())
            self._live = None

    def update(self, document: Mapping[str, Any], line: str) -> None:
        """Show a resource as it is now; ``line`` is printed where there is no terminal.

        It is printed when the rollout takes another step, or once nothing has changed for SETTLED_S. Call it in a
        running event loop.
        """
        name = document["metadata"]["name"]
        self._documents[name] = document
        if self._live is not None:
            return
        state = state_of(document)
        if name in self._waiting:
            self._waiting.pop(name).cancel()
        if self._states.get(name) != state:
            self._states[name] = state
            self._tell(name, line)
        else:
            self._waiting[name] = asyncio.get_running_loop().call_later(SETTLED_S, self._tell, name, line)

    def _tell(self, name: str, line: str) -> None:
        if self._told.get(name) != line:
            self._told[name] = line
            self._stream.write(line + "\n")
            self._stream.flush()

    def closing(self, document: Mapping[str, Any]) -> str:
        """Return the sentence about a resource that has become what was waited for."""
        return closing(document, time.monotonic() - self._started, self._since)

    def _picture(self) -> Any:
        return picture(self._documents, time.monotonic() - self._started)


def picture(documents: Mapping[str, Mapping[str, Any]], elapsed_s: float) -> Any:
    """Return the picture of resources by name; it fits into 80 columns."""
    from rich.console import Group  # noqa: PLC0415 - see above
    from rich.text import Text  # noqa: PLC0415

    lines: list[Any] = []
    shown_max = BLOCKERS_SHOWN_MAX if len(documents) == 1 else 1
    for name, document in documents.items():
        status = document.get("status") or {}
        rollout = status.get("rollout") or {}
        state = state_of(document) if status else "waits for the operator"
        blockers = [_blocker(those) for those in alike(rollout.get("blockers") or _unmet(document))]
        title = Text(name, style="bold")
        title.append(f"  {state}", style="green" if state in ("Idle", "Baking") and not blockers else "yellow")
        title.append(f"  {elapsed_s:.1f} s", style="dim")
        lines += [title, *(_generation(status, item) for item in status.get("generations") or ())]
        lines += blockers[:shown_max]
        if len(blockers) > shown_max:
            lines.append(Text(f"  and {len(blockers) - shown_max} more", style="dim"))
        gap = write_gap_ms(document)
        if gap is not None:
            lines.append(Text(f"  last write gap {gap} ms", style="dim"))
    return Group(*lines)


def _unmet(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return why nothing is under way although there is something to do: a reference is missing, the spec is wrong."""
    if state_of(document) != "Idle":
        return ()
    conditions = (document.get("status") or {}).get("conditions") or ()
    return [each for each in conditions if each["type"] == "UpToDate" and each["status"] == "False"]


def alike(blockers: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the blockers in their order, those together that say the same of several pods."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in blockers:
        found.setdefault((each["reason"], each.get("message", "")), []).append(each)
    return list(found.values())


def _blocker(those: Sequence[Mapping[str, Any]]) -> Any:
    from rich.text import Text  # noqa: PLC0415 - see above

    first, others = those[0], len(those) - 1
    pods = f" for {first['pod']}" if first.get("pod") else ""
    more = f" and {others} more" if others else ""
    text = Text(f"  waits{pods}{more}: {first['reason']}", style="yellow", overflow="ellipsis", no_wrap=True)
    if first.get("message"):
        text.append(f" – {first['message']}", style="dim")
    return text


def state_of(document: Mapping[str, Any]) -> str:
    """Return which step of a rollout a resource is at."""
    state: str = ((document.get("status") or {}).get("rollout") or {}).get("state", "Idle")
    return state


def stage_of(status: Mapping[str, Any], generation: Mapping[str, Any]) -> str:
    """Return the stage of one of ``status.generations``; "fenced" for one that lost the right to write to a later one.

    Its pods never leave ReadWrite, but the store takes nothing from them any more.
    """
    fenced = generation["role"] != "Next" and generation["number"] < (status.get("activeGeneration") or 0)
    return "fenced" if fenced else generation.get("stage") or "–"


def _generation(status: Mapping[str, Any], item: Mapping[str, Any]) -> Any:
    from rich.text import Text  # noqa: PLC0415 - see above

    stage = stage_of(status, item)
    text = Text(f"  generation {item['number']:<3} {item['role']:<9}", no_wrap=True, overflow="ellipsis")
    text.append(f"{stage:<15}", style=STAGE_COLOURS.get(stage, "dim"))
    ready, wanted = item["podsReady"], item["pods"]
    text.append(f"{ready}/{wanted} ready", style="green" if ready == wanted else "yellow")
    target = item.get("target")
    if target and stage not in ("ReadWrite", "fenced"):
        progress = min(item.get("progress") or 0, target)
        full = round(progress / target * BAR_COLUMNS)
        text.append(f"  {'█' * full}{'░' * (BAR_COLUMNS - full)} {progress} of {target}", style="cyan")
    return text


def write_gap_ms(document: Mapping[str, Any]) -> int | None:
    """Return how long nobody could write in the last promotion, where that was measured."""
    history = (document.get("status") or {}).get("history") or ()
    return next((each.get("writeGapMs") for each in history if each["result"] == "Promoted"), None)


def closing(document: Mapping[str, Any], elapsed_s: float, since: datetime) -> str:
    """Return the sentence at the end of a wait that began at ``since``, ``elapsed_s`` ago."""
    status = document.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    name, took = document["metadata"]["name"], f"{elapsed_s:.1f} s"
    if (conditions.get("Ready") or {}).get("reason") == "Suspended":
        return f"{name} is suspended; its volumes are kept. {took}."
    number = status.get("activeGeneration")
    attempt: Mapping[str, Any] = next(
        (each for each in status.get("history") or () if each["generation"] == number), {}
    )
    gap = attempt.get("writeGapMs")
    finished = attempt.get("finishedAt")
    if gap is None or finished is None or datetime.fromisoformat(finished) < since.replace(microsecond=0):
        return f"Generation {number} serves. {took}."
    return f"Generation {number} serves. {took}; writes paused {gap} ms, none lost."
