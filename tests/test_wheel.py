"""The wheel, in an empty environment per documented extra: what docs/install.md promises of each works.

The dependencies are those of the environment that the tests run in, as links, so that no network is needed; whatever
the extra does not ask for is not there.
"""

import asyncio
import functools
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from email.parser import Parser
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pavane_api import guide
from tests.api.plane import plane, served

ROOT = Path(__file__).parents[1]
COMMAND_TIMEOUT_S = 120  # the modules of an environment are compiled at their first import

pytestmark = pytest.mark.timeout(300)


def _requirements(texts: list[str], extras: frozenset[str]) -> list[Requirement]:
    parsed = [Requirement(text) for text in texts]
    wanted = extras or frozenset({""})
    return [each for each in parsed if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in wanted)]


def _closure(extra: str) -> set[str]:
    """Names of the distributions that ``pavane[extra]`` needs, by what the installed ones say of themselves."""
    found: set[tuple[str, str]] = set()
    left: list[tuple[str, str]] = [("pavane", ""), ("pavane", extra)]
    while left:
        name, wanted = left.pop()
        if (name, wanted) in found:
            continue
        found.add((name, wanted))
        for each in _requirements(metadata.requires(name) or [], frozenset({wanted} if wanted else ())):
            known = canonicalize_name(each.name)
            left += [(known, ""), *((known, inner) for inner in each.extras)]
    return {name for name, _ in found} - {"pavane"}


def _link(distribution: str, site: Path) -> None:
    for file in metadata.files(distribution) or ():
        if (
            ".." in file.parts or "__pycache__" in file.parts
        ):  # programs, manual pages; what is compiled goes with its source
            continue
        source = Path(str(file.locate()))
        places = {site / file: source}
        if source.suffix == ".py":
            compiled = Path(cache_from_source(str(source)))
            places[site / file.parent / "__pycache__" / compiled.name] = compiled
        for place, target in places.items():
            if target.exists() and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(target)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=COMMAND_TIMEOUT_S)
    return next(folder.glob("*.whl"))


def test_it_says_what_it_is_and_carries_its_licence_its_types_and_the_guide(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        description = next(name for name in names if name.endswith(".dist-info/METADATA"))
        said = Parser().parsestr(archive.read(description).decode())
    folder = description.removesuffix("METADATA")
    packages = {name.partition("/")[0] for name in names if name.count("/") == 1 and name.endswith("/__init__.py")}
    assert {"pavane", "pavane_api", "pavane_cli", "pavane_local", "pavane_operator", "pyspark_waltz"} <= packages
    assert {f"{package}/py.typed" for package in packages} <= names
    assert (said["License-Expression"], said.get_all("License-File")) == ("Apache-2.0", ["LICENSE"])
    assert {f"{folder}licenses/LICENSE", "pavane_api/static/LICENSES.txt"} <= names
    assert said["Description-Content-Type"] == "text/markdown"
    kinds = said.get_all("Classifier") or []
    assert "Typing :: Typed" in kinds
    running = f"Programming Language :: Python :: {sys.version_info.major}.{sys.version_info.minor}"
    assert sys.version_info[:2] > (3, 13) or running in kinds
    oldest = min(tuple(map(int, each.split(" :: ")[-1].split("."))) for each in kinds if ":: Python :: 3." in each)
    assert said["Requires-Python"] == f">={oldest[0]}.{oldest[1]}"
    built = guide.FOLDER / guide.FIRST
    assert (f"pavane_api/site/{guide.FIRST}" in names) == built.exists(), "Git ignores it, the wheel must not"


Run = Callable[..., "subprocess.CompletedProcess[str]"]


def _installed(wheel: Path, folder: Path, extra: str) -> Run:
    """Install ``pavane[extra]`` and return a function that runs a program of the environment."""
    place = folder / "env"
    venv.create(place, symlinks=True)
    site = next(place.glob("lib/python*/site-packages"))
    for name in _closure(extra):
        _link(name, site)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "--quiet"]
    offline = ["--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", str(wheel)]
    subprocess.run([*pip, *offline], check=True, capture_output=True, timeout=COMMAND_TIMEOUT_S)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}

    def run(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [place / "bin" / words[0], *words[1:]],
            cwd=folder,
            env={**environment, "HOME": str(folder), "KUBECONFIG": str(folder / "absent"), **variables},
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    return run


@pytest.fixture(scope="module")
def default(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A program of an environment without extras."""
    return _installed(wheel, tmp_path_factory.mktemp("default"), "")


def test_the_default_install_is_the_command_line_and_the_client(default: Run) -> None:
    run = default
    for words in ("", "raft"):
        shown = run("pavane", *words.split(), "--help")
        assert (shown.returncode, shown.stderr) == (0, ""), words
    # With no cluster anywhere each says so in a line.
    for words in ("get raft", "rollout status raft/q", "raft kv get q key"):
        failed = run("pavane", *words.split())
        assert (failed.returncode, failed.stderr[:8]) == (1, "pavane: "), (words, failed.stderr)
        assert "not installed" not in failed.stderr
    client = "from pavane.raft.client import BlockingRaftClient, RaftClient; print(RaftClient.__name__)"
    assert run("python", "-c", client).stdout == "RaftClient\n"
    # What needs more says which extra to install.
    demo = f"demo {ROOT / 'examples' / 'quickstart.yaml'}"
    for words, extra in (
        ("up", "local"),
        (demo, "local"),
        ("swim member", "services"),
        ("api", "api"),
        ("sql check x", "dataflow"),
        ("sql explain x", "dataflow"),
    ):
        failed = run("pavane", *words.split())
        assert (failed.returncode, failed.stderr[:8]) == (1, "pavane: "), (words, failed.stderr)
        assert failed.stderr.endswith(f"pip install 'pavane[{extra}]'\n")


async def test_an_application_connects_with_the_default_install(default: Run, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "connect.md").read_text(encoding="utf-8")
    async with plane(tmp_path) as api, served(api, tmp_path, "Tree", "quickstart"):
        for program in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            config = str(api.local.kubeconfig)
            ended = await asyncio.to_thread(default, "python", "-c", program, KUBECONFIG=config)
            assert ended.returncode == 0, ended.stderr
            assert ended.stdout.splitlines() == re.findall(r"print\(.*\)  # (.*)", program)


PART = functools.partial(pytest.param, marks=pytest.mark.long)


# Each imports all that it needs.
@pytest.mark.parametrize(
    ("extra", "modules"),
    [
        PART("services", "pavane.pods.raft_server, pavane.pods.swim_member, pavane_cli.commands.swim_member"),
        PART("operator", "pavane_operator.runtime.main"),
        PART("api", "pavane_api.main"),
        PART("dataflow", "pavane_cli.commands.sql_views"),
        ("local", "pavane_cli.up, pavane_cli.commands.demo, pavane_api.main, pavane_operator.runtime.main"),
    ],
)
def test_each_extra_brings_what_it_promises(wheel: Path, tmp_path: Path, extra: str, modules: str) -> None:
    ended = _installed(wheel, tmp_path, extra)("python", "-c", f"import {modules}")
    assert ended.returncode == 0, ended.stderr
