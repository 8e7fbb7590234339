"""``pavane ambrosia log`` prints what an instance was asked to do."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pavane.ambrosia.client.beside import INGRESS
from pavane.ambrosia.client.values import pack
from pavane.ambrosia.wire.messages import OUR_INITIAL_MESSAGE, Call, Return, RpcKind, RpcType, Type, batch, frame
from pavane.ambrosia.wire.records import LogRecord
from tests.services.ambrosia import accounts

OWN = accounts.Account.deposit.number
PACK = accounts.Account.deposit.signature.pack
REQUEST = Call(INGRESS, RpcType.IMPULSE, pack(["token", "key-1", OWN, PACK((5,), {})]))
FORK = Call(7, RpcType.FORK, b"\x01\x02")
ASKED = Call(OWN, RpcType.ASYNC, PACK((3,), {}), "bob", 9)
ANSWER = Return(RpcKind.EXCEPTION, "bob", 4, pack({"type": "ValueError", "message": "no"}))


def written(folder: Path) -> Path:
    """Write a log of three records in two files; return the first one."""
    folder = folder / "alice_0"
    folder.mkdir()
    calls = [frame(Type.RPC, each.body()) for each in (REQUEST, FORK, ASKED)]
    records = [LogRecord(-5, 0, OUR_INITIAL_MESSAGE), LogRecord(-5, 1, batch(calls, count_replayable=False))]
    first = folder / "serverlog1"
    first.write_bytes(b"".join(record.encode() for record in records))
    (folder / "serverlog2").write_bytes(LogRecord(-5, 2, frame(Type.RPC, ANSWER.body())).encode())
    return first


def printed(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pavane_cli.main", "ambrosia", "log", "alice", "--log", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])


def test_each_message_is_a_line(tmp_path: Path) -> None:
    written(tmp_path)
    done = printed(tmp_path, "--application", "tests.services.ambrosia.accounts:Account")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "0.0  first start",
        "1.0  request  deposit  (5,)  key key-1",
        "1.1  fork  7  0102",
        "1.2  async  deposit  (3,)  from bob, call 9",
        "2.0  answer (exception)  {'type': 'ValueError', 'message': 'no'}  from bob, call 4",
    ]
    rows = [json.loads(line) for line in printed(tmp_path, "--from", "2", "-o", "json").stdout.splitlines()]
    assert [(row["record"], row["file"], row["offset"], row["call"]) for row in rows] == [(2, "serverlog2", 0, 4)]
    assert printed(tmp_path, "-o", "yaml").stdout == printed(tmp_path, "-o", "json").stdout


@pytest.mark.parametrize(
    ("cut", "code", "text"),
    [
        (-3, 0, "are no whole record: a crash tore it, nobody was told of it"),
        (30, 1, "is damaged, and a whole record follows at"),
    ],
)
def test_a_torn_tail_is_told_from_damage(tmp_path: Path, cut: int, code: int, text: str) -> None:
    path = written(tmp_path)
    data = path.read_bytes()
    if cut < 0:
        path.write_bytes(data[:cut])
    else:
        third = LogRecord(-5, 2, OUR_INITIAL_MESSAGE).encode()
        second = data[len(LogRecord(-5, 0, OUR_INITIAL_MESSAGE).encode()) :]
        path.write_bytes(data[: -len(second)] + second[:cut] + b"\xff" + second[cut + 1 :] + third)
    done = printed(tmp_path)
    assert (done.returncode, text in done.stderr) == (code, True), done.stderr
