"""Help, version and completion: what a user sees before any command runs."""

import asyncio
import contextlib
import inspect
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer import Exit
from typer.testing import CliRunner

import pavane
from pavane_api.kinds import RAFT_CLUSTERS
from pavane_cli import completing, main, reference
from pavane_cli.kinds import NAMES, PODLESS
from pavane_cli.lazy import summary
from pavane_cli.table import COMMANDS as TABLE
from pavane_cli.table import CONTAINERS, DATA, LOCAL, RESOURCES
from pavane_cli.target import Where
from pavane_operator.crds.definitions import PODLESS as DEFINED_PODLESS
from pavane_operator.crds.definitions import all_kinds
from pavane_operator.kube.resources import NAMESPACES, PODS
from tests.api.plane import created, plane

ROOT = Path(__file__).parents[2]
HEAVY = {
    "rich",
    "pavane_operator",
    "kubernetes",
    "aiohttp",
    "httpx2",
    "yaml",
    "zmq",
    "pydantic",
    "asyncio",
    "typer.testing",
}
ROOT_GROUP: Any = typer.main.get_command(main.app)


def leaves(command: Any, path: tuple[str, ...] = (), parent: Any = None) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Each command with the words that lead to it and the context of its group."""
    if not hasattr(command, "list_commands"):
        yield path, command, parent
        return
    context = command.context_class(command, info_name=path[-1] if path else "pavane", parent=parent)
    for name in command.list_commands(context):
        yield from leaves(command.get_command(context, name), (*path, name), context)


COMMANDS = {" ".join(path): (command, parent) for path, command, parent in leaves(ROOT_GROUP)}
EXAMPLES = {name: command.epilog.removeprefix("Example: ") for name, (command, _) in COMMANDS.items() if command.epilog}


def test_a_list_says_of_a_command_what_its_own_help_says() -> None:
    for name, (command, parent) in COMMANDS.items():
        told = inspect.cleandoc(command.help).partition("\n\n")[0]
        listed = next(found for each in parent.command.commands.sections.values() if (found := each.get(command.name)))
        assert summary(listed) == " ".join(told.split()) != "", name


def test_the_help_groups_the_commands_and_imports_none() -> None:
    code = "import sys\nfrom pavane_cli.main import app\ntry:\n  app(['--help'])\nfinally:\n  print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert not HEAVY & set(shown.splitlines()[-1].split())
    panels = re.findall(r"^(\w.*):$", shown, re.MULTILINE)
    assert panels == ["Options", LOCAL, RESOURCES, DATA, CONTAINERS]
    last = shown.partition(CONTAINERS)[2]
    assert re.findall(r"^  (\w+)", last, re.MULTILINE) == ["operator", "api", "pod", "helm"]


def test_every_command_has_an_example_that_parses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for folder in ("peer1", "js-peer", "backup", "storage"):
        (tmp_path / folder).mkdir()
    for file in ("secret", "revenue.sql", "keys.jsonl"):
        (tmp_path / file).touch()
    assert not {name for name in COMMANDS if name.partition(" ")[0] not in TABLE[CONTAINERS]} - EXAMPLES.keys()
    for name, example in EXAMPLES.items():
        command, parent = COMMANDS[name]
        words = shlex.split(example)
        path = ["pavane", *name.split()]
        assert words[: len(path)] == path
        with contextlib.suppress(Exit):  # of a command whose example is its help
            command.make_context(path[-1], words[len(path) :], parent=parent)  # raises for a wrong option or argument


def test_the_reference_is_up_to_date_and_has_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert reference.main(["--check"]) == 0
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    titles = set(re.findall(r"^#{3,5} (.*)$", page, re.MULTILINE))
    assert EXAMPLES.keys() <= titles
    assert "`--if-revision REVISION`" in page, "an option of a command"


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.app(["--version"])
    assert capsys.readouterr().out == f"pavane {metadata.version('pavane')}\n"


def test_the_short_list_of_kinds_is_that_of_the_definitions() -> None:
    assert sorted(NAMES) == sorted((each.short, each.name, each.plural) for each in all_kinds())
    assert {each.name for each in DEFINED_PODLESS} == PODLESS


def completed(line: str) -> list[str]:
    words = line.split(" ")
    environment = {"_PAVANE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return CliRunner().invoke(main.app, [], prog_name="pavane", env=environment).stdout.split()


async def test_kinds_and_names_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completing, "ASK_S", 60.0)
    assert completed("pavane why ra") == ["raft/"]
    assert completed("pavane get s") == ["swim"]
    assert "raft" in completed("pavane ra")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    assert await asyncio.to_thread(completed, "pavane why raft/") == []
    async with plane(tmp_path) as api:
        await created(api, "first")
        await created(api, "second")
        pod = {"metadata": {"name": "first-0"}, "spec": {"containers": [{"name": "main", "image": "unknown"}]}}
        await api.kube.create(PODS, pod, "default")
        monkeypatch.setenv("KUBECONFIG", str(Where(api.local.kubeconfig).path()))
        for line, wanted in (
            ("pavane why raft/f", ["raft/first"]),
            ("pavane get raft se", ["second"]),
            ("pavane raft kv get fi", ["first"]),
            ("pavane logs fir", ["first-0"]),
        ):
            assert await asyncio.to_thread(completed, line) == wanted


async def test_the_namespace_is_that_of_the_context_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with plane(tmp_path) as api:
        await api.kube.create(NAMESPACES, {"metadata": {"name": "team"}})
        spec = {"stateMachine": "Tree", "replicas": 1, "storage": {"size": "64Mi"}}
        await api.kube.create(RAFT_CLUSTERS, {"metadata": {"name": "theirs"}, "spec": spec}, "team")
        await created(api, "ours")
        config = yaml.safe_load(api.local.kubeconfig.read_text())
        (entry,) = config["contexts"]
        config["contexts"].append({"name": "team", "context": {**entry["context"], "namespace": "team"}})
        given = tmp_path / "given"
        given.write_text(yaml.safe_dump(config))

        def listed(*words: str) -> set[str]:
            found = CliRunner().invoke(main.app, [*words, "get", "raft", "-o", "name"], catch_exceptions=False)
            return set(found.stdout.split())

        here = ("--kubeconfig", str(given))
        for words, wanted in (
            (here, "ours"),
            ((*here, "--context", "team"), "theirs"),
            ((*here, "--context", "team", "-n", "default"), "ours"),
        ):
            assert await asyncio.to_thread(listed, *words) == {f"raftcluster/{wanted}"}
        given.write_text(yaml.safe_dump({**config, "current-context": "team"}))
        monkeypatch.setenv("KUBECONFIG", str(given))
        assert await asyncio.to_thread(listed) == {"raftcluster/theirs"}
        assert await asyncio.to_thread(completed, "pavane why raft/") == ["raft/theirs"]
        with pytest.raises(pavane.CannotConnect, match="no RaftCluster ours in namespace team"):
            await pavane.connect("ours")


def test_ctrl_c_while_it_is_imported_ends_it_without_a_traceback() -> None:
    code = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from pavane_cli.program import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")

    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert wanted["pavane"] == wanted["kubectl-pavane"] == "pavane_cli.program:main"
