"""Commands as bytes (docs/specs/raft.md 12.3): every example both ways, limits, and input of any kind."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pavane.raft.errors import Code
from pavane.raft.machines import limits
from pavane.raft.machines.commands import Compare, Create, Failed, Op, Put, Range, Relation, Target, Txn, encode_command
from pavane.raft.machines.decoding import decode_command
from pavane.raft.machines.keyvalue import KeyValue, Tree
from pavane.raft.machines.state import Result, decode_result
from pavane.raft.wire.msgpack import encode_pv

EXTENSION = json.loads((Path(__file__).parents[1] / "vectors" / "raft.json").read_text())["extension"]


def plain(value: Any) -> Any:
    """Return a vector's value with its ``{"hex": …}`` as bytes."""
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return [plain(item) for item in value] if isinstance(value, list) else value


def refusal(value: Any, *, tree: bool = True) -> tuple[Code, Any]:
    data = value if isinstance(value, bytes) else encode_pv(value)
    with pytest.raises(Failed) as failed:
        decode_command(data, 1, tree=tree)
    return failed.value.code, failed.value.argument


@pytest.mark.parametrize("vector", EXTENSION["commands"], ids=lambda vector: vector["about"])
def test_every_example_of_a_command_both_ways(vector: Any) -> None:
    data = bytes.fromhex(vector["hex"])
    command = decode_command(memoryview(data), 1, tree=True)
    assert encode_command(command) == data
    assert encode_pv(plain(vector["value"])) == data


@pytest.mark.parametrize("vector", EXTENSION["results"], ids=lambda vector: vector["about"])
def test_every_example_of_a_result_both_ways(vector: Any) -> None:
    data = bytes.fromhex(vector["hex"])
    code, revision, value = decode_result(data)
    assert [code, revision, value] == plain(vector["value"])
    assert Result.of(code, revision, value).data == data


def test_the_examples_of_the_text_are_what_a_machine_answers() -> None:
    machine = Tree()
    put = bytes.fromhex("940190919401c40161c401310090")
    assert machine.apply(7, b"r" * 12, memoryview(put)).data.hex() == "93000792c391920101"
    grant = bytes.fromhex("9302cd2710c405706f642d31")
    assert machine.apply(41, b"s" * 12, memoryview(grant)).data.hex() == "9300299229cd2710"


def test_a_lock_of_somebody_else_is_read_as_in_the_text() -> None:
    machine = KeyValue()
    machine.apply(40, b"a", memoryview(bytes.fromhex("9302cd2710c405706f642d31")))
    machine.apply(41, b"b", memoryview(bytes.fromhex("9302cd2710c405706f642d31")))
    machine.apply(42, b"c", encode_command(Txn(then=(Put(b"lock/x", b"you", 40),))))
    lock = next(vector for vector in EXTENSION["commands"] if vector["about"].startswith("lock"))
    result = machine.apply(43, b"d", bytes.fromhex(lock["hex"]))
    assert decode_result(result.data) == (0, 43, [False, [[4, [[b"lock/x", b"you", 42, 42, 1, 40]], False]]])


