"""``pavane waltz validate|bench|backup|restore`` on a log with real servers and storage nodes."""

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


async def test_a_log_is_backed_up_and_restored_to_what_was_acknowledged_then(tmp_path: Path) -> None:
    archive, below = f"file://{tmp_path}/archive", f"file://{tmp_path}/backups"

    def command(name: str, *arguments: str) -> list[str]:
        result = CliRunner().invoke(app, ["waltz", name, *arguments])
        if isinstance(result.exception, UserError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    async def append(log: Log, first: int, stop: int) -> None:
        for number in range(first, stop):
            await pavane("append", "--servers", servers(log), str(number))

    records = [Record.of(number, ReqId(7, 1, 0, number), 0, b"%d" % number) for number in range(6)]
    async with running_log(tmp_path / "former") as log:
        for day, (first, stop) in {"monday": (0, 4), "tuesday": (4, 6)}.items():
            await append(log, first, stop)
            await Archive(archive, {}).put(0, *cut(KEY, 0, records[first:stop]))
            words = ["backup", "--servers", servers(log), f"{below}/{day}", "--archive", archive]
            assert await pavane(*words) == f"{below}/{day}: ledger, {stop} transactions in 1 partitions\n"
        with pytest.raises(UserError, match="holds a backup"):
            await pavane(*words)
    assert (await asyncio.to_thread(command, "verify", f"{below}/monday"))[-1] == "good"
    async with running_log(tmp_path / "new") as log:
        restore = ["restore", "--servers", servers(log), "--backup", f"{below}/monday"]
        with pytest.raises(UserError, match="give --from URL") as caught:
            await pavane(*restore, "--from", archive)
        assert caught.value.code is ExitCode.USAGE
        assert await pavane(*restore) == "partition 0: 4 transactions\n"
    rows = await asyncio.to_thread(command, "backups", below, "--keep", "1", "--yes")
    assert [row.split()[0] for row in rows[1:]] == ["tuesday", "monday"]
    assert len(await asyncio.to_thread(command, "backups", below)) == 2, "the head and the newest"
    max((tmp_path / "archive" / "0").iterdir()).unlink()
    with pytest.raises(UserError, match="is missing: the backup of 6 transactions"):
        await asyncio.to_thread(command, "verify", f"{below}/tuesday")
