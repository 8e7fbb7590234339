"""The collector in processes that hold much for long."""

import gc
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
    gc.callbacks.remove(garbage._freeze)
    gc.unfreeze()


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
