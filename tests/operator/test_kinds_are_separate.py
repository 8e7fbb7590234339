"""The operator's core knows no kind: a new one is a model, a folder and a line in a list (docs/specs/operator.md 3)."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from pavane.pods.main import program_of
from pavane_api.app import create_app
from pavane_api.settings import ApiSettings
from pavane_operator.crds.definitions import KINDS as DEFINED
from pavane_operator.crds.definitions import PODLESS
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.registry import kinds

ROOT = Path(__file__).parents[2] / "operator" / "pavane_operator"
KINDS = sorted(path.name for path in (ROOT / "kinds").iterdir() if (path / "promotion.py").is_file())
CORE = [
    path
    for path in sorted(ROOT.rglob("*.py"))
    if "crds" not in path.parts
    and path.name != "diagram.py"  # it writes docs/rollout.md, whose gates ask views
    and not any((ROOT / "kinds" / kind) in path.parents for kind in (*KINDS, *(each.folder for each in PODLESS)))
]


def test_there_is_a_kind_and_a_core() -> None:
    assert "raft" in KINDS
    names = {str(path.relative_to(ROOT)) for path in CORE}
    assert {"plan/planner.py", "plan/table.py", "plan/port.py", "runtime/reconcile.py"} <= names


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_of_the_core_names_no_kind(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for kind in KINDS:
        found = re.findall(rf"\b{kind}\w*", text, re.IGNORECASE)
        assert found == [], f"{path.name} names a kind: {sorted(set(found))}"


def test_the_operator_serves_every_kind_that_is_defined() -> None:
    defaults = RenderDefaults("image", "1", None, b"-" * 32, "system")
    assert [kind.definition for kind in kinds(defaults)] == list(DEFINED)


def test_the_control_plane_serves_every_kind_and_its_data(tmp_path: Path) -> None:
    paths = create_app(ApiSettings(data=tmp_path)).openapi()["paths"]
    served = {operation["operationId"] for path in paths.values() for operation in path.values()}
    for kind in DEFINED:
        assert f"get_{kind.name.lower()}" in served
        for package in kind.routers:
            routes = import_module(f"pavane_api.{package}.endpoints").router.routes
            assert {route.operation_id for route in routes} <= served


def test_a_program_is_found_by_kind_and_role() -> None:
    assert program_of("RaftCluster", "server") == "pavane.pods.raft_server"
    assert program_of("SwimGroup", "member") == "pavane.pods.swim_member"
    assert program_of("SwimGroup", "settings") is None
    assert program_of("RaftCluster", "../../os") is None
    assert program_of("", "") is None


def test_an_operator_without_views_loads_no_sql() -> None:
    program = """
import sys
sys.modules |= dict.fromkeys(("duckdb", "pyarrow", "sqlglot"))  # importing one of them fails
import pavane_operator.runtime.main
from pavane_operator.kinds import registry
from pavane_operator.kinds.defaults import RenderDefaults
registry.kinds(RenderDefaults("pavane:1", "1", None, b"", "system"))
registry.podless()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