WRONG_FORMS: dict[str, Any] = {
    "empty": b"",
    "not MessagePack": b"\xc1",
    "cut off": bytes.fromhex("9401909194"),
    "a map": {"a": 1},
    "an empty array": [],
    "a name": ["TXN"],
    "true is no number": [True, [], [], []],
    "a field missing": [1, [], []],
    "a field too many": [3, 41, 0],
    "no list of ops": [1, [], 7, []],
    "an op without number": [1, [], [[b"a", b"1"]], []],
    "text as key": [1, [], [[2, "a"]], []],
    "an empty key": [1, [], [[2, b""]], []],
    "a negative lease": [3, -1],
    "a lease beyond 53 bits": [3, 1 << 53],
    "a fraction": [2, 0.5, b""],
    "an unknown flag": [1, [], [[4, b"a", b"", 0, 8]], []],
    "an empty range key": [1, [], [[3, b"", b""]], []],
    "an unknown comparison": [1, [[1, 4, b"a", b""]], [], []],
    "a value compared to a number": [1, [[1, 0, b"a", 1]], [], []],
    "a version compared to a value": [1, [[2, 0, b"a", b"1"]], [], []],
    "LEASE_ALIVE with a key": [1, [[6, 0, b"a", 1]], [], []],
    "LEASE_ALIVE that is less": [1, [[6, 2, b"", 1]], [], []],
    "a relative path": [1, [], [[20, b"a"]], []],
    "a trailing slash": [1, [], [[20, b"/a/"]], []],
    "an empty component": [1, [], [[20, b"/a//b"]], []],
    "a dot": [1, [], [[20, b"/a/./b"]], []],
    "two dots": [1, [], [[20, b"/.."]], []],
    "creating the root": [1, [], [[16, b"/", b"", 0, 0]], []],
    "removing the root": [1, [], [[18, b"/", -1]], []],
    "ephemeral without lease": [1, [], [[16, b"/a", b"", 1, 0]], []],
    "a lease without ephemeral": [1, [], [[16, b"/a", b"", 0, 7]], []],
    "a version below any": [1, [], [[19, b"/a", -2]], []],
    "a version that is true": [1, [], [[19, b"/a", True]], []],
    "a key put twice": [1, [], [[1, b"a", b"", 0], [1, b"a", b"", 0]], []],
    "a key put and deleted": [1, [], [], [[1, b"a", b"", 0], [2, b"a"]]],
    "a key put within a deleted range": [1, [], [[1, b"b", b"", 0], [3, b"a", b"c"]], []],
    "a deleted range to the end over a key": [1, [], [[3, b"a", b"\0"], [2, b"z"]], []],
    "ranges that overlap": [1, [], [[3, b"a", b"c"], [3, b"b", b"d"]], []],
    "a range behind one to the end": [1, [], [[3, b"a", b"\0"], [3, b"b", b""]], []],
    "a node set and removed": [1, [], [[17, b"/a", b"", -1], [18, b"/a", -1]], []],
    "a node created twice": [1, [], [[16, b"/a", b"", 0, 0], [16, b"/a", b"", 0, 0]], []],
}


@pytest.mark.parametrize("name", WRONG_FORMS)
def test_a_command_of_a_wrong_form_is_a_bad_command(name: str) -> None:
    code, text = refusal(WRONG_FORMS[name])
    assert code == Code.BAD_COMMAND
    assert isinstance(text, str)


@pytest.mark.parametrize(
    "ops",
    [
        [[3, b"a", b"c"], [3, b"c", b"e"], [1, b"e", b"", 0]],
        [[3, b"a", b"z"], [3, b"m", b"b"], [1, b"z", b"", 0]],
        [[1, b"/a", b"", 0], [17, b"/a", b"", -1], [19, b"/a", -1], [20, b"/a"]],
        [[16, b"/a", b"", 2, 0], [16, b"/a", b"", 2, 0]],
        [[4, b"", b"\0", 0, 0], [4, b"", b"\0", 0, 2]],
    ],
    ids=["ranges side by side", "an empty range in another", "a key like a path", "sequential twice", "reads"],
)
def test_what_is_written_once_is_taken(ops: Any) -> None:
    decode_command(encode_pv([1, [], ops, []]), 1, tree=True)


