"""Messages with code of their own for speed are laid out as their tables say (docs/specs/waltz.md 4)."""

from typing import Any

import pytest

from pavane.waltz.wire import fields, messages, storage
from pavane.waltz.wire.fields import CHECKED_DATA, INT32, INT64, LOCKS, ReqId, Shared
from pavane.waltz.wire.tables import REQUESTS
from pavane.wire import RemoteProtocolError
from pavane.wire.fields import Layout


def test_the_short_ways_say_what_the_tables_say() -> None:
    """An append without locks and records for several nodes are laid out by code of their own."""
    reqid = ReqId(1, 2, 3, -4)
    common = (fields.REQID, INT64, LOCKS, LOCKS, LOCKS, INT32)
    old: Layout[Any] = Layout(messages.AppendRequest, *common, CHECKED_DATA)
    new: Layout[Any] = Layout(messages.AppendIdempotent, *common, INT32, INT64, INT32, CHECKED_DATA)
    for locks in ((), (7,)):
        for append, by_table, kind in (
            (messages.AppendIdempotent(reqid, 9, locks, (), (), 5, 0, -1, messages.FLAG_ACK, b"data"), new, 37),
            (messages.AppendRequest(reqid, 9, locks, (), (), 5, b"data"), old, 2),
        ):
            body = bytes(REQUESTS[5].encode(append))
            assert body == bytes((kind,)) + by_table.encode(append)
            assert (found := REQUESTS[5].decode(body)) == append
            assert type(found) is type(append)
            for size in range(1, len(body)):
                with pytest.raises(RemoteProtocolError):
                    REQUESTS[5].decode(body[:size])
    records = tuple(storage.Record.of(txid, reqid, 5, b"data" * txid) for txid in range(3))
    head = storage.Head(1, 2, 3)
    plain = storage.STORAGE_REQUESTS[0].encode(storage.Append(head, records, False))
    shared = Shared(records)
    for _ in range(2):  # made, then remembered
        assert storage.STORAGE_REQUESTS[0].encode(storage.Append(head, shared, False)) == plain
