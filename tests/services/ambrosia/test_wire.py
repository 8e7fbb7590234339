"""The codec: every vector both ways, and arbitrary bytes (docs/specs/ambrosia.md 2-4, 11.5, 12)."""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pavane.ambrosia.errors import Reason
from pavane.ambrosia.wire import limits
from pavane.ambrosia.wire.batches import count_calls
from pavane.ambrosia.wire.files import CheckpointHead, Page, SavedOutput
from pavane.ambrosia.wire.links import Answer, Channel, Hello
from pavane.ambrosia.wire.messages import (
    OUR_INITIAL_MESSAGE,
    Call,
    Commit,
    Frame,
    MessageBuffer,
    ReplayFrom,
    Return,
    RpcKind,
    RpcType,
    Type,
    attach_to,
    batch,
    checkpoint,
    frame,
    incoming,
    is_impulse,
    outgoing,
    read_attach_to,
    read_batch,
    read_checkpoint,
    read_frame,
    read_frames,
    read_rpc,
    read_trim_to,
    split_outgoing,
    trim_to,
)
from pavane.ambrosia.wire.primitives import Cursor, read_zz32, read_zz64, zz32, zz64
from pavane.ambrosia.wire.records import (
    Header,
    LogRecord,
    RecordBuffer,
    checkpoint_record,
    control_record,
    read_header,
    xor64,
    xxh64,
)
from pavane.wire import LimitExceeded, LocalProtocolError, RemoteProtocolError

VECTORS: dict[str, dict[str, Any]] = {
    row["name"]: row for row in json.loads((Path(__file__).parent / "vectors.json").read_text())
}
FORK = Call(7, RpcType.FORK, b"AB")
IMPULSE = Call(7, RpcType.IMPULSE, b"AB")
ASYNC = Call(7, RpcType.ASYNC, b"AB", "client", 42)
OK = Return(RpcKind.VALUE, "server", 42, b"OK")
VOID = Return(RpcKind.VOID, "server", 42)
COMMITTER = 19088743
JS_INITIAL = frame(Type.INITIAL_MESSAGE, b"2.0.1")
C_INITIAL = frame(Type.INITIAL_MESSAGE, incoming(Call(32, RpcType.FORK, b"\5\4\3")))
BATCH = batch([incoming(FORK), incoming(IMPULSE)], impulses=1)
TAKE = {
    "TakeCheckpoint": Type.TAKE_CHECKPOINT,
    "UpgradeTakeCheckpoint": Type.UPGRADE_TAKE_CHECKPOINT,
    "TakeBecomingPrimaryCheckpoint": Type.TAKE_BECOMING_PRIMARY_CHECKPOINT,
    "UpgradeService": Type.UPGRADE_SERVICE,
    "BecomingPrimary": Type.BECOMING_PRIMARY,
}
RPC_OF_SEQ_7 = incoming(Call(2, RpcType.FORK, b'{"isFinalState":false}'))

SAVED = CheckpointHead(
    COMMITTER,
    12,
    b"",
    {},
    {},
    {"server": (9, 8)},
    {"server": SavedOutput(6, 4, 4, (Page(incoming(FORK) * 2, 6, 5, 2, 2),))},
    3,
)

