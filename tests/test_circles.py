"""No module imports itself through others, not even for annotations: a reader can start at the bottom and go up."""

import ast
import functools
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("services", "operator", "api")


@functools.cache
def modules() -> dict[str, Path]:
    """Our modules by name, without generated ones."""
    found = {}
    for source in SOURCES:
        for path in (ROOT / source).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT / source).with_suffix("").parts).removesuffix(".__init__")
            if "_pb2" not in name and "node_modules" not in path.parts:
                found[name] = path
    return found


def imports(path: Path) -> Iterator[str]:
    """Our modules that a module names, at its top or below ``TYPE_CHECKING``; not what a function imports late."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    late = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in late:
            continue
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                whole = f"{node.module}.{each.name}"
                yield whole if whole in modules() else node.module


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A circle of the graph; empty if it has none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_import_goes_round_in_a_circle() -> None:
    graph = {name: {each for each in imports(path) if each in modules()} - {name} for name, path in modules().items()}
    assert sum(map(len, graph.values())) > len(graph)
    assert circle(graph) == []


def test_a_circle_is_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == {"b", "c"}
