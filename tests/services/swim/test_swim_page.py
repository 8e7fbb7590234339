"""The program in docs/swim.md prints what the page says."""

import asyncio
import re
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "swim.md"


async def test_the_example_prints_what_the_page_says() -> None:
    program, printed = re.findall(r"^```(?:python)?\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.M)
    run = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    output, _ = await run.communicate()
    assert output.decode() == printed
    assert run.returncode == 0
