"""What a newcomer sees first: the demo, and in the platform that it leaves running its traces and docs/tutorial.md."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from e2e.one_trace import a_rollout, a_transfer, an_append
from e2e.targets import Capability
from pavane_cli.plane import control_plane
from pavane_cli.target import Where

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BEFORE = ("make demo", ". .venv/bin/activate")
"""Lines of the tutorial that the test has done in its own way."""
DEMO_S = 600.0
TUTORIAL_S = 300.0
TRACES_S = 360.0
STOP_S = 120.0


@pytest.mark.needs(Capability.EMBEDDED)
@pytest.mark.timeout(DEMO_S + TUTORIAL_S + TRACES_S + STOP_S)
async def test_the_demo_proves_that_nothing_was_lost_and_the_tutorial_goes_on_from_there(tmp_path: Path) -> None:
    keyboard, terminal = os.openpty()  # without one it would end after the proof
    demo = await asyncio.create_subprocess_exec(
        *command("platform"),
        cwd=tmp_path,
        stdin=terminal,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(terminal)
    assert demo.stdout is not None
    shown = ""
    try:
        async with asyncio.timeout(DEMO_S):
            while "Ctrl-C stops everything" not in shown and (line := await demo.stdout.readline()):
                shown += line.decode()
        if "PROVED" in shown:
            proved(shown)
            if "Without SQL views: " not in shown:  # memory is short
                async with control_plane(Where(tmp_path / ".pavane" / "kubeconfig"), None, None) as rest:
                    await an_append(rest)
                    await a_transfer(rest)
                    await tutorial(tmp_path)  # it replaces the views
                    await a_rollout(rest)
    finally:
        if demo.returncode is None:
            demo.send_signal(signal.SIGINT)
        async with asyncio.timeout(STOP_S):
            said = (await demo.communicate())[1].decode()
        os.close(keyboard)
    assert (demo.returncode, said) == (0, "Stopping …\n"), shown[-2000:] + said
    assert "PROVED: nothing was lost, nothing doubled." in shown


@pytest.mark.needs(Capability.EMBEDDED)
@pytest.mark.timeout(DEMO_S + STOP_S)
async def test_without_a_terminal_the_demo_ends_after_its_proof(tmp_path: Path) -> None:
    demo = await asyncio.create_subprocess_exec(
        *command("quickstart"), cwd=tmp_path, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(DEMO_S):
        shown = (await demo.communicate())[0].decode()
    assert demo.returncode == 0, shown
    assert "PROVED: nothing was lost, nothing doubled." in shown
    assert shown.splitlines()[-1].startswith("Stopped;")


def command(example: str) -> list[str]:
    """Return the words that show a file of examples/."""
    return [sys.executable, "-m", "pavane_cli.main", "demo", str(ROOT / "examples" / f"{example}.yaml")]


def proved(shown: str) -> None:
    rows = {line.split()[0]: line.split()[1:5] for line in shown.splitlines() if re.match(r"\w+/[\w,]+ +\d", line)}
    views = set() if "Without SQL views: " in shown else {"compute/books"}
    assert rows.keys() == {"raft/meta", "swim/members", "waltz/ledger", "coord/alice,bob"} | views
    for done, _, lost, doubled in rows.values():
        assert int(done) > 0
        assert (lost, doubled) == ("0", "0")
    assert shown.count(" is killed (SIGKILL).") == len(rows)
    money = "2000 in all accounts before, 2000 after; the log has the same in each account"
    assert f"waltz/ledger coord/alice,bob: {money}" in shown
    assert "raft/meta: 0 writes by a generation that might not write" in shown
    ticks = re.search(r"added up to 2000 at (\d+) of (\d+) ticks; at the last one they are those of the log", shown)
    assert not views or (ticks is not None and ticks[1] == ticks[2])


async def tutorial(folder: Path) -> None:
    """Type what the tutorial says, and see that it prints what it says."""
    script = "set -e\nexport NO_COLOR=1\n"
    texts = []
    for kind, name, text in BLOCK.findall(TUTORIAL.read_text("utf-8")):
        if name:
            (folder / name).write_text(text)
        elif kind == "sh":
            script += "".join(f"{line}\n" for line in text.splitlines() if not line.startswith(BEFORE))
        elif not text.startswith("RESOURCE"):  # the demo's own
            texts.append(text)
    # Where one thing is printed three times, or with words of explanation, the comment goes on.
    printed = [
        found[1] for line in script.splitlines() if (found := re.search(r"# prints (true|false|\d+|\{.*\})", line))
    ]
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", script, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    async with asyncio.timeout(TUTORIAL_S):
        said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    lines = iter(said.splitlines())
    for each in printed:
        assert each in lines, said
    assert said.splitlines().count("true") == 4, said
    assert len(texts) == 3
    for text in texts:
        assert re.search(re.escape(text.strip()).replace("…", "[-0-9a-f]+"), said), said