@pytest.mark.parametrize(
    ("command", "limit"),
    [
        ([1, [], [[2, b"k" * 1025]], []], 1024),
        ([1, [], [[4, b"k" * 1026, b"l", 0, 0]], []], 1025),
        ([1, [[2, 0, b"k" * 1025, 0]], [], []], 1024),
        ([1, [], [[20, b"/" * 1025]], []], 1024),
        ([1, [], [[16, b"/" + b"s" * 1014, b"", 2, 0]], []], 1014),
        ([1, [], [[1, b"k", bytes(1_048_577), 0]], []], 1_048_576),
        ([1, [[1, 0, b"k", bytes(1_048_577)]], [], []], 1_048_576),
        ([1, [], [[2, b"%d" % number] for number in range(129)], []], 128),
        ([1, [[6, 0, b"", 1]] * 129, [], []], 128),
        ([2, 1000, b"h" * 257], 256),
        ([4, [*range(1001)]], 1000),
        (bytes(2_097_153), 2_097_152),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_what_is_beyond_a_limit_is_too_large(command: Any, limit: int) -> None:
    assert refusal(command) == (Code.TOO_LARGE, limit)


def test_what_is_at_a_limit_is_taken() -> None:
    half = bytes(1_046_000)
    ops: tuple[Op, ...] = (Put(b"k" * 1024, half), Create(b"/" + b"s" * 1013, half, Create.SEQUENTIAL))
    ops += (Range(b"a"),) * 126
    command = Txn((Compare(Target.LEASE_ALIVE, Relation.EQUAL, b"", 1),) * 128, ops)
    data = encode_command(command)
    assert len(data) < limits.TXN_BYTES_MAX
    assert decode_command(data, 1, tree=True) == command
    decode_command(encode_pv([1, [], [[1, b"k", bytes(1_048_576), 0]], []]), 1, tree=True)
    decode_command(encode_pv([2, 1000, bytes(256)]), 1, tree=True)
    decode_command(encode_pv([4, [*range(1000)]]), 1, tree=True)


@pytest.mark.parametrize("command", [[0], [6, 1], [1, [[7, 0, b"a", 0]], [], []], [1, [], [[5, b"a"]], []]])
def test_what_a_later_level_may_know_is_unsupported_and_not_bad(command: Any) -> None:
    # A program that knows it says the same as long as the level does not have it: both apply the same log.
    assert refusal(command) == (Code.UNSUPPORTED, 1)


@pytest.mark.parametrize(
    "command", [[1, [[16, 0, b"/a", 0]], [], []], [1, [], [[16, b"/a", b"", 0, 0]], []], [1, [], [], [[21, b"/"]]]]
)
def test_a_machine_without_tree_does_not_know_its_ops(command: Any) -> None:
    assert refusal(command, tree=False) == (Code.UNSUPPORTED, 1)
    decode_command(encode_pv(command), 1, tree=True)


ARRAYS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.integers(0, 22)
    | st.floats(allow_nan=False)
    | st.binary(max_size=6)
    | st.sampled_from([b"/", b"/a", b"/a/b", b"a", b"b", b"\0"])
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=30,
)
COMMANDS = st.builds(
    lambda compares, then, otherwise: [1, compares, then, otherwise],
    st.lists(ARRAYS, max_size=3),
    st.lists(ARRAYS, max_size=5),
    st.lists(ARRAYS, max_size=5),
)


@given(st.lists(st.binary(max_size=60) | ARRAYS.map(encode_pv) | COMMANDS.map(encode_pv), max_size=8))
def test_any_bytes_come_to_a_result_and_never_to_an_exception(entries: list[bytes]) -> None:
    for machine in (KeyValue(), Tree()):
        for index, data in enumerate(entries, 1):
            code, revision, _ = decode_result(machine.apply(index, index.to_bytes(12, "big"), data).data)
            assert revision == index
            assert code in Code
        assert len(machine.digest()) == 32


def test_results_of_refused_input_are_the_level_s() -> None:
    # Replicas of two program versions keep the same results; a changed text would part them.
    texts = {str(refusal(value)[1]) for value in WRONG_FORMS.values()}
    assert texts == {
        "LEASE_ALIVE takes an empty key and comparison 0 or 1",
        "a key is written twice",
        "an ephemeral node needs a lease, and no other has one",
        "empty key",
        "not MessagePack",
        "not a number of 0 to 2^53-1",
        "not a path",
        "not an array",
        "not an array that begins with a number",
        "not an integer",
        "not binary",
        "the root is neither created nor removed",
        "unknown comparison",
        "unknown flag",
        "wrong number of fields",
    }