ENCODED: dict[str, Callable[[], bytes]] = {
    **{f"record {name}": partial(control_record, COMMITTER, type_) for name, type_ in TAKE.items()},
    "record seq 0, C binding InitialMessage": lambda: LogRecord(COMMITTER, 0, C_INITIAL).delivered(),
    "record seq 0, JS binding InitialMessage": lambda: LogRecord(COMMITTER, 0, JS_INITIAL).delivered(),
    "record Checkpoint at recovery, n=800": lambda: checkpoint_record(-5, checkpoint(800)),
    "record seq 7, one RPC": lambda: LogRecord(-5, 7, RPC_OF_SEQ_7).delivered(),
    'AttachTo "server"': lambda: attach_to("server"),
    "InitialMessage JS": lambda: JS_INITIAL,
    "InitialMessage C": lambda: C_INITIAL,
    "InitialMessage C#": lambda: frame(Type.INITIAL_MESSAGE, zz32(5) + b"hello"),
    "InitialMessage Python": lambda: OUR_INITIAL_MESSAGE,
    "Checkpoint n=800": lambda: checkpoint(800),
    "Checkpoint n=9 as sent by the C binding": lambda: frame(Type.CHECKPOINT, (9).to_bytes(8, "little")),
    "TakeCheckpoint": lambda: frame(Type.TAKE_CHECKPOINT),
    'outgoing Fork to "server", method 7, args "AB"': lambda: outgoing("server", FORK),
    'incoming Fork, method 7, args "AB"': lambda: incoming(FORK),
    'incoming Impulse, method 7, args "AB"': lambda: incoming(IMPULSE),
    'incoming Async call, method 7, sender "client", call 42, args "AB"': lambda: incoming(ASYNC),
    'incoming return value, sender "server", call 42, value "OK"': lambda: incoming(OK),
    'incoming void return, sender "server", call 42': lambda: incoming(VOID),
    "incoming post call, method -1, JSON {}": lambda: incoming(Call(-1, RpcType.FORK, b"{}")),
    "RPCBatch of 2 Forks": lambda: batch([incoming(FORK)] * 2),
    "CountReplayableRPCBatch, 1 Fork + 1 Impulse": lambda: BATCH,
    "ReplayFrom fresh": lambda: ReplayFrom(1, 1).encode(),
    "ReplayFrom 151, 141": lambda: ReplayFrom(151, 141).encode(),
    "TrimTo -1": lambda: trim_to(-1),
    "Commit 3, 2": lambda: Commit(3, 2).encode(),
    "link hello, client data out to server data in": lambda: Hello(
        "client", "server", Channel.DATA, "pod-0", (3, 41), COMMITTER
    ).encode(),
    "link answer, success": lambda: Answer(0, (3, 41)).encode(),
    "link answer, older token": lambda: Answer(11, (4, 57), "newer primary").encode(),
    "log file: record seq 0 with no watermarks": lambda: LogRecord(COMMITTER, 0, JS_INITIAL).encode(),
    "log file: record seq 1 with watermarks": lambda: LogRecord(
        COMMITTER, 1, BATCH, {"client": (3, 2)}, {"client": 4}
    ).encode(),
    "log file: record seq 0 in the old format": lambda: (
        Header(COMMITTER, 31, xor64(JS_INITIAL), 0, old=True).encode_logged() + JS_INITIAL + b"\0\0"
    ),
    "checkpoint file: first checkpoint, 3-byte application state": lambda: (
        CheckpointHead(COMMITTER, 0, JS_INITIAL, {}, {}, {}, {}, 3).encode() + b"abc"
    ),
    "checkpoint file: one input, one output with one page": lambda: SAVED.encode() + b"abc",
}
PREFIXES = {
    "outgoing RPC to self, prefix": lambda: outgoing("", Call(4, RpcType.FORK, b'{"' + bytes(74))),
    "outgoing RPCBatch of 2 to self, prefix": lambda: frame(
        Type.RPC_BATCH,
        zz32(2) + outgoing("", Call(1, RpcType.FORK, b"\xff" + bytes(64))) * 2,
    ),
    "RPC to self after the coordinator stripped the destination, prefix": lambda: split_outgoing(
        frames_of(outgoing("", Call(4, RpcType.FORK, b'{"' + bytes(74))))[0]
    )[1],
}


def frames_of(data: bytes) -> list[Frame]:
    return read_frames(data)


def vector(name: str) -> bytes:
    return bytes.fromhex(VECTORS[name]["hex"])


def test_every_vector_is_tried() -> None:
    numbers = {name for name in VECTORS if name.startswith(("zigzag", "check "))}
    foreign = {name for name in VECTORS if name.startswith("CRA handshake")}  # the original's transport: not spoken
    assert set(VECTORS) - numbers - foreign == set(ENCODED) | set(PREFIXES)


