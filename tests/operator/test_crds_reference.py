"""The reference of the resources: fresh, and complete."""

from __future__ import annotations

from pathlib import Path

from pavane_operator.crds import reference
from pavane_operator.crds.base import MARK_KEY, Mark
from pavane_operator.crds.definitions import all_kinds, definitions
from pavane_operator.crds.raftcluster import RaftClusterSpec

ROOT = Path(__file__).parents[2]


def _rows(text: str, heading: str) -> dict[str, list[str]]:
    """Cells of the table of a RaftCluster below a heading, by field."""
    chapter = text.split("\n## RaftCluster\n", 1)[1]
    table = chapter.split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): [cell.strip() for cell in cells[1:]] for cells in rows}


def test_the_committed_reference_is_that_of_the_models() -> None:
    committed = (ROOT / reference.FOLDER / reference.FILE).read_text(encoding="utf-8")
    assert committed == reference.render(), "run python -m pavane_operator.crds.reference"


def test_each_field_has_its_type_default_mark_and_meaning() -> None:
    rows = _rows(reference.render(), "spec")
    assert rows["terminationGracePeriod"][:3] == ["duration", '`"30s"`', Mark.POD]
    assert rows["storage.size"][0] == "quantity"
    assert rows["storage.size"][2] == Mark.LIVE
    assert rows["rollout.paused"][2] == Mark.CONTROL
    assert rows["stateMachine"][1] == '`"KeyValue"`'
    assert rows["secretRef.name"][1] == "required"
    assert rows["extraEnv[].valueFrom.secretKeyRef.key"][2] == Mark.POD
    assert rows["rollout.onDeadline"][0] == "`Hold` \\| `Abort`"
    assert {name.partition(".")[0].partition("[")[0] for name in rows} == {
        field.alias for field in RaftClusterSpec.model_fields.values()
    }
    assert [name for name, cells in rows.items() if not cells[-1]] == []


def test_the_way_to_uninstall_names_every_kind() -> None:
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    plurals = sorted(kind.plural for kind in all_kinds())
    assert f"kubectl delete {','.join(plurals)} --all" in text
    assert f"kubectl delete crd {' '.join(f'{plural}.pavane.dev' for plural in plurals)}\n" in text


def test_each_field_of_a_status_has_a_meaning() -> None:
    rows = _rows(reference.render(), "status")
    assert rows["conditions[].type"][0].startswith("string")
    assert [name for name, cells in rows.items() if not cells[-1]] == []


def test_marks_are_for_readers_and_never_for_a_server() -> None:
    assert MARK_KEY in str(definitions(marks=True))
    assert MARK_KEY not in str(definitions())
