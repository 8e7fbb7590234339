"""docs/rollout.md is what the transition table says."""

from pathlib import Path

import pytest

from pavane_operator.plan import diagram

DOCUMENT = Path(__file__).parents[2] / diagram.TARGET


def test_the_committed_document_is_that_of_the_table() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == diagram.render(), "run python -m pavane_operator.plan.diagram"


def test_it_draws_every_move() -> None:
    text = diagram.render()
    assert "Promoting --> Aborting: cancelled, reverted, superseded or failed" in text
    assert "Promoting --> Retiring: " in text
    assert "Retiring --> Aborting" not in text


def test_check_tells_a_stale_document_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "rollout.md"
    assert diagram.main(["--check", "--target", str(target)]) == 1
    assert "stale" in capsys.readouterr().err
    assert not target.exists()
    assert diagram.main(["--target", str(target)]) == 0
    assert diagram.main(["--check", "--target", str(target)]) == 0
