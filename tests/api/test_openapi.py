from pathlib import Path

from pavane_api.openapi import PATH, document

ROOT = Path(__file__).parents[2]


def test_the_committed_description_is_fresh() -> None:
    assert PATH.read_text(encoding="utf-8") == document(), "run `make openapi`"
