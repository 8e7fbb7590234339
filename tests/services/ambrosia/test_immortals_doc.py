"""The tutorial of docs/immortals.md, as its reader would type it."""

import asyncio
import os
import re
import sys
from pathlib import Path
from textwrap import indent

import pytest

DOC = Path(__file__).parents[3] / "docs" / "immortals.md"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN_S = 230.0


async def typed(command: list[str], folder: Path) -> tuple[int, str]:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"}
    with (folder / "out").open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env=environment, stdout=out, stderr=out, stdin=asyncio.subprocess.DEVNULL
        )
    try:
        async with asyncio.timeout(RUN_S):
            code = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return code, (folder / "out").read_text()


@pytest.mark.timeout(240)  # two immortals, three starts, eight commands
async def test_the_tutorial(tmp_path: Path) -> None:
    script = "set -e\ntrap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT TERM\n"
    for kind, name, text in BLOCK.findall(DOC.read_text(encoding="utf-8")):
        if name in {"accounts.py", "accounts2.py"}:
            (tmp_path / name).write_text(text)
        elif kind == "sh":
            script += text
    code, said = await typed(["bash", "-c", script], tmp_path)
    assert code == 0, said
    lines = said.splitlines()
    answers = ["10", "true", "4", "true", "9", "10", "10"]
    assert [line for line in lines if line in answers] == answers, said
    assert "and version 2 takes over" in said
    assert "bob: " in said
    assert re.search(r"Account.deposit handles record \d+ of bob in another way.*accounts\.py:\d+", said), said
    assert "exit code 9" in said


@pytest.mark.parametrize("program", ["try_accounts.py", "try_meter.py"])
async def test_the_test_without_processes(program: str, tmp_path: Path) -> None:
    (text,) = (text for _, name, text in BLOCK.findall(DOC.read_text(encoding="utf-8")) if name == program)
    (tmp_path / program).write_text(text)
    code, said = await typed([sys.executable, program], tmp_path)
    assert (code, said) == (0, "")


async def test_inside_a_server_of_ones_own(tmp_path: Path) -> None:
    blocks = BLOCK.findall(DOC.read_text(encoding="utf-8"))
    (tmp_path / "accounts.py").write_text(next(text for _, name, text in blocks if name == "accounts.py"))
    (server,) = (text for kind, name, text in blocks if kind == "python" and not name)
    program = "import asyncio\nfrom accounts import Account\nfrom pavane.ambrosia import serve\n"
    program += f"async def main():\n{indent(server, ' ')}\nasyncio.run(main())"
    code, said = await typed([sys.executable, "-c", program], tmp_path)
    assert code == 0, said
    assert said in {"5\n", "0\n"}  # the transfer may have been handled by then
