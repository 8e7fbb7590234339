"""Frame types, MessagePack, entries and request ids: the rules and examples of docs/specs/raft.md 2."""

import copy
import hashlib
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pavane.raft.wire.entry import (
    ZERO_REQID,
    EntryType,
    LogEntry,
    decode_blob,
    decode_configuration,
    encode_blob,
    encode_configuration,
    encode_entry,
)
from pavane.raft.wire.frames import (
    decode_bool,
    decode_optional_uint,
    decode_uint,
    encode_bool,
    encode_optional_uint,
    encode_uint,
    next_message_id,
)
from pavane.raft.wire.msgpack import Value, decode, encode_js, encode_pv
from pavane.raft.wire.reqid import COUNTER_MODULUS, ReqidGenerator, machine_id, reqid_second, seed
from pavane.wire import LocalProtocolError, RemoteProtocolError

REQID = bytes.fromhex("5956dc8826f27e10dcccab20")


def values(integers: st.SearchStrategy[int]) -> st.SearchStrategy[Value]:
    scalars = st.none() | st.booleans() | integers | st.text() | st.binary() | st.floats(allow_nan=False)
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20)
    )


@pytest.mark.parametrize(("value", "frame"), [(255, "ff"), (256, "0001"), ((1 << 53) - 1, "ffffffffffff1f"), (0, "00")])
def test_uint_examples(value: int, frame: str) -> None:
    assert encode_uint(value).hex() == frame
    assert decode_uint(bytes.fromhex(frame)) == value


def test_uint_takes_trailing_zero_bytes_up_to_16() -> None:
    assert decode_uint(b"\x05" + bytes(15)) == 5


