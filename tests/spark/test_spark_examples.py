"""The programs of examples/spark, in the session of the tests."""

import asyncio
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pavane.waltz.client import Waltz

FOLDER = Path(__file__).parents[2] / "examples" / "spark"
ORDERS = [{"id": number, "customer": f"c{number % 3}", "cents": number * 7} for number in range(40)]


def example(name: str, *arguments: str) -> None:
    runpy.run_path(str(FOLDER / f"{name}.py"))["main"](arguments)


def append(servers: str, partition: int, orders: list[dict[str, Any]]) -> None:
    async def all_of_them() -> None:
        async with Waltz([servers]) as log:
            for order in orders:
                await log.append(partition, json.dumps(order).encode())

    asyncio.run(all_of_them())


@pytest.mark.parametrize("program", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_each_program_starts_as_its_head_says(program: Path) -> None:
    # A program's folder comes first on its path: none may have the name of a module that something imports.
    done = subprocess.run([sys.executable, str(program), "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"python examples/spark/{program.name} --servers" in done.stdout


@pytest.mark.parametrize("repartition", ["0", "3"])
def test_a_copy_goes_on_where_it_was(
    spark: Any, servers: str, partitions: Callable[[int], list[int]], tmp_path: Path, repartition: str
) -> None:
    source, target = partitions(2)
    words = ["--servers", servers, "--from", str(source), "--to", str(target), "--repartition", repartition]
    for some in (ORDERS[:25], ORDERS[25:]):
        append(servers, source, some)
        example("copy_orders", *words, "--checkpoint", str(tmp_path / "checkpoint"))
    reader = spark.read.format("waltz").options(servers=servers, partition=target, chain="copy")
    rows = reader.schema("id BIGINT, customer STRING, cents BIGINT").load().collect()
    assert sorted((row.asDict() for row in rows), key=lambda row: row["id"]) == ORDERS


def test_sums_are_printed(
    spark: Any, servers: str, partitions: Callable[[int], list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = partitions(2)
    append(servers, first, ORDERS[::2])
    append(servers, second, ORDERS[1::2])
    example("aggregate", "--servers", servers, "--partitions", f"{first},{second}")
    groups = {f"c{k}": [7 * number for number in range(40) if number % 3 == k] for k in range(3)}
    wanted = [{"customer": name, "n": len(cents), "total": sum(cents)} for name, cents in groups.items()]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == wanted


def test_a_replay_adds_what_came(spark: Any, servers: str, partition: int, tmp_path: Path) -> None:
    words = ["--servers", servers, "--partitions", str(partition), "--to", str(tmp_path / "out")]
    for some in (ORDERS[:25], ORDERS[25:]):
        append(servers, partition, some)
        example("replay", *words, "--checkpoint", str(tmp_path / "checkpoint"))
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("txid").collect()
    assert [(row.txid, json.loads(row.data)) for row in rows] == list(enumerate(ORDERS))
