"""Settings that change while a pod runs (docs/specs/operator.md 1.4, mark L)."""

import asyncio
import logging
from pathlib import Path

import pytest

from pavane.pods import live
from tests.services.eventually import eventually


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_S", 0.01)


async def test_what_the_file_says_is_taken_at_once_and_at_each_change(tmp_path: Path) -> None:
    path = tmp_path / "live.yaml"
    taken: list[dict[str, object]] = []
    path.write_text("entries: 1\n")
    task = asyncio.create_task(live.follow(path, taken.append))
    try:
        await eventually(lambda: taken == [{"entries": 1}])
        path.write_text("entries: 2\n")
        await eventually(lambda: taken[1:] == [{"entries": 2}])
    finally:
        task.cancel()


@pytest.mark.parametrize("bad", [b"[1, 2", b"just words", b"entries: -1", b"\xff", None])
async def test_what_is_unusable_is_said_once_and_changes_nothing(
    tmp_path: Path, bad: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "live.yaml"
    taken: list[object] = []

    def take(values: dict[str, object]) -> None:
        if values["entries"] == -1:
            raise ValueError("entries must not be negative")
        taken.append(values["entries"])

    if bad is not None:
        path.write_bytes(bad)
    with caplog.at_level(logging.WARNING):
        task = asyncio.create_task(live.follow(path, take))
        try:
            await eventually(lambda: len(caplog.records) == 1)
            path.write_text("entries: 3\n")
            await eventually(lambda: taken == [3])
        finally:
            task.cancel()
    assert len(caplog.records) == 1
    assert str(path) in caplog.text
