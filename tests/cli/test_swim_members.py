"""``pavane swim members GROUP`` through the control plane, and commands of all kinds for a SwimGroup."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pavane_cli.failures import ExitCode, UserError
from pavane_cli.main import app
from tests.api.plane import Plane, plane
from tests.api.test_swimgroups import POD, created, give_status, pod


async def pavane(api: Plane, *arguments: str, rest: bool = False) -> str:
    place = ("--api", str(api.http.base_url), "--token", api.token) if rest else ()
    kubeconfig = ("--kubeconfig", str(api.local.kubeconfig))
    result = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, *kubeconfig, *place])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.exception
    return result.stdout


async def test_members_of_a_group_are_listed_by_the_control_plane(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api, replicas=1)
        with pytest.raises(UserError, match="no member of SwimGroup q answers"):
            await pavane(api, "swim", "members", "q", rest=True)
        async with pod(api) as member:
            headers, row = (await pavane(api, "swim", "members", "q", rest=True)).splitlines()
            assert headers.split() == ["MEMBER", "ID", "ADDRESS", "STATE", "STAGE", "ROLLOUT", "INCARNATION", "META"]
            told = [POD, str(member.info.id), str(member.bound), "Alive", "ReadWrite", "1", str(member.info.gen)]
            assert row.split() == told
            found = json.loads(await pavane(api, "swim", "members", "swim/q", "-o", "json", rest=True))
            assert (found["asked"], [each["pod"] for each in found["items"]]) == (POD, [POD])
            names = await pavane(api, "swim", "members", "q", "-o", "name", rest=True)
            assert names == f"{POD}\n"
        with pytest.raises(UserError, match="or --name") as refused:
            await pavane(api, "swim", "members", "q", "--name", "a", rest=True)
        assert refused.value.code is ExitCode.USAGE


async def test_a_group_is_read_and_rolled_by_the_commands_of_all_kinds(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api, replicas=3)
        await give_status(api, lastGeneration=1, activeGeneration=1, rollout={"state": "Idle"})
        for kind in ("swim", "swimgroup", "swimgroups", "SwimGroup"):
            assert await pavane(api, "get", kind, "-o", "name") == "swimgroup/q\n"
        assert "MEMBERS" in await pavane(api, "get", "swim", "-o", "wide")
        assert (await pavane(api, "rollout", "restart", "swim/q")).strip() == (
            "swimgroup/q: spec.rollout.restart = after-1"
        )
        assert (await pavane(api, "rollout", "pause", "swim/q")).strip() == "swimgroup/q: spec.rollout.paused = true"
        document = json.loads(await pavane(api, "get", "swim/q", "-o", "json"))
        assert list(document) == ["apiVersion", "kind", "metadata", "spec", "status"]
        assert "managedFields" not in document["metadata"]
        with pytest.raises(UserError, match="`pavane get swimgroups -A` lists") as absent:
            await pavane(api, "why", "swim/absent")
        assert absent.value.code is ExitCode.NOT_FOUND
        with pytest.raises(UserError, match="`pavane rollout history swimgroup/q` lists"):
            await pavane(api, "rollout", "diff", "swim/q", "--to", "9")
        assert "spec.replicas = 5" in await pavane(api, "scale", "swim/q", "--replicas", "5")
        assert "is idle" in await pavane(api, "why", "swim/q")
        assert "is being deleted" in await pavane(api, "delete", "swim/q")
