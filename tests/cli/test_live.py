"""The view of a resource that changes: in place on a terminal, lines elsewhere, one sentence at the end."""

import asyncio
import io
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pavane_cli import live
from pavane_cli.live import LiveView, closing, picture

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
UP_S = 60
BEGAN = datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)
BEFORE, AFTER = "2026-01-01T11:59:59Z", "2026-01-01T12:00:09Z"


def document(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "quickstart"}, "status": status}


ROLLING = document(
    activeGeneration=1,
    nextGeneration=2,
    rollout={
        "state": "CatchingUp",
        "blockers": [
            {"reason": "Lagging", "pod": f"quickstart-server-g2-{ordinal}", "message": f"{ordinal} entries behind " * 5}
            for ordinal in range(4)
        ],
    },
    generations=[
        {"number": 1, "role": "Active", "stage": "ReadWrite", "pods": 3, "podsReady": 3, "progress": 9, "target": 9},
        {"number": 2, "role": "Next", "stage": "ReadOnly", "pods": 3, "podsReady": 1, "progress": 600, "target": 1200},
    ],
    history=[{"generation": 1, "result": "Promoted", "finishedAt": BEFORE, "writeGapMs": 87}],
)


@pytest.fixture(autouse=True)
def a_terminal_that_can_erase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [80, 120])
def test_the_picture_shows_stages_progress_blockers_and_the_gap_and_fits(columns: int) -> None:
    shown = io.StringIO()
    Console(file=shown, width=columns).print(picture({"quickstart": ROLLING}, 12.34))
    lines = shown.getvalue().splitlines()
    assert lines[0] == "quickstart  CatchingUp  12.3 s"
    assert re.fullmatch(r"  generation 1   Active   ReadWrite +3/3 ready", lines[1])
    assert re.fullmatch(r"  generation 2   Next     ReadOnly +1/3 ready  █{6}░{6} 600 of 1200", lines[2])
    assert [line.split(":")[0] for line in lines[3:6]] == [
        f"  waits for quickstart-server-g2-{ordinal}" for ordinal in range(3)
    ]
    assert lines[6:] == ["  and 1 more", "  last write gap 87 ms"]
    assert max(map(len, lines)) <= columns


def shown_of(*documents: dict[str, Any]) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=120).print(picture({str(number): each for number, each in enumerate(documents)}, 1.0))
    return text.getvalue().splitlines()


def test_what_several_pods_wait_for_is_one_line() -> None:
    pods = [{"reason": "PodPending", "pod": f"q-{ordinal}", "message": "no pod yet"} for ordinal in range(3)]
    remain = {"reason": "ObjectsRemain", "message": "objects are being deleted"}
    rollout = {"state": "CreatingNext", "blockers": [*pods, remain]}
    assert shown_of(document(rollout=rollout))[1:] == [
        "  waits for q-0 and 2 more: PodPending – no pod yet",
        "  waits: ObjectsRemain – objects are being deleted",
    ]


def test_several_resources_have_one_blocker_each_so_that_they_fit_on_a_screen() -> None:
    told = [line.split(":")[0] for line in shown_of(ROLLING, ROLLING) if "waits" in line or "more" in line]
    assert told == ["  waits for quickstart-server-g2-0", "  and 3 more"] * 2


def test_a_resource_that_no_operator_has_seen_is_not_idle() -> None:
    assert shown_of({"metadata": {"name": "q"}}) == ["0  waits for the operator  1.0 s"]


def test_a_resource_that_cannot_begin_says_why() -> None:
    message = "RaftCluster meta is not Ready"
    waiting = {"type": "UpToDate", "status": "False", "reason": "ReferenceNotReady", "message": message}
    assert shown_of(document(conditions=[waiting]))[1:] == [f"  waits: ReferenceNotReady – {message}"]
    assert len(shown_of(document(conditions=[{**waiting, "status": "True"}]))) == 1


