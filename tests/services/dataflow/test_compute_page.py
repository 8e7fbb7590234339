"""The example of docs/compute.md, as its reader would type it."""

import asyncio
import os
import re
import sys
from pathlib import Path

from pavane.dataflow.sql import parse
from tests.services.waltz.running import running_log

PAGE = Path(__file__).parents[3] / "docs" / "compute.md"
RUN_S = 100.0


async def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    blocks = re.findall(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    script, *others = [(name, text) for language, name, text in blocks if language == "sql"]
    assert [view.name for _, text in others for view in parse(text).views] == [
        "good_customers", "their_orders", "last_hour", "here_now",
    ]  # fmt: skip
    (printed,) = [text for language, name, text in blocks if language == "text" and not name]
    typed = "".join(
        text for language, name, text in blocks if language == "sh" and not name and "pip install" not in text
    )
    (tmp_path / script[0]).write_text(script[1])
    async with running_log(tmp_path / "log", partitions=4) as running:
        await running.settled()
        server = f"127.0.0.1:{running.servers[0].port}"
        reach = rf"\1\2 --servers {server} --no-tls\3"
        lines = re.sub(r"^(pavane (?:sql|waltz) \w+) ledger(.*?)( &| +#.*)?$", reach, typed, flags=re.MULTILINE)
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"}
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", f"set -e\ntrap 'kill $(jobs -p)' EXIT\n{lines}",
            cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        async with asyncio.timeout(RUN_S):
            said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    assert "revenue: customer STRING, n BIGINT, total BIGINT\n" in said
    assert "\n1\n" in said
    assert said.endswith(printed), said
