"""What release 0.1.0 left on a machine goes on with this one: `release-0.1.0.tar.xz` is a folder of its `pavane up`."""

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.targets import Capability
from pavane_local.folder import holder

FOLDER = Path(__file__).with_name("release-0.1.0.tar.xz")
COMMAND_S = 240.0
RESOURCES = ["raft/keys", "raft/meta", "swim/members", "waltz/ledger", "coord/alice", "coord/bob", "compute/books"]

WRITTEN = {
    "keys": ["v1\n", "v2\n", "v3\n"],
    "tree": "hello\n",
    "log": "2\n",
    "money": {"alice": {"balance": 70, "on_the_way": 0}, "bob": {"balance": 80, "on_the_way": 0}},
    "views": [{"account": "alice", "sent": 1, "balance": 70}, {"account": "bob", "sent": 0, "balance": 80}],
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with tarfile.open(FOLDER) as folder:
        folder.extractall(tmp_path, filter="data")
    yield tmp_path
    if (pid := holder(tmp_path / ".pavane")) is not None:
        os.kill(pid, signal.SIGKILL)


def pavane(place: Path, *arguments: str) -> str:
    """Return what the command prints; it must end well."""
    ended = subprocess.run(
        [sys.executable, "-m", "pavane_cli.main", *arguments],
        cwd=place,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert ended.returncode == 0, (arguments, ended.stdout, ended.stderr)
    return ended.stdout


def balances(place: Path, *options: str) -> object:
    query = "SELECT * FROM balances ORDER BY account"
    return json.loads(pavane(place, "sql", "query", "compute/books", query, "-o", "json", *options))["rows"]


def written(place: Path) -> dict[str, object]:
    """Everything that applications wrote."""
    return {
        "keys": [pavane(place, "raft", "kv", "get", "keys", f"k{number}") for number in (1, 2, 3)],
        "tree": pavane(place, "raft", "tree", "get", "meta", "/mine"),
        "log": pavane(place, "waltz", "hwm", "ledger"),
        "money": {name: json.loads(pavane(place, "ambrosia", "query", name, "money")) for name in ("alice", "bob")},
        "views": balances(place),
    }


@pytest.mark.needs(Capability.EMBEDDED)
@pytest.mark.timeout(4 * COMMAND_S)
def test_what_0_1_0_wrote_is_there_and_each_kind_is_rolled_out_to_this_release(place: Path) -> None:
    pavane(place, "up", "--detach")
    before = written(place)
    assert before == WRITTEN
    for resource in RESOURCES:
        pavane(place, "rollout", "restart", resource)
    for resource in RESOURCES:
        assert "Generation 2 serves" in pavane(place, "rollout", "status", resource, "--watch")
    assert written(place) == WRITTEN
    assert pavane(place, "ambrosia", "call", "bob", "transfer", "alice", "5") == "true\n"
    assert balances(place, "--after", "0:3", "--ticks", "1") == [
        {"account": "alice", "sent": 1, "balance": 75},
        {"account": "bob", "sent": 1, "balance": 75},
    ]
    pavane(place, "down")
