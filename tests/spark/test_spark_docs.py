"""What docs/spark.md shows works."""

import re
from pathlib import Path
from typing import Any

from tests.spark.running import log_process

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark.md"


def test_the_document_runs(spark: Any, tmp_path: Path) -> None:

    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.M | re.S)
    with log_process(tmp_path / "log", 2) as servers:
        names: dict[str, Any] = {"servers": servers, "checkpoint": str(tmp_path / "checkpoint")}
        for block in blocks:
            exec(compile(block, str(DOCUMENT), "exec"), names)  # noqa: S102 - our own document
    assert len(blocks) == 4
