"""The collector in processes that hold much for long."""

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from pavane.runtime import garbage
from pavane.runtime.garbage import freeze_survivors


class Record:
    """Something that the collector would look at."""


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    yield
    garbage._thaw()


def test_what_survives_a_full_collection_is_not_looked_at_again() -> None:
    freeze_survivors()
    freeze_survivors()
    kept = [Record() for _ in range(1000)]
    assert any(each is kept[0] for each in gc.get_objects())
    gc.collect()
    assert not any(each is kept[0] for each in gc.get_objects())


def test_what_is_frozen_is_freed_when_nobody_refers_to_it() -> None:
    freeze_survivors()
    kept = Record()
    gone = weakref.ref(kept)
    gc.collect()
    del kept
    assert gone() is None


def test_cycles_that_die_young_are_still_collected() -> None:
    freeze_survivors()
    young = Record()
    young.itself = young  # type: ignore[attr-defined]
    gone = weakref.ref(young)
    del young
    gc.collect()
    assert gone() is None


def test_cycles_that_die_later_are_collected_once_their_time_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    freeze_survivors()
    old = Record()
    old.itself = old  # type: ignore[attr-defined]
    gone = weakref.ref(old)
    gc.collect()
    del old
    gc.collect()
    assert gone() is not None
    monkeypatch.setattr(garbage._freeze, "_thaw_due", 0.0)
    kept = [Record() for _ in range(1000)]
    gc.collect()
    assert gone() is None
    assert not any(each is kept[0] for each in gc.get_objects()), "what survived is frozen again"


@pytest.mark.parametrize("freezes", ["pavane.runtime.garbage.freeze", "pavane.runtime.garbage.freeze_survivors"])
def test_a_process_that_used_duckdb_ends_without_a_word(freezes: str) -> None:
    """It listed thirty leaked instances behind the last line of a pod's log."""
    module, _, function = freezes.rpartition(".")
    program = (
        "import gc, duckdb; duckdb.connect().sql('SELECT 1').fetchall()\n"
        f"from {module} import {function}; {function}(); gc.collect(); print('done')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_the_sdk_freezes_what_thaws_at_the_end() -> None:
    """As a pod of views does, whose modules are there when its telemetry begins."""
    program = "import duckdb; from pavane.telemetry.sdk import provide; provide('pavane-test', {}).shutdown()"
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False,
                           env=environment)  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
