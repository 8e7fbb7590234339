"""The operator's core knows no kind: a new one is a model, a folder and a line in a list (docs/specs/operator.md 3)."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "operator" / "pavane_operator"
KINDS = sorted(path.name for path in (ROOT / "kinds").iterdir() if (path / "promotion.py").is_file())
REGISTRY = ROOT / "kinds" / "registry.py"
CORE = [
    path
    for path in sorted(ROOT.rglob("*.py"))
    if path != REGISTRY
    and "crds" not in path.parts
    and not any((ROOT / "kinds" / kind) in path.parents for kind in KINDS)
]


def test_there_is_a_kind_and_a_core() -> None:
    assert "raft" in KINDS
    names = {str(path.relative_to(ROOT)) for path in CORE}
    assert {"plan/planner.py", "plan/table.py", "kinds/port.py", "runtime/reconcile.py"} <= names


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_of_the_core_names_no_kind(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for kind in KINDS:
        found = re.findall(rf"\b{kind}\w*", text, re.IGNORECASE)
        assert found == [], f"{path.name} names a kind: {sorted(set(found))}"
