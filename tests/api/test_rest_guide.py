"""docs/rest.md, as a user types it."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

from tests.api.plane import Plane, plane, served

PAGE = (Path(__file__).parents[2] / "docs" / "rest.md").read_text("utf-8")
WAIT_S = 50.0


def block(kind: str) -> str:
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


async def typed(api: Plane, *command: str) -> str:
    environment = {
        **os.environ,
        "PAVANE_API_URL": str(api.http.base_url).rstrip("/"),
        "PAVANE_API_TOKEN": api.token,
        "NO_PROXY": "*",
    }
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(WAIT_S):
        said, _ = await process.communicate()
    assert process.returncode == 0
    return said.decode()


async def test_resources_are_made_changed_and_deleted_as_the_guide_shows(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        said = await typed(api, "bash", "-c", block("sh resources"))
    made, listed, changed, restarted, status, deleted = said.strip().splitlines()
    assert json.loads(made)["metadata"]["name"] == "mine"
    assert [item["metadata"]["name"] for item in json.loads(listed)["items"]] == ["mine"]
    assert json.loads(changed)["spec"]["replicas"] == 3
    assert json.loads(restarted) == {"field": "spec.rollout.restart", "value": "new certificates"}
    assert json.loads(status) == {}
    assert deleted == "202"


async def test_keys_are_written_and_watched_as_the_guide_shows(tmp_path: Path) -> None:
    async with plane(tmp_path) as api, served(api, tmp_path, "Tree"):
        assert await typed(api, sys.executable, "-c", block("python")) == block("text")
