import operator
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLAIN = ("operator", "services", "api", "charts", "e2e", "tests")


def test_standard_operator_survives_collection() -> None:
    assert sys.modules["operator"] is operator
    assert Path(str(operator.__file__)).name == "operator.py"


def test_plain_directories_are_not_packages() -> None:
    assert [d for d in PLAIN if (ROOT / d / "__init__.py").exists()] == []


def test_nothing_collectable_below_the_source_roots() -> None:
    paths = [p for d in PLAIN[:3] for p in (ROOT / d).rglob("*.py") if "node_modules" not in p.parts]
    assert [p for p in paths if p.match("test_*.py") or p.match("*_test.py") or p.name == "conftest.py"] == []


def test_interpreter_starts_in_the_root() -> None:
    code = "import collections, operator; operator.itemgetter"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
