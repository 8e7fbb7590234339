"""How much a command imports before it asks the API server: that decides how long its user waits."""

import asyncio
import sys
from pathlib import Path

import yaml

from pavane_local.platform import LocalSettings, local_cluster
from tests.api.plane import created, plane
from tests.operator.test_kube_light import log_in

SLOW = {"kubernetes", "aiohttp", "httpx2", "httpcore2", "anyio", "requests", "jsonschema"}
"""Each takes a tenth of the time or more that `pavane --help` takes, and none is needed to ask an API server."""
PROGRAM = "import sys\nfrom pavane_cli.main import app\ntry:\n  app(sys.argv[1:])\nfinally:\n  print(*sys.modules)"


async def imported(kubeconfig: Path, *words: str) -> set[str]:
    """The modules of a program that ran the command."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, *words, "--kubeconfig", str(kubeconfig), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await program.communicate()
    assert program.returncode == 0
    return set(said.decode().splitlines()[-1].split())


async def test_a_reading_command_imports_no_kubernetes_library(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        for command in ("get", "describe", "status", "why", "tree"):
            assert not SLOW & await imported(api.local.kubeconfig, command, "raft/q"), command


async def test_a_program_that_logs_in_is_run_by_the_library(tmp_path: Path) -> None:
    async with local_cluster(LocalSettings(tmp_path, platform_pods=False)) as local:
        config = yaml.safe_load(local.kubeconfig.read_text())
        config["users"][0]["user"] = {"exec": log_in(tmp_path, config["users"][0]["user"]["token"])}
        other = tmp_path / "other"
        other.write_text(yaml.safe_dump(config))
        assert "kubernetes" in await imported(other, "get", "raft")