@pytest.mark.parametrize("name", [name for name in VECTORS if name.startswith("zigzag")])
def test_numbers(name: str) -> None:
    fields, data = VECTORS[name]["fields"], vector(name)
    write, read = (zz32, read_zz32) if fields["bits"] == 32 else (zz64, read_zz64)
    assert write(fields["value"]) == data
    assert read(data + b"\x7f", 0) == (fields["value"], len(data))


@pytest.mark.parametrize("name", [name for name in VECTORS if name.startswith("check ")])
def test_checks(name: str) -> None:
    fields, body = VECTORS[name]["fields"], vector(name)
    if "xxh64" in fields:
        assert f"{xxh64(body):016x}" == fields["xxh64"]
        assert xxh64(body).to_bytes(8, "little").hex() == fields["header_bytes"]
    assert xor64(body).to_bytes(8, "little").hex() == fields["xor_check_header_bytes"]


@pytest.mark.parametrize("name", ENCODED)
def test_vectors_are_written_byte_by_byte(name: str) -> None:
    assert ENCODED[name]().hex() == VECTORS[name]["hex"]


@pytest.mark.parametrize("name", PREFIXES)
def test_prefixes_are_written_byte_by_byte(name: str) -> None:
    assert PREFIXES[name]().startswith(vector(name))


@pytest.mark.parametrize("name", ENCODED)
def test_vectors_are_read(name: str) -> None:
    data = vector(name)
    if name.startswith("record"):
        read_wire_record(name, data)
    elif name.startswith("log file"):
        read_log_record(name, data)
    elif name.startswith("checkpoint file"):
        head, start = CheckpointHead.decode(data)
        assert data[start:] == b"abc"
        assert head.encode() + b"abc" == data
    elif name.startswith("link"):
        decode: Any = Hello.decode if "hello" in name else Answer.decode
        value, length = decode(data)
        assert (value.encode(), length) == (data, len(data))
        for cut in range(len(data)):
            assert decode(data[:cut]) is None
    else:
        message = frames_of(data)[0]
        assert message.raw == data
        assert frame(message.type, message.data) == data
        assert message.type == VECTORS[name]["fields"].get("type", message.type)
        for cut in range(1, len(data)):
            assert read_frame(data[:cut], 0) is None


def read_wire_record(name: str, data: bytes) -> None:
    fields = VECTORS[name]["fields"]
    records = RecordBuffer()
    for byte in data:
        assert records.next() is None
        records.feed(bytes([byte]))
    record = records.next()
    assert record is not None
    assert (record.header.committer, record.header.size, record.header.seq) == (
        fields["committer"],
        fields["size"],
        fields["seq"],
    )
    assert record.header.encode() + record.body == data
    assert record.header.check == (0 if record.header.seq == -2 else xxh64(record.body))
    assert [found.raw for found in frames_of(record.body)] == [record.body]


def read_log_record(name: str, data: bytes) -> None:
    fields = VECTORS[name]["fields"]
    cursor = Cursor(data)
    record = LogRecord.decode(cursor)
    assert cursor.remaining == 0
    assert len(record.body) + 24 == fields.get("size", fields["size_field"])
    assert {source: list(marks) for source, marks in record.inputs.items()} == fields.get("inputs", {})
    assert record.trims == fields.get("trims", {})
    if fields["size_field"] < 0:
        assert record.encode() == data
    for cut in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            LogRecord.decode(Cursor(data[:cut]))


def test_values_of_messages() -> None:
    assert read_attach_to(frames_of(vector('AttachTo "server"'))[0].data) == "server"
    assert read_checkpoint(frames_of(vector("Checkpoint n=800"))[0].data) == 800
    assert read_checkpoint(frames_of(vector("Checkpoint n=9 as sent by the C binding"))[0].data) == 9
    assert ReplayFrom.decode(frames_of(vector("ReplayFrom 151, 141"))[0].data) == ReplayFrom(151, 141)
    assert Commit.decode(frames_of(vector("Commit 3, 2"))[0].data) == Commit(3, 2)
    assert read_trim_to(frames_of(vector("TrimTo -1"))[0].data) == -1
    destination, stripped, impulse = split_outgoing(frames_of(outgoing("server", IMPULSE))[0])
    assert (destination, stripped, impulse) == ("server", incoming(IMPULSE), True)
    for rpc in (FORK, IMPULSE, ASYNC, OK, VOID):
        assert read_rpc(frames_of(incoming(rpc))[0].data) == rpc
    assert count_calls(frames_of(BATCH)[0]) == (2, 1)


