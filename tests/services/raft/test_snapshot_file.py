"""The snapshot file (docs/specs/raft.md 9.2): what is written is read back, anything else is refused."""

from dataclasses import replace
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pavane.raft.wire.entry import encode_configuration
from pavane.raft.wire.snapshot import (
    HEAD_BYTES,
    BadSnapshotFile,
    SnapshotHead,
    SnapshotMeta,
    SnapshotScan,
    decode_groups,
    encode_group,
)

CONFIGURATION = encode_configuration((("1", "tcp://127.0.0.1:1"), ("2", "tcp://127.0.0.1:2")), None)
IDS = encode_group(7, bytes(range(32))) + encode_group(9, bytes(16))
META = SnapshotMeta(CONFIGURATION, 3, "KeyValue", 1, 6, IDS)


def file_of(meta: SnapshotMeta = META, data: bytes = b"the state") -> bytes:
    encoded = meta.encode()
    front = SnapshotHead(41, 5, len(encoded), len(data)).encode() + encoded + data
    return front + blake2b(front, digest_size=32).digest()


def scanned(*pieces: bytes) -> tuple[SnapshotHead, SnapshotMeta]:
    scan = SnapshotScan()
    for piece in pieces:
        scan.feed(piece)
    return scan.finish()


@given(st.lists(st.integers(1, 400), max_size=40))
def test_file_in_pieces_of_any_size(sizes: list[int]) -> None:
    file = file_of()
    pieces, start = [], 0
    for size in sizes:
        pieces.append(file[start : start + size])
        start += size
    head, meta = scanned(*pieces, file[start:])
    assert meta == META
    assert (head.index, head.term, head.total) == (41, 5, len(file))
    assert file[head.data_offset : head.data_offset + head.data_bytes] == b"the state"


@pytest.mark.parametrize("bare", [False, True])
def test_meta_says_whether_the_configuration_is_a_leaders(bare: bool) -> None:
    meta = replace(META, bare=bare)
    assert scanned(file_of(meta))[1] == meta
    assert (b"\xa4bare" in meta.encode()) == bare


def test_head_has_the_offsets_of_the_table() -> None:
    file = file_of()
    assert file[:4] == b"PVRS"
    assert [int.from_bytes(file[at : at + 8], "little") for at in (8, 16, 24, 32)] == [41, 5, len(META.encode()), 9]
    assert HEAD_BYTES == 44


def test_groups_of_ids() -> None:
    assert [(second, bytes(ids)) for second, ids in decode_groups(IDS)] == [(7, bytes(range(32))), (9, bytes(16))]


@given(st.integers(0, len(file_of()) - 1), st.integers(0, 7))
def test_every_flipped_bit_is_found(offset: int, bit: int) -> None:
    file = bytearray(file_of())
    file[offset] ^= 1 << bit
    with pytest.raises(BadSnapshotFile):
        scanned(bytes(file))


@given(st.integers(0, len(file_of()) - 1))
def test_every_cut_is_found(length: int) -> None:
    with pytest.raises(BadSnapshotFile, match="cut off"):
        scanned(file_of()[:length])


def test_bytes_behind_the_end_are_refused() -> None:
    with pytest.raises(BadSnapshotFile, match="longer"):
        scanned(file_of() + b"x")


@pytest.mark.parametrize("ids", [b"\0", IDS[:-1], b"\0\0\0\0\xff\xff\xff\xff"])
def test_ids_that_are_cut_off_are_refused(ids: bytes) -> None:
    with pytest.raises(BadSnapshotFile, match="request ids"):
        scanned(file_of(SnapshotMeta(CONFIGURATION, 3, "KeyValue", 1, 6, ids)))


def test_digests_are_read_and_may_be_missing_as_in_files_of_an_older_version() -> None:
    told = replace(META, digests=bytes(range(24)))
    assert scanned(file_of(told))[1] == told
    assert b"digests" in told.encode()
    assert b"digests" not in META.encode()


@pytest.mark.parametrize("digests", [bytes(8), bytes(25), bytes(32)])
def test_digests_that_are_not_those_of_the_ids_are_refused(digests: bytes) -> None:
    with pytest.raises(BadSnapshotFile, match="digests"):
        scanned(file_of(replace(META, digests=digests)))


def test_foreign_configuration_is_refused() -> None:
    with pytest.raises(BadSnapshotFile, match="meta"):
        scanned(file_of(SnapshotMeta(b"\xc0", 3, "KeyValue", 1, 6, IDS)))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(BadSnapshotFile):
        scanned(data)
