"""Object storage that does not answer (its users' tests have the rest: the log's archive, backups)."""

from pathlib import Path
from threading import Event

import pytest

from pavane.runtime.objects import ObjectStore


class AwayError(Exception):
    """As whoever opens a store names its errors."""


async def test_a_store_that_is_silent_is_given_up_in_words(tmp_path: Path) -> None:
    ends = Event()
    store = ObjectStore(f"file://{tmp_path}", {}, AwayError)
    try:
        with pytest.raises(AwayError, match=rf"^reading file://{tmp_path}/one: no answer within 0 s$"):
            await store.ask("reading", "one", lambda _: ends.wait(), within_s=0.01)
    finally:
        ends.set()
    await store.write("one", b"1")
    assert await store.sizes() == {"one": 1}
