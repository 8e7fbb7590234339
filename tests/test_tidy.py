"""Rules of the repository that no linter knows."""

import ast
import itertools
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("services", "operator", "api")
MODULE_LINES_MAX = 600
LOCAL_CLUSTER_LINES_MAX = 4000  # docs/specs/operator.md 6: a convenience, never a second Kubernetes
FILE_BYTES_MAX = 650_000  # the largest is the description of the REST API, which has the schema of every kind
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
GENERATED = re.compile(r"_pb2\.py$")


def tracked(*suffixes: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    paths = (ROOT / name for name in listed.split("\0") if name)
    return [path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes)]


def python_files() -> list[Path]:
    return [path for path in tracked(".py") if not GENERATED.search(path.name)]


def lines_with(pattern: str, paths: list[Path]) -> Iterator[str]:
    compiled = re.compile(pattern)
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if compiled.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def below(paths: list[Path], *folders: str) -> list[Path]:
    return [path for path in paths if path.relative_to(ROOT).parts[0] in folders]


def test_modules_stay_small() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    assert {name: size for name, size in sizes.items() if size > MODULE_LINES_MAX} == {}


def test_local_cluster_keeps_its_budget() -> None:
    paths = [path for path in python_files() if path.is_relative_to(ROOT / "operator" / "pavane_local")]
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths) <= LOCAL_CLUSTER_LINES_MAX


def test_no_work_is_left_in_comments() -> None:
    marker = "TO" + "DO|FIX" + "ME|XX" + "X\\b"
    assert list(lines_with(marker, python_files())) == []


def test_tests_wait_for_conditions() -> None:
    pattern = r"time\.sleep\(|asyncio\.sleep\((?!0(\.0\d+)?\))"
    # e2e/kubernetes runs a cluster: it repeats calls and renews a Lease, as the programs of a cluster do.
    paths = [path for path in below(python_files(), "tests", "e2e") if "kubernetes" not in path.parts]
    assert list(lines_with(pattern, paths)) == []


def test_nobody_reads_the_environment_behind_the_settings() -> None:
    # os.environ is read in the settings of a process, and passed on to children; PATH look-ups are the exception.
    readers = list(lines_with(r"os\.getenv\(", below(python_files(), *SOURCES)))
    assert readers == []


def test_no_paths_of_anybodys_computer() -> None:
    home = "/ho" + "me/|/Us" + "ers/|/ro" + "ot/|/wo" + "rk/"
    paths = tracked(".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".json", ".tsv")
    assert list(lines_with(home, [path for path in paths if path != Path(__file__)])) == []


def test_no_large_files() -> None:
    assert [str(path) for path in tracked() if path.stat().st_size > FILE_BYTES_MAX] == []


def test_one_version_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    charts = [path for path in tracked(".yaml") if path.name == "Chart.yaml"]
    stated = {path: re.findall(r"^(?:version|appVersion): \"?([^\"\n]+)", path.read_text(), re.M) for path in charts}
    assert {str(path): found for path, found in stated.items() if set(found) != {version}} == {}


@pytest.mark.parametrize(
    "name", ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "docs/limitations.md"]
)
def test_readers_find_what_they_expect(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8").strip()


def test_links_in_the_documents_lead_somewhere() -> None:
    link = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
    links = [(path, target) for path in tracked(".md") for target in link.findall(path.read_text(encoding="utf-8"))]
    broken = [f"{path.relative_to(ROOT)} -> {target}" for path, target in links if not (path.parent / target).exists()]
    assert broken == []


def unexplained_long(path: Path) -> bool:
    """Whether all tests of the file are `long` and one of the marks has no comment."""
    source = path.read_text(encoding="utf-8")
    body = ast.parse(source).body
    tests = [each for each in body if isinstance(each, FUNCTIONS) and each.name.startswith("test_")]
    whole = [
        each.value for each in body if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "pytestmark"
    ]
    of_all = [mark for mark in whole if "mark.long" in ast.unparse(mark)]
    of_each = [[mark for mark in test.decorator_list if ast.unparse(mark) == "pytest.mark.long"] for test in tests]
    if not tests or not (of_all or all(of_each)):
        return False
    lines = source.splitlines()
    return any("  # " not in lines[(mark.end_lineno or 0) - 1] for mark in of_all or itertools.chain(*of_each))


def test_a_file_of_long_tests_says_what_make_test_runs_instead() -> None:
    files = [path for path in below(python_files(), "tests", "e2e") if path.name.startswith("test_")]
    assert [path.name for path in files if unexplained_long(path)] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("@pytest.mark.long\ndef test_a(): ...", True),
        ("@pytest.mark.long  # b covers it\ndef test_a(): ...", False),
        ("@pytest.mark.long\ndef test_a(): ...\ndef test_b(): ...", False),
        ("pytestmark = [pytest.mark.long]\nasync def test_a(): ...", True),
        ("pytestmark = pytest.mark.long  # b covers it\ndef test_a(): ...", False),
    ],
)
def test_a_long_file_without_a_reason_is_found(tmp_path: Path, text: str, wrong: bool) -> None:
    (tmp_path / "test_x.py").write_text(text)
    assert unexplained_long(tmp_path / "test_x.py") is wrong


def unset_attributes(path: Path) -> Iterator[str]:
    """Attributes that a class declares and none of its own methods sets: somebody else must fill them in."""
    for found in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(found, ast.ClassDef) or found.decorator_list or found.bases:
            continue
        set_here = {
            target.attr
            for node in ast.walk(found)
            if isinstance(node, ast.Assign | ast.AnnAssign) and getattr(node, "value", None) is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Attribute)
        }
        declared = [node.target for node in ast.walk(found) if isinstance(node, ast.AnnAssign) and node.value is None]
        for target in declared:
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            own = isinstance(target, ast.Attribute) or target.col_offset == found.col_offset + 4
            if own and name not in set_here:
                yield f"{path}: {found.name}.{name}"


def test_nobody_else_fills_in_what_a_part_needs() -> None:
    cores = [path for path in below(python_files(), "services") if "core" in path.parts]
    assert [name for path in cores for name in unset_attributes(path)] == []
    assert any(path.name == "assembly.py" for path in cores)


def test_an_attribute_that_somebody_else_fills_in_is_found(tmp_path: Path) -> None:
    source = (
        "class Part:\n    told: int\n\n    def __init__(self) -> None:\n        self.heard: str\n        self.own = 1\n"
    )
    path = tmp_path / "part.py"
    path.write_text(source, encoding="utf-8")
    assert [name.rpartition(".")[2] for name in unset_attributes(path)] == ["told", "heard"]
