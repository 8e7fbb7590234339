"""docs/telemetry.md and the names in the code, compared in both directions."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "telemetry.md"
RAFT = ROOT / "docs" / "specs" / "raft.md"
GROUP = "pavane.dev"  # the API group; its labels and annotations begin with it
POD_MODULES = "pavane.pods."  # modules that `pavane pod` imports by name
MACHINES = "pavane.raft.machines"  # the group of entry points
IMPORTED = ("pavane.ambrosia.", "pavane.application", "pavane.spark.")  # where modules are imported, or run, by name
LABELS = frozenset({"code", "done", "kind", "op", "peer", "reason", "result", "where"})  # told beside their metric
METRIC_PREFIX = re.compile(r"pavane_[a-z]+_")
METRIC = re.compile(r"pavane_[a-z_]+[a-z]")
WORD = re.compile(r"[a-z]+(_[a-z]+)*")
SPAN = re.compile(r"(raft|stage|waltz|dataflow|ambrosia)/[A-Za-z.-]+")
TYPED = ("pavane_cli", "table.py")  # arguments that people type: raft/quickstart is no span
PACKAGES = frozenset({"pavane_api", "pavane_cli", "pavane_local", "pavane_operator"})
QUOTED = re.compile(r"`([^`\n]+)`")


@functools.cache
def modules() -> tuple[list[str], ...]:
    """The string literals of each module."""
    paths = [path for folder in ("services", "operator", "api") for path in (ROOT / folder).rglob("*.py")]
    read = [path for path in paths if "proto" not in path.parts and path.parts[-2:] != TYPED]
    return tuple(literals(ast.parse(path.read_text(encoding="utf-8"))) for path in read)


def literals(module: ast.Module) -> list[str]:
    """All string literals but docstrings; of f-strings the fixed pieces."""
    documentation = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
    ]


def attributes() -> set[str]:
    """What begins with `pavane.`: our attributes and the scopes of our spans."""
    found = {text for module in modules() for text in module if text.startswith("pavane.") and " " not in text}
    imported = {text for text in found if text.startswith(IMPORTED) and is_module(text)}
    return {text for text in found - imported if not text.startswith((GROUP, POD_MODULES, MACHINES))}


def is_module(name: str) -> bool:
    path = ROOT / "services" / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def metric_names() -> set[str]:
    """Literal names, and all words of a module that puts a common prefix before its names."""
    found = set()
    for words in modules():
        prefixes = {text for text in words if METRIC_PREFIX.fullmatch(text)}
        found |= {text for text in words if METRIC.fullmatch(text)} - PACKAGES
        if prefixes:
            (prefix,) = prefixes
            found |= {prefix + word for word in words if WORD.fullmatch(word) and word not in LABELS}
    return found


def span_names() -> set[str]:
    return {text for module in modules() for text in module if SPAN.fullmatch(text)}


def documented() -> set[str]:
    return set(QUOTED.findall(PAGE.read_text(encoding="utf-8")))


def test_every_attribute_is_documented() -> None:
    assert attributes() - documented() == set()


def test_every_metric_is_documented() -> None:
    names = metric_names()
    assert {"pavane_api_streams", "pavane_raft_term", "pavane_raft_updates_total", "pavane_raft_peer_kind"} <= names
    assert names - documented() == set()


def test_every_span_is_documented() -> None:
    assert {"raft/RequestUpdate", "raft/append"} <= span_names()
    assert span_names() - documented() == set()


def test_the_page_names_nothing_that_is_gone() -> None:
    names = documented()
    made_up = {name for name in names if re.fullmatch(r"pavane\.[a-z_.]+", name)} - attributes()
    made_up |= {name for name in names if METRIC.fullmatch(name)} - metric_names() - PACKAGES
    made_up |= {
        name for name in names if SPAN.fullmatch(name) and name.startswith(("raft/", "waltz/", "ambrosia/"))
    } - span_names()
    assert made_up - {"pavane.stage.client", "pavane.stage.server"} == set()  # scopes named by `__name__`


def section(title: str) -> str:
    """The text below a heading of the Raft specification."""
    text = RAFT.read_text(encoding="utf-8")
    return text[text.index(title) :].split("\n", 1)[1].split("\n##", 1)[0]


def test_every_metric_of_the_raft_specification_is_made() -> None:
    wanted = {quoted.partition("{")[0] for quoted in QUOTED.findall(section("### 15.1")) if quoted[0].islower()}
    assert {"role", "commit_seconds", "append_batch_entries", "kv_commands_total"} <= wanted
    made = {name.removeprefix("pavane_raft_").removesuffix("_sum") for name in metric_names()}
    assert wanted - made == set()


def test_every_span_of_the_raft_specification_is_made() -> None:
    rows = [line.split("|")[1] for line in section("### 15.2").splitlines() if line.startswith("| `raft/")]
    wanted = {name for row in rows for name in QUOTED.findall(row) if name.startswith("raft/")}
    assert {"raft/follow", "raft/lease-expire"} <= wanted
    assert wanted - span_names() == set()
