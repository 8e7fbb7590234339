"""The planner has no clock, no I/O, no randomness: its modules cannot even name them (docs/specs/operator.md 2.1)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PLAN = Path(__file__).parents[2] / "operator" / "pavane_operator" / "plan"
BESIDE = {"diagram.py", "port.py"}  # a generator, and declarations of what kinds implement, some of it asynchronous
MODULES = sorted(path for path in PLAN.glob("*.py") if path.name not in BESIDE)
ALLOWED = {
    "collections",
    "dataclasses",
    "datetime",
    "functools",
    "hashlib",
    "json",
    "typing",
    "pavane",
    "pavane_operator",
}
IMPURE_METHODS = {"now", "utcnow", "today"}


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_of_the_planner_can_only_compute(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert set(_imports(tree)) <= ALLOWED
    called = {
        node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert not called & IMPURE_METHODS
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]