def test_an_answer_is_never_an_impulse() -> None:
    assert is_impulse(IMPULSE.body())
    assert not is_impulse(bytes([RpcKind.VALUE]) + zz32(1) + b"\2" + zz64(1))  # looks like one without its kind
    with pytest.raises(LocalProtocolError):
        Return(RpcKind.VALUE, "", 1).body()


MALFORMED = {
    "a size of 0": (b"\0\0", Reason.SIZE),
    "a negative size": (zz32(-5) + b"\0", Reason.SIZE),
    "a number without end": (b"\xff" * 6, Reason.VARINT),
    "33 bits": (b"\xff\xff\xff\xff\x7f", Reason.VARINT),
    "too large": (zz32(limits.MESSAGE_BYTES_MAX + 1) + b"\0", Reason.SIZE),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_frames_are_refused(name: str) -> None:
    data, reason = MALFORMED[name]
    stream = MessageBuffer()
    stream.feed(data)
    with pytest.raises(RemoteProtocolError) as raised:
        stream.next()
    assert raised.value.reason == reason


BATCHES = {
    "nested": zz32(1) + batch([incoming(FORK)] * 2),
    "control inside": zz32(1) + frame(Type.TAKE_CHECKPOINT),
    "fewer": zz32(3) + incoming(FORK) * 2,
    "more": zz32(1) + incoming(FORK) * 2,
    "cut": zz32(2) + incoming(FORK) + incoming(FORK)[:-1],
    "negative": zz32(-1),
    "beyond the limit": zz32(limits.BATCH_COUNT_MAX + 1),
}


@pytest.mark.parametrize("name", BATCHES)
def test_malformed_batches_are_refused(name: str) -> None:
    with pytest.raises(RemoteProtocolError):
        read_batch(Frame(Type.RPC_BATCH, BATCHES[name], b""))


def test_wrong_count_of_replayables_is_refused() -> None:
    data = zz32(2) + zz32(2) + incoming(FORK) + incoming(IMPULSE)
    with pytest.raises(RemoteProtocolError) as raised:
        count_calls(Frame(Type.COUNT_REPLAYABLE_RPC_BATCH, data, b""))
    assert raised.value.reason == Reason.COUNT


def test_an_empty_batch_is_legal() -> None:
    assert read_batch(Frame(Type.RPC_BATCH, zz32(0), b"")) == []


def test_limits_of_names_checkpoints_and_records() -> None:
    with pytest.raises(LimitExceeded):
        split_outgoing(frames_of(outgoing("x" * (limits.NAME_BYTES_MAX + 1), FORK))[0])
    with pytest.raises(RemoteProtocolError):
        read_attach_to(b"x" * (limits.NAME_BYTES_MAX + 1))
    with pytest.raises(LimitExceeded):
        read_checkpoint(zz64(limits.CHECKPOINT_BYTES_MAX + 1))
    with pytest.raises(LimitExceeded):
        read_header(Header(1, limits.RECORD_BYTES + limits.MESSAGE_BYTES_MAX + 25, 0, 0).encode())
    rows = {f"peer-{number}": (1, 1) for number in range(limits.PEERS_MAX + 2)}
    with pytest.raises(LimitExceeded):
        LogRecord.decode(Cursor(LogRecord(1, 0, b"", rows).encode()))


names = st.text(max_size=20)
numbers = st.integers(-(1 << 63), (1 << 63) - 1)
small = st.integers(-(1 << 31), (1 << 31) - 1)
calls = st.builds(
    Call,
    small,
    st.sampled_from([RpcType.FORK, RpcType.IMPULSE]),
    st.binary(max_size=50),
    sender=st.just(""),
    number=st.just(0),
)
asyncs = st.builds(Call, small, st.just(RpcType.ASYNC), st.binary(max_size=50), names, numbers)
values = st.sampled_from([RpcKind.VALUE, RpcKind.EXCEPTION])
returns = st.builds(Return, values, names.filter(bool), numbers, st.binary(max_size=50))
rpcs = st.one_of(calls, asyncs, returns)
marks = st.dictionaries(names, st.tuples(numbers, numbers), max_size=4)
trims = st.dictionaries(names, numbers, max_size=4)
pages = st.builds(Page, st.binary(max_size=40), numbers, numbers, numbers, numbers)
outputs = st.builds(SavedOutput, numbers, numbers, numbers, st.lists(pages, max_size=3).map(tuple))
sizes = st.integers(0, limits.CHECKPOINT_BYTES_MAX)


@given(small, numbers)
def test_numbers_return(first: int, second: int) -> None:
    assert read_zz32(zz32(first), 0)[0] == first
    assert read_zz64(zz64(second), 0)[0] == second
    cursor = Cursor(zz32(first) + zz64(second))
    assert (cursor.zz32(), cursor.zz64()) == (first, second)


@given(st.lists(rpcs, min_size=1, max_size=5), names)
def test_calls_return(sent: list[Call | Return], destination: str) -> None:
    impulses = sum(isinstance(rpc, Call) and rpc.rpc is RpcType.IMPULSE for rpc in sent)
    packed = frames_of(batch([incoming(rpc) for rpc in sent], impulses=impulses))[0]
    assert count_calls(packed) == (len(sent), len(sent) - impulses)
    inner = read_batch(packed) if len(sent) > 1 else [packed]
    assert [read_rpc(message.data) for message in inner] == sent
    for rpc in sent:
        assert split_outgoing(frames_of(outgoing(destination, rpc))[0])[:2] == (destination, incoming(rpc))


@given(st.builds(LogRecord, small, numbers, st.binary(max_size=80), marks, trims))
def test_log_records_return(record: LogRecord) -> None:
    assert LogRecord.decode(Cursor(record.encode())) == record


@given(
    st.builds(
        CheckpointHead,
        small,
        numbers,
        st.binary(max_size=40),
        marks,
        trims,
        marks,
        st.dictionaries(names, outputs, max_size=3),
        sizes,
    )
)
def test_checkpoint_heads_return(head: CheckpointHead) -> None:
    data = head.encode()
    assert CheckpointHead.decode(data) == (head, len(data))


@given(st.binary(max_size=120))
def test_arbitrary_bytes_are_read_or_refused(data: bytes) -> None:
    readers: list[Callable[[bytes], object]] = [
        read_frames,
        read_rpc,
        is_impulse,
        read_checkpoint,
        read_attach_to,
        read_trim_to,
        ReplayFrom.decode,
        Commit.decode,
        Hello.decode,
        Answer.decode,
        CheckpointHead.decode,
        lambda found: LogRecord.decode(Cursor(found)),
        lambda found: split_outgoing(Frame(0, found, found)),
        lambda found: count_calls(Frame(5, found, found)),
        lambda found: count_calls(Frame(13, found, found)),
    ]
    for read in readers:
        with suppress(RemoteProtocolError):  # nothing else may come out
            read(data)


def test_a_message_is_put_back_whether_its_bytes_were_kept_or_not() -> None:
    buffer = MessageBuffer()
    sent = [frame(0, b"a" * 10), frame(0, bytes(2 * limits.MIB)), frame(0, b"c")]
    buffer.feed(b"".join(sent))
    for raw in sent:
        message = buffer.next()
        assert message is not None
        buffer.put_back(message)
        assert buffer.next() == message
        assert message.raw == raw
    assert buffer.next() is None
    assert len(buffer) == 0


def test_a_large_call_is_split_as_a_small_one() -> None:
    for size in (10, 2 * limits.MIB):
        call = Call(7, RpcType.IMPULSE, bytes(size))
        (message,) = read_frames(outgoing("bob", call))
        assert split_outgoing(message) == ("bob", incoming(call), True)
