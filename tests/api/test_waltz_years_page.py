"""docs/waltz-years.md, as its reader types it: for a log with an archive, a stopped node, and a restore."""

import asyncio
import re
import shlex
from functools import partial
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from pavane.waltz.aio.archive import Archive
from pavane.waltz.client import Waltz
from pavane.waltz.core.retention import Policy
from pavane.waltz.server import archiving
from pavane_api.kinds import WALTZ_CLUSTERS
from pavane_cli.main import app
from tests.api.plane import LEDGER, Plane, plane
from tests.api.waltz import waltz_cluster
from tests.services.eventually import eventually
from tests.services.waltz.running import ANSWER_S, Log, running_log

PAGE = (Path(__file__).parents[2] / "docs" / "waltz-years.md").read_text("utf-8")


def blocks(kind: str) -> list[str]:
    found = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found, kind
    return found


async def typed(script: str, **variables: str) -> str:
    """Return what the commands of a block print, one after the other."""
    said = ""
    for line in script.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "pavane"
        done = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=variables)
        assert done.exit_code == 0, (line, done.output, done.exception)
        said += done.stdout
    return said


def address(log: Log) -> str:
    return f"{log.host}:{log.servers[0].port}"


async def day_by_day(api: Plane, log: Log) -> None:
    await waltz_cluster(api, [address(log)])
    reached = {"PAVANE_API_URL": str(api.http.base_url).rstrip("/"), "PAVANE_API_TOKEN": api.token}
    async with Waltz([address(log)]) as client:
        for partition in (0, 1):
            for data in (b"a", b"b", b"c"):
                await client.append(partition, data)
        await client.consumer("audit").start(1, 0)
        held = [log.servers[0].running.owned[number].keeping.archive for number in (0, 1)]
        await eventually(lambda: all(one is not None and one.end == 3 for one in held), ANSWER_S)
        look, forget = [await typed(script, **reached) for script in blocks("sh typed")]
        assert re.search(rf"^1 +{address(log)} ", look, re.MULTILINE), look
        assert re.search(r"^1 +audit +0 +3 ", look, re.MULTILINE), look
        assert "partition 1 would begin with transaction 2" in forget
        assert "partition 1 begins with transaction 2" in forget
        assert await client.start(1) == 2


async def test_what_the_page_types_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "STEP_S", 0.02)
    store = f"file://{tmp_path}/archive"
    opened, policy = partial(Archive, store, {}), Policy(archives=True)
    async with plane(tmp_path) as api:
        (example,) = map(yaml.safe_load, blocks("yaml"))
        example["metadata"]["name"] = "example"
        made = await api.kube.create(WALTZ_CLUSTERS, example, "default")
        assert made["spec"]["archive"]["whileAway"] == "Keep"
        async with running_log(tmp_path / "former", partitions=2, policy=policy, archive=opened, host=LEDGER) as log:
            await log.settled()
            await day_by_day(api, log)
    (verify,), (restore,) = blocks("sh damage"), blocks("sh restore")
    said = await typed(verify.replace("FOLDER", shlex.quote(f"{tmp_path}/former/node0")))
    assert "2 of 2 partitions" in said
    async with running_log(tmp_path / "new", partitions=2) as log:
        await log.settled()
        where = f"restore --servers {address(log)} --no-tls --from {shlex.quote(store)}"
        said = await typed(re.sub(r"restore ledger --from \S+", where, restore))
        assert said == "partition 0: 3 transactions\npartition 1: 3 transactions\n"
