from pathlib import Path

from pavane_api.openapi import main

ROOT = Path(__file__).parents[2]


def test_the_committed_description_is_fresh() -> None:
    assert main(["--check"]) == 0
