"""Files and folders of original peers: read as they were left behind, anything else is refused (raft.md 13.6)."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pavane.raft.offline.js_folder import JsFolder, JsState, write_folder
from pavane.raft.state.configuration import Configuration
from pavane.raft.storage.js_files import (
    LOG_ENTRIES,
    JsFileError,
    JsSnapshot,
    decode_log,
    decode_properties,
    decode_snapshot,
    encode_log,
    encode_properties,
    encode_snapshot,
    first_of_name,
    log_capacity,
    log_path,
)
from pavane.raft.wire.entry import EntryType, encode_entry, entry_data, entry_type

LEFT_BEHIND = json.loads((Path(__file__).parent / "vectors" / "js_folder.json").read_text())
ONE = ("1", "tcp://127.0.0.1:18141")
TWO = ("2", "tcp://127.0.0.1:18142")
STAMP, HOST = "2026-01-01T00:00:00.000Z", "host"
FIRST_FILE = bytes.fromhex(LEFT_BEHIND["members_changed"]["log/00000/00/00/00000000000001.rlog"])
SNAPSHOT_FILE = bytes.fromhex(LEFT_BEHIND["compacted"]["snap"])
STATE_FILE = bytes.fromhex(LEFT_BEHIND["members_changed"]["raft.pers"])


def left_behind(name: str, folder: Path) -> Path:
    """Lay out a folder as a peer of the npm package has left it behind."""
    for path, content in LEFT_BEHIND[name].items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes.fromhex(content))
    return folder


def entry(data: bytes, term: int = 1) -> bytes:
    return encode_entry(b"request-id12", EntryType.STATE, term, data)


def test_a_folder_of_an_original_peer_is_read(tmp_path: Path) -> None:
    folder = JsFolder(left_behind("members_changed", tmp_path))
    found = [(index, entry_type(entry), bytes(entry_data(entry))) for index, entry in folder.entries()]
    assert [index for index, _, _ in found] == [1, 2, 3, 4, 5, 6, 7]
    states = [data for _, kind, data in found if kind == EntryType.STATE]
    assert states == [b"a", b"two", b"threethreethree", b"\0\xff", b"last"]
    assert Configuration.decode(found[3][2]) == Configuration((ONE, TWO), (ONE,))
    assert folder.state == JsState(
        term=1,
        configuration=Configuration((ONE, TWO)),
        configuration_index=5,
        configuration_reqid=bytes.fromhex("6b0228b1686c820240178ee7"),
        applied=7,
    )
    assert (folder.snapshot.index, bytes(folder.snapshot.data), folder.torn_bytes) == (0, b"", 0)


def test_entries_of_a_compacted_folder_begin_behind_the_snapshot(tmp_path: Path) -> None:
    folder = JsFolder(left_behind("compacted", tmp_path))
    assert (folder.snapshot.index, folder.snapshot.term, bytes(folder.snapshot.data)) == (6, 1, b"state so far")
    assert [(index, bytes(entry_data(entry))) for index, entry in folder.entries()] == [(7, b"last"), (8, b"behind it")]
    assert (folder.state.term, folder.state.vote) == (2, "1")


def test_a_missing_file_of_the_log_is_named(tmp_path: Path) -> None:
    folder = left_behind("compacted", tmp_path)
    (folder / "snap").unlink()
    (folder / "log/00000/00/00/00000000000004.rlog").unlink()
    with pytest.raises(JsFileError, match=r"00000000000008\.rlog: .*ends with 3"):
        list(JsFolder(folder).entries())


def test_what_we_write_is_what_the_original_writes(tmp_path: Path) -> None:
    read = JsFolder(left_behind("members_changed", tmp_path / "old"))
    (tmp_path / "new").mkdir()
    write_folder(tmp_path / "new", read.state, read.snapshot, read.entries())
    again = JsFolder(tmp_path / "new")
    assert again.state == read.state
    assert [bytes(entry) for _, entry in again.entries()] == [bytes(entry) for _, entry in read.entries()]
    log = decode_log("log", FIRST_FILE, 1)
    meta = FIRST_FILE[FIRST_FILE.index(b"META") :]
    stamp, host = meta[meta.index(b"created") + 8 :][:24], meta[meta.index(b"hostname") + 9 :][:2]
    parts = encode_log(1, log.capacity, log.entries, stamp.decode(), host.decode())
    assert b"".join(parts) == FIRST_FILE


def test_a_full_file_is_followed_by_the_next(tmp_path: Path) -> None:
    entries = [(index, entry(b"%d" % index)) for index in range(1, 2 * LOG_ENTRIES + 10)]
    write_folder(tmp_path, JsState(term=1), JsSnapshot(0, 0, b""), iter(entries))
    names = sorted(str(path.relative_to(tmp_path / "log")) for path in (tmp_path / "log").rglob("*.rlog"))
    assert names == [log_path(1), log_path(LOG_ENTRIES), log_path(2 * LOG_ENTRIES)]
    assert [(index, bytes(entry)) for index, entry in JsFolder(tmp_path).entries()] == entries


@pytest.mark.parametrize(
    ("first", "path", "capacity"),
    [
        (1, "00000/00/00/00000000000001.rlog", 16_383),
        (16_384, "00000/00/00/00000000004000.rlog", 16_384),
        (0x123456789ABCD, "01234/56/78/0123456789abcd.rlog", 0x4000 - 0x2BCD),
    ],
)
def test_names_and_capacities(first: int, path: str, capacity: int) -> None:
    assert log_path(first) == path
    assert first_of_name(path.rpartition("/")[2]) == first
    assert log_capacity(first) == capacity


@pytest.mark.parametrize("name", ["1.rlog", "0000000000000g.rlog", "00000000000001.log", "00000000000001.rlog.tmp"])
def test_other_files_are_no_part_of_the_log(name: str) -> None:
    assert first_of_name(name) is None


@given(st.integers(0, 1 << 52), st.lists(st.binary(min_size=1, max_size=300), max_size=20), st.integers(0, 30))
def test_log_files_are_read_back(first: int, data: list[bytes], room: int) -> None:
    entries = [entry(each) for each in data]
    capacity = max(1, len(entries) + room)
    file = b"".join(encode_log(first, capacity, entries, STAMP, HOST)) + b"of a write that was never finished"
    log = decode_log("log", file, first)
    assert ([bytes(each) for each in log.entries], log.capacity) == (entries, capacity)


@given(st.integers(1, (1 << 53) - 1), st.integers(0, (1 << 53) - 1), st.binary(max_size=300))
def test_snapshots_are_read_back(index: int, term: int, data: bytes) -> None:
    file = b"".join(encode_snapshot(JsSnapshot(index, term, data), STAMP, HOST))
    found = decode_snapshot("snap", file)
    assert (found.index, found.term, bytes(found.data)) == (index, term, data)


@given(st.data())
def test_any_bytes_are_a_file_or_one_error(data: st.DataObject) -> None:
    file = data.draw(st.sampled_from([FIRST_FILE, SNAPSHOT_FILE, STATE_FILE]))
    changed = bytearray(file[: data.draw(st.integers(0, len(file)))])
    for offset in data.draw(st.lists(st.integers(0, max(0, len(changed) - 1)), max_size=6)):
        if changed:
            changed[offset] = data.draw(st.integers(0, 255))
    found = bytes(changed)
    for decode in (lambda: decode_log("x", found, 1), lambda: decode_snapshot("x", found)):
        try:
            decode()
        except JsFileError as error:
            assert 0 <= error.offset <= len(changed)  # noqa: PT017 - most changes are refused, some are not
    try:
        decode_properties("x", found)
    except JsFileError as error:
        assert 0 <= error.offset <= len(changed)  # noqa: PT017


@pytest.mark.parametrize(
    ("at", "to", "offset", "problem"),
    [
        (0, b"XLOG", 0, "not a log file"),
        (8, b"\x02", 0, "version 1"),
        (12, b"\xff\xff\xff\xff", 12, "capacity"),
        (16, b"\x02", 16, "begins with index 2"),
        (24, b"\x00\x01", 100, "goes on behind the end"),
        (24, b"\x14", 100, "20 bytes"),
        (28, b"\x15", 121, "end before it begins"),
        (92, b"ITMX", 179, "ITMZ"),
    ],
)
def test_damage_of_a_log_file_is_located(at: int, to: bytes, offset: int, problem: str) -> None:
    damaged = FIRST_FILE[:at] + to + FIRST_FILE[at + len(to) :]
    with pytest.raises(JsFileError, match=problem) as refused:
        decode_log("00000000000001.rlog", damaged, 1)
    assert refused.value.offset == offset
    assert "00000000000001.rlog" in str(refused.value)


def test_a_snapshot_of_another_size_than_its_header_says_is_refused() -> None:
    with pytest.raises(JsFileError, match="11 bytes of data, the header says 12"):
        decode_snapshot("snap", SNAPSHOT_FILE[:-1])


def test_an_unfinished_last_write_of_the_state_is_ignored() -> None:
    changed = encode_properties({"currentTerm": 8, "votedFor": "2"})
    for cut in range(1, len(changed)):
        found = decode_properties("raft.pers", STATE_FILE + changed[:cut])
        assert (found.values["currentTerm"], found.torn_bytes) == (1, cut)
    assert decode_properties("raft.pers", STATE_FILE + changed).values["currentTerm"] == 8


@pytest.mark.parametrize("rest", [b"\xc1", b"\x07", b"\xc7\x01\x01\x01"])
def test_state_that_is_no_map_is_refused_and_not_taken_for_unfinished(rest: bytes) -> None:
    with pytest.raises(JsFileError, match=r"raft\.pers") as refused:
        decode_properties("raft.pers", STATE_FILE + rest)
    assert refused.value.offset == len(STATE_FILE)


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("raft.pers", {"currentTerm": -1}, "term -1"),
        ("raft.pers", {"currentTerm": 1.5}, "1.5"),
        ("raft.pers", {"votedFor": 7}, "vote for 7"),
        ("raft.pers", {"peers": [["1"]]}, "no configuration"),
        ("raft.pers", {"peersIndex": "x"}, "peersIndex"),
        ("raft.pers", {"peersUpdateRequest": "short"}, "request id"),
        ("state.pers", {"lastApplied": None}, "lastApplied"),
    ],
)
def test_impossible_state_is_refused(tmp_path: Path, name: str, values: dict[str, object], problem: str) -> None:
    (tmp_path / name).write_bytes(encode_properties(values))  # type: ignore[arg-type]
    with pytest.raises(JsFileError, match=problem) as refused:
        JsFolder(tmp_path)
    assert refused.value.file == name
