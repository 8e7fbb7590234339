"""docs/rollout.md is what the transition table says."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from pavane_operator.crds.gates import OnFailure
from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.plan import diagram
from pavane_operator.plan.table import TABLE
from pavane_operator.plan.windows import window_problem

DOCUMENT = Path(__file__).parents[2] / diagram.FOLDER / diagram.FILE


def test_the_committed_document_is_that_of_the_table() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == diagram.render(), "run python -m pavane_operator.plan.diagram"


def test_it_draws_every_move() -> None:
    text = diagram.render()
    assert "Promoting --> Aborting: cancelled, reverted, superseded or failed" in text
    assert "Promoting --> Retiring: " in text
    assert "Retiring --> Aborting" not in text


def test_check_tells_a_stale_document_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = ["--folder", str(tmp_path)]
    assert diagram.main(["--check", *there]) == 1
    assert diagram.COMMAND in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert diagram.main(there) == 0
    assert diagram.main(["--check", *there]) == 0


def test_the_examples_of_gates_and_windows_are_resources() -> None:
    (_, example, _, windows, _) = diagram.FOOTER.replace("```yaml", "```").split("```")
    document = yaml.safe_load(example)
    spec = RaftClusterSpec.read(document["spec"])
    assert [each.on_failure for each in spec.rollout.gates] == [
        OnFailure.SWITCH_BACK,
        None,
        OnFailure.SWITCH_BACK,
        None,
    ]
    found = RaftClusterSpec.read(yaml.safe_load(windows)["spec"]).rollout.windows
    assert len(found) == 2
    assert window_problem(found, datetime(2030, 1, 1, tzinfo=UTC)) is None


def test_the_name_of_a_row_occurs_once() -> None:
    names = [row.name for row in TABLE]
    assert len(names) == len(set(names))
