"""The program in docs/keys.md prints what the page says."""

import asyncio
import re
import sys
from pathlib import Path

from pavane.raft.config import Config
from pavane.raft.server import RaftServer
from tests.services.raft.peers import free_urls
from tests.services.raft.test_client_cluster import IDENT

PAGE = Path(__file__).parents[3] / "docs" / "keys.md"


async def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    program, printed = re.findall(r"```(?:python)?\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    [url] = free_urls(1)
    config = Config(id="1", ident=IDENT, url=url, peers=(("1", url),), machine="Tree")
    server = RaftServer(config, data=tmp_path / "1", bind=url)
    await server.start()
    try:
        run = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, url, IDENT.decode(), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await run.communicate()
    finally:
        await server.stop()
    assert output.decode() == printed
    assert run.returncode == 0


def test_the_secret_is_given_in_one_way() -> None:
    assert set(re.findall(r"--secret\S*", PAGE.read_text(encoding="utf-8"))) == {"--secret-file"}
