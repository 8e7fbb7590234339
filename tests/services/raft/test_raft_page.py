"""The first program of docs/raft.md runs against a peer that publishes."""

import asyncio
import re
import sys
import textwrap
from pathlib import Path

from pavane.raft.config import Config
from pavane.raft.server import RaftServer
from tests.services.raft.peers import free_urls

PAGE = Path(__file__).parents[3] / "docs" / "raft.md"
LAST = "Fresh"  # is what a subscriber is told once nothing is left to tell


async def test_the_first_program_runs_as_it_stands(tmp_path: Path) -> None:
    first, *_ = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    url, publish = free_urls(2)
    for shown in ("tcp://127.0.0.1:8047", "tcp://127.0.0.1:8057"):
        assert shown in first
        first = first.replace(shown, url)
    imports, _, body = first.partition("\n\n")
    program = f"import asyncio\n{imports}\nasync def main():\n{textwrap.indent(body, '    ')}\nasyncio.run(main())\n"
    config = Config(id="1", ident=b"secret", url=url, peers=(("1", url),), broadcast_url=publish)
    server = RaftServer(config, data=tmp_path / "1", bind=url, publish=publish)
    await server.start()
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-u", "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert run.stdout is not None
    try:
        said = ""
        while LAST not in said:
            line = (await run.stdout.readline()).decode()
            assert line, said
            said += line
        assert re.search(r"^\d+ b'data'$", said, re.MULTILINE), said
    finally:
        if run.returncode is None:
            run.kill()
        await run.wait()
        await server.stop()
