"""``pavane waltz validate|bench|restore`` on a log with real servers and storage nodes."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pavane.waltz.aio.archive import Archive
from pavane.waltz.storage.piece import cut
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.storage import Record
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.main import app
from tests.services.waltz.running import KEY, Log, running_log


async def pavane(*arguments: str) -> str:
    result = await asyncio.to_thread(CliRunner().invoke, app, ["waltz", *arguments, "--no-tls"])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def servers(log: Log) -> str:
    return f"127.0.0.1:{log.servers[0].port}"


async def test_a_log_is_validated_and_measured(tmp_path: Path) -> None:
    async with running_log(tmp_path, partitions=2) as log:
        said = await pavane("validate", "--servers", servers(log), "--count", "50", "-p", "1")
        assert said.startswith("partition 1: 50 appended from transaction 0 on, ")
        assert said.endswith("nothing lost, doubled or out of order\n")
        found = json.loads(
            await pavane("bench", "--servers", servers(log), "--count", "200", "--size", "64", "-o", "json")
        )
        assert (found["appends"], found["bytes"]) == (200, 64)
        assert 0 < found["p50Ms"] <= found["p99Ms"]
        assert found["perSecond"] > 0
        assert await pavane("hwm", "--servers", servers(log)) == "199\n"


async def test_a_log_is_restored_from_its_archive(tmp_path: Path) -> None:
    records = [Record.of(number, ReqId(7, 1, 0, number), 0, b"%d" % number) for number in range(10)]
    url = f"file://{tmp_path}/archive"
    await Archive(url, {}).put(0, *cut(KEY, 0, records))
    async with running_log(tmp_path) as log:
        restore = ["restore", "--servers", servers(log), "--from", url]
        assert await pavane(*restore, "--to-transaction", "0=3") == "partition 0: 4 transactions\n"
        assert await pavane(*restore) == "partition 0: 10 transactions, 4 of them were there\n"
        assert await pavane("get", "--servers", servers(log), "7") == "7\n"
        for more, text, code in [
            (["--to-transaction", "0=3"], "has to be empty", ExitCode.REFUSED),
            (["--to-transaction", "7"], "0=1234", ExitCode.USAGE),
            (["-p", "1"], "of all partitions", ExitCode.USAGE),
            (["--from", f"file://{tmp_path}/nowhere"], "nowhere", ExitCode.REFUSED),
            (["--from", "s3://b/x", "--option", "key=1"], "option key", ExitCode.REFUSED),
        ]:
            with pytest.raises(UserError, match=text) as caught:
                await pavane(*restore, *more)
            assert caught.value.code is code
