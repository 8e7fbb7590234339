"""``pavane waltz append|consumers|feed|get|hwm|partitions|trim`` by ``--servers`` and by name."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pavane.waltz.client import Waltz
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.main import app
from tests.api.plane import LEDGER, Plane, plane
from tests.api.waltz import waltz_cluster
from tests.services.waltz.scripted import Cluster, running


async def waltz(cluster: Cluster, *arguments: str, stdin: str | None = None) -> str:
    """Return what ``pavane waltz`` prints."""
    command = ["waltz", *arguments, "--no-tls", "--servers", ",".join(cluster.addresses)]
    result = await asyncio.to_thread(CliRunner().invoke, app, command, stdin)
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


async def by_name(api: Plane, url: str, *arguments: str) -> str:
    command = ["waltz", *arguments, "--api", url, "--token", api.token]
    result = await asyncio.to_thread(CliRunner().invoke, app, command)
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


async def test_transactions_by_the_name_of_the_cluster(tmp_path: Path) -> None:
    async with running(host=LEDGER) as cluster, plane(tmp_path) as api:
        await waltz_cluster(api, cluster.addresses)
        url = str(api.http.base_url)
        assert await by_name(api, url, "append", "ledger", "opened", "--write", "account/7", "--header", "5") == "0\n"
        assert await by_name(api, url, "append", "ledger", "more") == "1\n"
        assert await by_name(api, url, "get", "ledger", "0") == "opened\n"
        assert await by_name(api, url, "feed", "ledger", "--count", "2", "-o", "wide") == "0  5  opened\n1  0  more\n"
        assert await by_name(api, url, "hwm", "ledger") == "1\n"
        assert (await by_name(api, url, "partitions", "ledger")).splitlines()[2].split()[-1] == "-1"
        with pytest.raises(UserError, match="append again with seen=0") as caught:
            await by_name(api, url, "append", "ledger", "late", "--write", "account/7", "--seen", "-1")
        assert caught.value.code is ExitCode.CONFLICT
        with pytest.raises(UserError, match="Nothing is at"):  # the name is a name, whatever stands in it
            await by_name(api, url, "get", "ledger/partitions/0/transactions/0?x=", "0")
        kubeconfig = ("--kubeconfig", str(api.local.kubeconfig))
        for command in ("bench", "validate"):  # which ask the servers
            with pytest.raises(UserError, match="pavane get waltzclusters -A") as caught:
                await by_name(api, url, command, "absent", *kubeconfig)
            assert caught.value.code is ExitCode.NOT_FOUND


async def test_transactions_from_the_shell() -> None:
    async with running() as cluster:
        assert await waltz(cluster, "hwm") == "-1\n"
        assert await waltz(cluster, "append", "opened", "--write", "account/7") == "0\n"
        assert await waltz(cluster, "append", "--header", "5", stdin="from a pipe") == "1\n"
        assert json.loads(await waltz(cluster, "append", "other", "-p", "1", "-o", "json")) == {
            "partition": 1,
            "transaction": 0,
        }
        assert await waltz(cluster, "hwm") == "1\n"
        assert await waltz(cluster, "get", "0") == "opened\n"
        assert await waltz(cluster, "feed", "--count", "2") == "opened\nfrom a pipe\n"
        assert await waltz(cluster, "feed", "--from", "1", "--count", "1", "-o", "wide") == "1  5  from a pipe\n"
        assert json.loads(await waltz(cluster, "feed", "--count", "1", "-o", "json")) == {
            "transaction": 0,
            "header": 0,
            "data": "b3BlbmVk",
        }
        lines = (await waltz(cluster, "partitions")).splitlines()
        assert lines[0].split() == ["PARTITION", "SERVER", "GENERATION", "STAGE", "HWM"]
        assert lines[1].split() == ["0", cluster.addresses[0], "1", "ReadWrite", "1"]
        assert lines[2].split() == ["1", cluster.addresses[1], "1", "ReadWrite", "0"]
        begins = "partition 0 {} with transaction 1: 1 fewer than before\n"
        assert await waltz(cluster, "trim", "--before", "1", "--dry-run") == begins.format("would begin")
        assert await waltz(cluster, "get", "0") == "opened\n"
        assert await waltz(cluster, "trim", "--before", "1") == begins.format("begins")
        with pytest.raises(UserError, match="TRIMMED") as caught:
            await waltz(cluster, "get", "0")
        assert caught.value.code is ExitCode.NOT_FOUND


async def test_consumers_are_shown_waited_for_and_forgotten(tmp_path: Path) -> None:
    async with running(host=LEDGER) as cluster, plane(tmp_path) as api:
        await waltz_cluster(api, cluster.addresses)
        url = str(api.http.base_url)
        for data in ("opened", "paid", "closed"):
            await waltz(cluster, "append", data)
        async with Waltz(cluster.addresses) as log:
            for name in ("billing", "audit"):
                await log.consumer(name, who="pod-1").start(0, 1)
        for shown in (await waltz(cluster, "consumers"), await by_name(api, url, "consumers", "ledger")):
            lines = [line.split() for line in shown.splitlines()]
            assert lines[0] == ["PARTITION", "CONSUMER", "POSITION", "LAG", "BEHIND", "SEEN", "HOLDS", "WHO"]
            assert [(*line[:4], line[-1]) for line in lines[1:]] == [
                ("0", name, "1", "2", "pod-1") for name in ("audit", "billing")
            ]
        with pytest.raises(UserError, match="CONSUMER_NEEDS") as caught:
            await waltz(cluster, "trim", "--before", "2")
        assert caught.value.code is ExitCode.REFUSED
        told = await by_name(api, url, "trim", "ledger", "--before", "2", "--force", "--dry-run")
        assert "would begin with transaction 2" in told
        assert "consumer audit needs some of what would be gone" in told
        assert "billing" not in await waltz(cluster, "consumers", "--remove", "billing")
        assert "audit" not in await by_name(api, url, "consumers", "ledger", "--remove", "audit")
        with pytest.raises(UserError, match="no consumer audit") as caught:
            await waltz(cluster, "consumers", "--remove", "audit")
        assert caught.value.code is ExitCode.NOT_FOUND
        cluster.move(1, owner=9)
        typed = ["waltz", "consumers", "--no-tls", "--servers", ",".join(cluster.addresses)]
        result = await asyncio.to_thread(CliRunner().invoke, app, typed)
        assert result.exit_code == 0
        assert result.stderr == "nobody answers for partition 1: who reads it is not known\n"


async def test_a_conflict_has_an_exit_code_of_its_own_and_says_what_to_do() -> None:
    async with running() as cluster:
        await waltz(cluster, "append", "opened", "--write", "account/7")
        with pytest.raises(UserError, match="append with --seen 0") as caught:
            await waltz(cluster, "append", "late", "--write", "account/7", "--seen", "-1")
        assert caught.value.code is ExitCode.CONFLICT
        assert await waltz(cluster, "append", "late", "--write", "account/7", "--seen", "0") == "1\n"


async def test_what_cannot_be_done_is_told_by_its_exit_code() -> None:
    async with running() as cluster:
        for arguments, code, words in (
            (("get", "5"), ExitCode.NOT_FOUND, "no transaction 5"),
            (("append", "x", "--write", "account"), ExitCode.USAGE, "looks like account/7"),
            (("append", "x", "--write", "account/99999999999999999999"), ExitCode.USAGE, "does not fit 64 bits"),
            (("append", "x", "-p", "9"), ExitCode.USAGE, "partitions 0 to 1"),
            (("bench", "-p", "9"), ExitCode.USAGE, "partitions 0 to 1"),
            (("append", "x", "--seen", "9"), ExitCode.REFUSED, "CLIENT_AHEAD"),
        ):
            with pytest.raises(UserError, match=words) as caught:
                await waltz(cluster, *arguments)
            assert caught.value.code is code
        cluster.on_append = lambda server, append: True
        with pytest.raises(UserError, match="may or may not") as caught:
            await waltz(cluster, "append", "x", "--timeout", "0.5")
        assert caught.value.code is ExitCode.OUTCOME_UNKNOWN
        for server in cluster.servers:
            await server.kill()
        with pytest.raises(UserError, match="no server gave its view") as caught:
            await waltz(cluster, "hwm", "--timeout", "0.3")
        assert caught.value.code is ExitCode.TIME_OUT