async def test_a_pipe_gets_a_line_for_each_step_and_no_escapes() -> None:
    stream = io.StringIO()
    with LiveView(stream) as view:
        for state, line in (
            ("Idle", "a"),
            ("CatchingUp", "b"),
            ("CatchingUp", "b1"),
            ("CatchingUp", "b2"),
            ("Idle", "c"),
        ):
            view.update(document(rollout={"state": state}), line)
    assert stream.getvalue() == "a\nb\nc\n"


async def test_a_pipe_is_told_what_a_step_still_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SETTLED_S", 0.05)
    stream = io.StringIO()
    with LiveView(stream) as view:
        for line in ("a", "waits: PodPending 0", "waits: PodPending 1"):
            view.update(ROLLING, line)
        while stream.getvalue().count("\n") < 2:
            await asyncio.sleep(0.01)
        view.update(ROLLING, "waits: PodPending 1")
        view.update(ROLLING, "no longer of interest")
    assert all(each.cancelled() for each in view._waiting.values())
    assert stream.getvalue() == "a\nwaits: PodPending 1\n"


def test_a_terminal_is_written_in_place_and_left_clean() -> None:
    stream = Terminal()
    with LiveView(stream) as view:
        view.update(ROLLING, "a line for pipes")
        view._live.refresh()
    assert "CatchingUp" in stream.getvalue()
    assert "a line for pipes" not in stream.getvalue()
    assert "\x1b[2K" in stream.getvalue(), "what was shown is erased"


async def test_a_terminal_that_cannot_erase_is_told_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with LiveView(stream) as view:
        view.update(ROLLING, "a line for pipes")
    assert stream.getvalue() == "a line for pipes\n"


def test_what_it_was_like_stays_when_the_wait_fails() -> None:
    stream = Terminal()

    def wait() -> None:
        with LiveView(stream) as view:
            view.update(ROLLING, "")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait()
    assert "CatchingUp" in stream.getvalue().rpartition("\x1b[2K")[2]


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (
            {
                "activeGeneration": 2,
                "history": [{"generation": 2, "result": "Promoted", "finishedAt": AFTER, "writeGapMs": 101}],
            },
            "Generation 2 serves. 11.4 s; writes paused 101 ms, none lost.",
        ),
        (
            {
                "activeGeneration": 2,
                "history": [{"generation": 2, "result": "Promoted", "finishedAt": BEFORE, "writeGapMs": 101}],
            },
            "Generation 2 serves. 11.4 s.",
        ),
        ({"activeGeneration": 1, "history": []}, "Generation 1 serves. 11.4 s."),
        (
            {"activeGeneration": 1, "conditions": [{"type": "Ready", "status": "False", "reason": "Suspended"}]},
            "quickstart is suspended; its volumes are kept. 11.4 s.",
        ),
    ],
)
def test_one_sentence_tells_how_it_ended(status: dict[str, Any], says: str) -> None:
    assert closing(document(**status), 11.4, BEGAN) == says


@pytest.mark.timeout(3 * UP_S)
def test_up_on_a_terminal_shows_the_resources_while_they_start(tmp_path: Path) -> None:
    words = [str(Path(sys.executable).with_name("pavane")), "up", "--bare", "--timeout", "2", str(QUICKSTART)]
    ours, theirs = os.openpty()
    shown = b""
    with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs) as program:
        os.close(theirs)
        try:
            while b"Not Ready after 2 s" not in shown:
                shown += os.read(ours, 1 << 16)
            picture_, _, rest = shown.partition(b"Not Ready after 2 s")
            # Drawn in place more than once, erased, and only then told.
            assert len(re.findall(rb"quickstart\S*  waits for the operator", picture_)) > 1
            assert b"\x1b[2K" in picture_
            assert b"RaftCluster quickstart  Idle" not in picture_
            assert b"\x1b[?25h" in picture_ + rest, "the cursor is back"
            program.send_signal(signal.SIGINT)
            while b"Stopped; everything" not in rest:
                rest += os.read(ours, 1 << 16)
        finally:
            program.kill()
            os.close(ours)