@pytest.mark.parametrize("frame", [b"", b"\x05" + bytes(16), (1 << 53).to_bytes(7, "little")])
def test_uint_refuses(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_uint(frame)
    assert caught.value.reason == "uint"


@pytest.mark.parametrize("value", [-1, 1 << 53])
def test_uint_beyond_its_range_is_our_mistake(value: int) -> None:
    with pytest.raises(LocalProtocolError):
        encode_uint(value)


@given(st.integers(0, (1 << 53) - 1))
def test_uint_round_trip_is_minimal(value: int) -> None:
    frame = encode_uint(value)
    assert decode_uint(memoryview(frame)) == value
    assert len(frame) == 1 or frame[-1] != 0


def test_optional_uint_and_bool() -> None:
    assert encode_optional_uint(None) == b""
    assert decode_optional_uint(b"") is None
    assert decode_optional_uint(b"\x00") == 0
    assert (encode_bool(True), encode_bool(False)) == (b"\x01", b"")
    assert [decode_bool(frame) for frame in (b"\x01", b"\x02\x00", b"", b"\x00", b"\x00\x01")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_message_ids_wrap_to_zero() -> None:
    assert next_message_id(1) == 2
    assert next_message_id((1 << 24) - 1) == 0


@pytest.mark.parametrize(("value", "frame"), [(None, "c0"), ([42, "foo", False], "932aa3666f6fc2")])
def test_msgpack_examples(value: Value, frame: str) -> None:
    assert encode_js(value).hex() == frame
    assert decode(bytes.fromhex(frame)) == value


def test_js_and_pv_differ_where_the_original_differs_from_the_standard() -> None:
    assert encode_js(b"x" * 255)[:3].hex() == "c500ff"
    assert encode_pv(b"x" * 255)[:2].hex() == "c4ff"
    assert encode_js(b"x" * 254)[:2].hex() == "c4fe"
    assert encode_js(1 << 31).hex() == "cb41e0000000000000"
    assert encode_pv(1 << 31).hex() == "ce80000000"
    assert encode_pv((1 << 64) - 1).hex() == "cf" + "ff" * 8
    assert encode_js(-(1 << 31) - 1)[:1] == b"\xcb"
    assert encode_pv(-(1 << 31) - 1)[:1] == b"\xd3"
    assert encode_js(7.0) == b"\x07"


def test_integers_that_a_double_would_change_are_our_mistake() -> None:
    with pytest.raises(LocalProtocolError):
        encode_js((1 << 53) + 1)
    with pytest.raises(LocalProtocolError):
        encode_pv(1 << 64)


@given(values(st.integers(-(1 << 53), 1 << 53)))
def test_js_round_trip(value: Value) -> None:
    assert decode(memoryview(encode_js(value))) == value


@given(values(st.integers(-(1 << 63), (1 << 64) - 1)))
def test_pv_round_trip(value: Value) -> None:
    assert decode(memoryview(encode_pv(value))) == value


@pytest.mark.parametrize(
    ("frame", "value"),
    [
        (b"\xca" + struct.pack(">f", 1.5), 1.5),
        (b"\xcf" + b"\xff" * 8, (1 << 64) - 1),
        (b"\xd3" + b"\xff" * 8, -1),
        (b"\xcb" + struct.pack(">d", 3.0), 3),
        (b"\x01\x02garbage", 1),
        (b"\xdb\x00\x00\x00\x01a", "a"),
        (b"\xdd\x00\x00\x00\x01\x01", [1]),
        (b"\xdf\x00\x00\x00\x01\xa1a\x01", {"a": 1}),
    ],
)
def test_decoder_takes_every_width(frame: bytes, value: Value) -> None:
    decoded = decode(frame)
    assert decoded == value
    assert type(decoded) is type(value)


NESTED = 16


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xcd\x01",
        b"\xa5abc",
        b"\xa2\xff\xfe",
        b"\xc1",
        b"\xd4\x00\x00",
        b"\xc7\x01\x00\x00",
        b"\x91" * (NESTED + 1) + b"\x01",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\x00\x10\x00\x00",
        b"\xc6\xff\xff\xff\xff",
        b"\x81\x01\x02",
        b"\x81\x90\x02",
    ],
    ids=lambda frame: frame[:8].hex() or "empty",
)
def test_decoder_refuses(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(frame)
    assert caught.value.reason == "json"


def test_decoder_takes_sixteen_levels_and_no_more_than_65536_elements() -> None:
    decode(b"\x91" * NESTED + b"\x01")
    decode(b"\xdd\x00\x01\x00\x00" + b"\x01" * 65_536)
    with pytest.raises(RemoteProtocolError):
        decode(b"\xdd\x00\x01\x00\x01" + b"\x01" * 65_537)
    many = b"\xdc\x80\x00" + b"\xc0" * 0x8000
    with pytest.raises(RemoteProtocolError):
        decode(b"\x93" + many * 3)


def test_decoder_does_not_allocate_by_a_length_it_has_not_seen() -> None:
    frame = b"\x91" * 15 + b"\xdd\x00\x00\xff\xff"
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            decode(frame)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


def test_entry_examples() -> None:
    state = bytes.fromhex("5956dc8826f27e10dcccab20" + "00" + "2a000000000000" + "666f6f")
    assert encode_entry(REQID, EntryType.STATE, 42, b"foo") == state
    checkpoint = bytes.fromhex("00" * 12 + "02" + "2b000000000000" + "c0")
    assert encode_entry(ZERO_REQID, EntryType.CHECKPOINT, 43, b"\xc0") == checkpoint
    blob = "17000000" + state.hex() + "15000000" + checkpoint.hex()
    assert encode_blob([state, checkpoint]).hex() == blob
    assert LogEntry.decode(checkpoint) == LogEntry(ZERO_REQID, 2, 43, b"\xc0")


@pytest.mark.parametrize(
    ("reqid", "term", "data"), [(REQID[:11], 1, b"x"), (REQID, 1 << 53, b"x"), (REQID, 1, b""), (REQID, -1, b"x")]
)
def test_no_bad_entry_is_made(reqid: bytes, term: int, data: bytes) -> None:
    with pytest.raises(LocalProtocolError):
        encode_entry(reqid, EntryType.STATE, term, data)


def test_greatest_term_of_an_entry() -> None:
    entry = encode_entry(REQID, EntryType.STATE, (1 << 53) - 1, b"x")
    assert LogEntry.decode(entry).term == (1 << 53) - 1


TERM_TOO_GREAT = bytes(13) + (1 << 53).to_bytes(7, "little") + b"x"


@pytest.mark.parametrize("entry", [bytes(20), b"", TERM_TOO_GREAT, bytes(13) + b"\xff" * 7 + b"x"])
def test_bad_entries_are_refused(entry: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        LogEntry.decode(entry)
    assert caught.value.reason == "entry"


@given(st.lists(st.binary(min_size=1, max_size=40)))
def test_blob_round_trip_and_every_cut_is_refused(datas: list[bytes]) -> None:
    entries = tuple(encode_entry(REQID, EntryType.STATE, 3, data) for data in datas)
    blob = encode_blob(entries)
    assert decode_blob(memoryview(blob)) == entries
    whole = {0}
    for entry in entries:
        whole.add(max(whole) + 4 + len(entry))
    for cut in set(range(len(blob))) - whole:
        with pytest.raises(RemoteProtocolError) as caught:
            decode_blob(blob[:cut])
        assert caught.value.reason == "size"


def test_blob_of_a_short_entry_is_refused() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_blob(encode_blob([bytes(20)]))
    assert caught.value.reason == "entry"


def test_configuration_both_shapes() -> None:
    old, new = (("a", "tcp://127.0.0.1:1"),), (("b", "tcp://127.0.0.1:2"), ("c", "tcp://127.0.0.1:3"))
    assert decode_configuration(encode_configuration(new)) == (new, None)
    assert decode_configuration(encode_configuration(new, old)) == (new, old)


@pytest.mark.parametrize("value", [None, "x", [["a"]], [["a", 1]], {"old": []}, {"new": [["a", "b"]]}, [1]])
def test_what_is_no_configuration_is_refused(value: Value) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_configuration(encode_js(value))
    assert caught.value.reason == "config"


def test_reqid_layout_and_order() -> None:
    machine = machine_id("host", "boot", b"drawn")
    assert machine == hashlib.blake2b(b"hostbootdrawn").digest()[:3]
    make = ReqidGenerator(lambda: seed(machine, 0x12345, COUNTER_MODULUS - 1))
    first, second = make.next(1_735_689_600), make.next(1_735_689_600)
    assert first.hex() == "67748580" + machine.hex() + "2345" + "ffffff"
    assert second.hex() == "67748580" + machine.hex() + "2345" + "000000"
    assert reqid_second(first) == 1_735_689_600


def test_a_copy_of_the_memory_makes_other_reqids_from_the_next_second_on() -> None:
    counters = iter(range(0, 1000, 100))
    make = ReqidGenerator(lambda: seed(bytes(3), 1, next(counters)))
    make.next(7)
    copied = copy.copy(make)
    assert copied.next(7) == make.next(7), "nobody can know, so the store compares"
    assert copied.next(8) != make.next(8)
    assert copied.next(7) != make.next(7), "a clock that comes back"
    first = int.from_bytes(make.next(9)[-3:], "big")
    make.begin_anew()
    assert int.from_bytes(make.next(9)[-3:], "big") == first + 100, "drawn again within the second"


def test_reqids_of_one_second_run_out_instead_of_repeating() -> None:
    make = ReqidGenerator(lambda: seed(bytes(3), 1, 0))
    make._used, make._second = COUNTER_MODULUS - 1, 7
    make.next(7)
    with pytest.raises(LocalProtocolError, match="next"):
        make.next(7)
    assert reqid_second(make.next(8)) == 8
