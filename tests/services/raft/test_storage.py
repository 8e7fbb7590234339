"""The Raft store: what was stored is found again, damage is noticed, never served (docs/specs/raft.md 13.2, 13.3)."""

import copy
import itertools
import json
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pavane.raft.state.commands import (
    RECOVERING_FLOOR,
    Append,
    CorruptEntry,
    HardState,
    Note,
    Recovered,
    StoreCommand,
    Token,
    Truncate,
)
from pavane.raft.storage import ForeignStore, Identity, RaftStorage, RecordType, StoreError, StoreLocked, records
from pavane.raft.wire.entry import EntryType, encode_configuration, encode_entry, entry_digest
from pavane.wal import Appender, DiskFolder, Folder, Log, Record
from pavane.wal.record import decode_mark
from tests.services.memory_disk import MemoryDisk, MemoryFile, MemoryFolder

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "raft.json").read_text())
RECORDS = {vector["record"]: bytes.fromhex(vector["payload_hex"]) for vector in VECTORS["extension"]["records"]}
IDENTITY = Identity("1", "Broadcast")
MEMBERS = (("1", "tcp://127.0.0.1:1"), ("2", "tcp://127.0.0.1:2"))


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return DiskFolder(tmp_path / "data") if request.param == "disk" else MemoryDisk().folder("data")


def entry(number: int, term: int = 1, size: int = 8) -> bytes:
    return encode_entry(
        b"request" + number.to_bytes(5, "big"), EntryType.STATE, term, (b"%d-" % number).ljust(size, b".")
    )


def store(storage: RaftStorage, *commands: StoreCommand) -> int | None:
    """Execute ``commands`` and make them durable; return the ticket that is reported."""
    storage.execute(commands)
    return flush(storage)


def flush(storage: RaftStorage) -> int | None:
    appender = Appender(storage.log_folder)
    batch = storage.take()
    assert batch is not None
    appender.execute([batch])
    appender.close()
    return storage.completed([batch])


def reopened(folder: Folder, storage: RaftStorage) -> tuple[RaftStorage, Recovered]:
    storage.close()
    again = RaftStorage(folder, IDENTITY)
    return again, again.take_recovered()


def read(storage: RaftStorage, first: int, last: int, bytes_max: int = 1 << 30) -> list[bytes]:
    return [bytes(view) for view in storage.read(first, last, bytes_max)]


def segment(storage: RaftStorage) -> str:
    return storage.log_folder.names()[-1]


def damage(folder: Folder, name: str, change: Callable[[bytearray], None]) -> None:
    file = folder.open(name)
    data = bytearray(file.read(0, file.size))
    file.close()
    change(data)
    folder.remove(name)
    file = folder.create(name)
    file.append([data])
    file.sync()
    file.close()


@pytest.mark.parametrize(
    ("name", "decode", "encode"),
    [
        ("entries", records.decode_entries, records.encode_entries),
        ("hard", records.decode_hard, records.encode_hard),
        ("hard_no_vote", records.decode_hard, records.encode_hard),
        ("token", lambda payload: (records.decode_token(payload),), records.encode_token),
        ("truncate", lambda payload: (records.decode_truncate(payload),), records.encode_truncate),
    ],
)
def test_records_have_the_bytes_of_the_vectors(
    name: str, decode: Callable[[memoryview], tuple[Any, ...]], encode: Callable[..., bytes]
) -> None:
    assert encode(*decode(memoryview(RECORDS[name]))) == RECORDS[name]


def test_record_vectors_mean_what_the_specification_says() -> None:
    first, found = records.decode_entries(memoryview(RECORDS["entries"]))
    assert (first, len(found), bytes(found[0][20:])) == (5, 2, b"foo")
    assert records.decode_hard(memoryview(RECORDS["hard"])) == (43, "1", 0)
    assert records.decode_hard(memoryview(RECORDS["hard_no_vote"])) == (44, "", 7)
    assert records.decode_token(memoryview(RECORDS["token"])) == Token(2, 17)
    assert records.decode_truncate(memoryview(RECORDS["truncate"])) == 5
    assert decode_mark(RECORDS["mark"]) == 1000


@pytest.mark.parametrize("value", [7, "text", b"bytes", 1 << 60])
def test_a_note_keeps_its_value(value: int | str | bytes) -> None:
    assert records.decode_note(memoryview(records.encode_note("key", value))) == ("key", value)


@pytest.mark.parametrize("kind", list(RecordType))
def test_a_record_that_we_did_not_write_is_refused(kind: RecordType) -> None:
    decode = {
        RecordType.ENTRIES: records.decode_entries,
        RecordType.HARD: records.decode_hard,
        RecordType.TRUNCATE: records.decode_truncate,
        RecordType.SNAPSHOT: records.decode_snapshot,
        RecordType.NOTE: records.decode_note,
        RecordType.TOKEN: records.decode_token,
    }[kind]
    for payload in (b"", b"\xff" * 3, b"\xff" * 40):
        with pytest.raises(StoreError):
            decode(memoryview(payload))


def test_an_empty_store_is_that_of_a_new_peer(folder: Folder) -> None:
    storage = RaftStorage(folder, IDENTITY)
    assert storage.take_recovered() == Recovered()
    storage, again = reopened(folder, storage)
    assert again == Recovered()
    storage.close()


def test_everything_stored_is_found_again(folder: Folder) -> None:
    storage = RaftStorage(folder, IDENTITY)
    configuration = encode_entry(bytes(12), EntryType.CONFIG, 3, encode_configuration(MEMBERS))
    ticket = store(
        storage,
        HardState(1, 3, "2", 1),
        Append(2, 1, (entry(1, 2), entry(2, 2), configuration)),
        Note(3, "commit", 2),
        Note(4, "kind 2", "ours"),
    )
    assert ticket == 4
    storage.store_token(Token(2, 17))
    flush(storage)
    storage, recovered = reopened(folder, storage)
    assert recovered == Recovered(
        term=3,
        vote="2",
        vote_floor=1,
        last_index=3,
        term_runs=((1, 2), (3, 3)),
        reqids=entry(1)[:12] + entry(2)[:12] + bytes(12),
        digests=array("Q", map(entry_digest, (entry(1, 2), entry(2, 2), configuration))).tobytes(),
        configurations=((3, encode_configuration(MEMBERS)),),
        commit=2,
        notes={"commit": 2, "kind 2": "ours"},
        token=Token(2, 17),
    )
    assert storage.token == Token(2, 17)
    assert read(storage, 1, 3) == [entry(1, 2), entry(2, 2), configuration]
    storage.close()


def test_later_entries_replace_earlier_ones_of_the_same_index(folder: Folder) -> None:
    storage = RaftStorage(folder, IDENTITY)
    configuration = encode_entry(bytes(12), EntryType.CONFIG, 1, encode_configuration(MEMBERS))
    store(storage, Append(1, 1, (entry(1), entry(2), configuration, entry(4))))
    store(storage, Truncate(2, 3), Append(3, 2, (entry(22, 5), entry(33, 5))), Note(4, "commit", 9))
    expected = [entry(1), entry(22, 5), entry(33, 5)]
    assert read(storage, 1, 9) == expected
    storage, recovered = reopened(folder, storage)
    assert (recovered.last_index, recovered.term_runs, recovered.configurations) == (3, ((1, 1), (2, 5)), ())
    assert recovered.commit == 3
    assert recovered.reqids == b"".join(one[:12] for one in expected)
    assert recovered.digests == array("Q", map(entry_digest, expected)).tobytes()
    assert read(storage, 1, 9) == expected
    storage.close()


def test_truncation_is_found_again(folder: Folder) -> None:
    storage = RaftStorage(folder, IDENTITY)
    store(storage, Append(1, 1, tuple(entry(number) for number in range(1, 6))), Truncate(2, 2))
    storage, recovered = reopened(folder, storage)
    assert recovered.last_index == 2
    store(storage, Append(3, 3, (entry(33, 2),)))
    storage, recovered = reopened(folder, storage)
    assert read(storage, 1, 9) == [entry(1), entry(2), entry(33, 2)]
    storage.close()


def test_reads_cross_records_and_segments_and_stop_at_the_size_asked_for(folder: Folder) -> None:
    storage = RaftStorage(folder, IDENTITY, segment_bytes=100_000)
    entries = [entry(number, size=3000) for number in range(1, 101)]
    store(storage, Append(1, 1, tuple(entries[:70])))
    store(storage, Append(2, 71, tuple(entries[70:])))
    assert len(storage.log_folder.names()) > 2
    assert read(storage, 1, 100) == entries
    assert read(storage, 50, 60) == entries[49:60]
    assert read(storage, 10, 100, bytes_max=10_000) == entries[9:12]
    assert read(storage, 10, 100, bytes_max=1) == entries[9:10]
    assert read(storage, 101, 200) == []
    storage.close()


def test_entries_are_readable_before_they_are_durable(folder: Folder) -> None:
    storage = RaftStorage(folder, IDENTITY)
    storage.execute([Append(1, 1, (entry(1), entry(2)))])
    assert read(storage, 1, 2) == [entry(1), entry(2)]
    storage.close()


def test_every_segment_says_again_what_a_dropped_one_said(folder: Folder) -> None:
    storage = RaftStorage(folder, IDENTITY, segment_bytes=4000)
    store(storage, HardState(1, 9, "2", 4), Note(2, "kind 2", "ours"))
    storage.store_token(Token(1, 2))
    flush(storage)
    for number in range(1, 6):
        store(storage, Append(number, number, (entry(number, size=2000),)))
    storage.close()
    log_folder = folder.folder("log")
    *leading, _ = log_folder.names()
    assert leading
    for name in leading:
        log_folder.remove(name)
    said: list[tuple[int, bytes]] = []

    def visit(record: Record) -> None:
        said.append((record.kind, bytes(record.payload)))

    store_id = bytes.fromhex(json.loads(content(folder, "store.json"))["store_id"])
    log, _ = Log.open(log_folder, store_id, visit, list, list)
    log.close()
    assert said[:3] == [
        (RecordType.HARD, records.encode_hard(9, "2", 4)),
        (RecordType.TOKEN, records.encode_token(Token(1, 2))),
        (RecordType.NOTE, records.encode_note("kind 2", "ours")),
    ]


def content(folder: Folder, name: str) -> bytes:
    file = folder.open(name)
    try:
        return file.read(0, file.size)
    finally:
        file.close()


def test_one_process_at_a_time(folder: Folder) -> None:
    storage = RaftStorage(folder, IDENTITY)
    with pytest.raises(StoreLocked, match="in use"):
        RaftStorage(folder, IDENTITY)
    storage.close()
    RaftStorage(folder, IDENTITY).close()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Identity("2", "Broadcast"), ["'1'", "'2'", "peer"]),
        (Identity("1", "KeyValue"), ["'Broadcast'", "'KeyValue'", "machine"]),
        (Identity("1", "Broadcast", "c2"), ["'c1'", "'c2'", "cluster_id"]),
    ],
)
def test_a_foreign_store_is_refused_with_both_values(folder: Folder, other: Identity, words: Sequence[str]) -> None:
    RaftStorage(folder, Identity("1", "Broadcast", "c1")).close()
    with pytest.raises(ForeignStore) as refused:
        RaftStorage(folder, other)
    assert all(word in str(refused.value) for word in words)
    # Being refused must not leave the folder locked.
    RaftStorage(folder, Identity("1", "Broadcast", "c1")).close()


def test_a_creation_that_was_interrupted_is_repeated(folder: Folder) -> None:
    RaftStorage(folder, IDENTITY).close()
    folder.remove("store.json")
    storage = RaftStorage(folder, IDENTITY)
    assert storage.take_recovered() == Recovered()
    storage.close()


def test_a_log_without_its_identity_is_refused_and_kept(folder: Folder) -> None:
    storage = RaftStorage(folder, IDENTITY)
    store(storage, *(Append(number, number, (entry(number, size=100),)) for number in range(1, 5)))
    storage.close()
    folder.remove("store.json")
    before = content(folder.folder("log"), folder.folder("log").names()[0])
    with pytest.raises(StoreError, match=r"store\.json"):
        RaftStorage(folder, IDENTITY)
    assert content(folder.folder("log"), folder.folder("log").names()[0]) == before


def test_damage_below_the_mark_makes_the_peer_recovering_for_good(folder: Folder) -> None:
    storage = RaftStorage(folder, IDENTITY)
    store(storage, HardState(1, 5, "1", 0), Append(2, 1, (entry(1), entry(2))))
    store(storage, Append(3, 3, (entry(3),)))
    storage.mark(sync=True)
    flush(storage)
    name = segment(storage)
    storage.close()

    def change(data: bytearray) -> None:
        data[data.rindex(b"3-")] ^= 1

    damage(folder.folder("log"), name, change)
    storage = RaftStorage(folder, IDENTITY)
    recovered = storage.take_recovered()
    assert recovered.corrupt
    assert (recovered.term, recovered.vote_floor, recovered.last_index) == (5, RECOVERING_FLOOR, 2)
    assert read(storage, 1, 9) == [entry(1), entry(2)]
    assert len(storage.set_aside) == 1
    # Killed before the core could store anything: the next start must know all the same.
    storage, recovered = reopened(folder, storage)
    assert (recovered.vote_floor, recovered.last_index) == (RECOVERING_FLOOR, 2)
    store(storage, Append(1, 3, (entry(3),)), HardState(2, 6, "", 5))
    storage, recovered = reopened(folder, storage)
    assert (recovered.vote_floor, recovered.last_index) == (5, 3)
    storage.close()


MUTATIONS = (
    (MemoryFolder, "create"),
    (MemoryFolder, "link"),
    (MemoryFolder, "rename"),
    (MemoryFolder, "remove"),
    (MemoryFolder, "sync"),
    (MemoryFile, "append"),
    (MemoryFile, "sync"),
    (MemoryFile, "truncate"),
)


class PowerCut(Exception):
    """Ends a program between two operations on its disk."""


def cut_power_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the ``step``-th change of the disk from now on, and whatever follows, not happen."""
    count = 0

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count >= step:
                raise PowerCut
            return original(*arguments)

        return wrapper

    for owner, name in MUTATIONS:
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))


def interrupted_openings(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch, seed: int) -> Iterator[MemoryDisk]:
    """Open the store with a power cut at every step of the opening; yield each disk as it is after the cut."""
    for step in itertools.count(1):
        again = copy.deepcopy(disk)
        with monkeypatch.context() as patch:
            cut_power_at(patch, step)
            try:
                RaftStorage(again.folder("data"), IDENTITY).close()
            except PowerCut:
                pass
            else:
                return
        again.crash(random.Random(seed))
        yield again


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_while_damage_is_set_aside_does_not_hide_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    storage = RaftStorage(disk.folder("data"), IDENTITY, segment_bytes=2000)
    for number in range(1, 12):
        store(storage, Append(number, number, (entry(number, size=500),)))
    storage.mark(sync=True)
    flush(storage)
    names = storage.log_folder.names()
    storage.close()
    disk.flip_bit("data/log", names[len(names) // 2], 300)
    steps = 0
    for again in interrupted_openings(disk, monkeypatch, seed):
        steps += 1
        storage = RaftStorage(again.folder("data"), IDENTITY)
        recovered = storage.take_recovered()
        assert recovered.vote_floor == RECOVERING_FLOOR
        assert 0 < recovered.last_index < 11
        assert read(storage, 1, 11) == [entry(number, size=500) for number in range(1, recovered.last_index + 1)]
        storage.close()
    assert steps > 5


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_while_a_torn_tail_is_dropped_does_no_harm(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    storage = RaftStorage(disk.folder("data"), IDENTITY, segment_bytes=2000)
    store(storage, *(Append(number, number, (entry(number, size=500),)) for number in range(1, 4)))
    store(storage, *(Append(number, number, (entry(number, size=500),)) for number in range(4, 12)))
    names = storage.log_folder.names()
    storage.close()
    # The last segment lost its first record: what follows was never reported as durable and is worth nothing.
    disk.flip_bit("data/log", names[-1], 100)
    for again in interrupted_openings(disk, monkeypatch, seed):
        storage = RaftStorage(again.folder("data"), IDENTITY)
        recovered = storage.take_recovered()
        assert not recovered.corrupt
        assert recovered.vote_floor == 0
        assert recovered.last_index >= 3
        assert read(storage, 1, 11) == [entry(number, size=500) for number in range(1, recovered.last_index + 1)]
        storage.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_while_a_store_is_made_leaves_one_that_can_be_made(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    for again in interrupted_openings(MemoryDisk(), monkeypatch, seed):
        steps += 1
        storage = RaftStorage(again.folder("data"), IDENTITY)
        assert storage.take_recovered() == Recovered()
        storage.close()
    assert steps > 5


def test_a_missing_first_segment_is_damage(folder: Folder) -> None:
    storage = RaftStorage(folder, IDENTITY, segment_bytes=4000)
    for number in range(1, 8):
        store(storage, Append(number, number, (entry(number, size=2000),)))
    first = storage.log_folder.names()[0]
    storage.close()
    folder.folder("log").remove(first)
    storage = RaftStorage(folder, IDENTITY)
    recovered = storage.take_recovered()
    assert (recovered.corrupt, recovered.vote_floor, recovered.last_index) == (True, RECOVERING_FLOOR, 0)
    store(storage, Append(1, 1, (entry(1, 2),)))
    storage, recovered = reopened(folder, storage)
    assert (recovered.corrupt, recovered.vote_floor, recovered.last_index) == (False, RECOVERING_FLOOR, 1)
    assert read(storage, 1, 9) == [entry(1, 2)]
    storage.close()


def test_a_last_batch_torn_at_any_byte_leaves_term_vote_and_entries_as_reported(folder: Folder) -> None:
    storage = RaftStorage(folder, IDENTITY)
    store(storage, HardState(1, 5, "1", 0), Append(2, 1, (entry(1), entry(2))))
    name = segment(storage)
    durable = len(content(storage.log_folder, name))
    store(storage, HardState(3, 6, "2", 0), Append(4, 3, (entry(3, 6),)))
    whole = content(storage.log_folder, name)
    storage.close()
    for cut in range(durable, len(whole)):

        def change(data: bytearray, cut: int = cut) -> None:
            data[:] = whole[:cut]

        damage(folder.folder("log"), name, change)
        storage = RaftStorage(folder, IDENTITY)
        recovered = storage.take_recovered()
        assert (recovered.corrupt, recovered.last_index) == (False, 2)
        assert (recovered.term, recovered.vote) in {(5, "1"), (6, "2")}
        assert read(storage, 1, 9) == [entry(1), entry(2)]
        storage.close()


def test_a_rotten_entry_is_not_served(folder: Folder) -> None:
    storage = RaftStorage(folder, IDENTITY)
    store(storage, Append(1, 1, (entry(1),)))
    store(storage, Append(2, 2, (entry(2),)))

    def change(data: bytearray) -> None:
        data[data.rindex(b"2-")] ^= 1

    damage(storage.log_folder, segment(storage), change)
    assert read(storage, 1, 1) == [entry(1)]
    with pytest.raises(CorruptEntry) as refused:
        storage.read(1, 2, 1 << 20)
    assert refused.value.index == 2
    storage.close()


def test_a_record_of_a_newer_version_stops_the_start(folder: Folder) -> None:
    storage = RaftStorage(folder, IDENTITY)
    storage.close()
    store_id = bytes.fromhex(json.loads(content(folder, "store.json"))["store_id"])
    log, _ = Log.open(folder.folder("log"), store_id, lambda _: None, list, list)
    log.append(99, [b"future"])
    appender = Appender(folder.folder("log"))
    batch = log.take()
    assert batch is not None
    appender.execute([batch])
    appender.close()
    log.close()
    with pytest.raises(StoreError, match="type 99"):
        RaftStorage(folder, IDENTITY)


@pytest.mark.parametrize("seed", range(40))
def test_after_a_power_cut_the_store_stands_at_or_behind_what_was_reported_durable(seed: int) -> None:
    """A random history in several lives: what comes back is the state behind some command, none of the lost durable."""
    rng = random.Random(seed)
    disk = MemoryDisk()
    folder = disk.folder("data")
    states: list[tuple[int, list[bytes]]] = [(0, [])]  # (term, entries) behind each command since the last durable one
    ticket = 0
    for _ in range(5):
        storage = RaftStorage(folder, IDENTITY, segment_bytes=rng.choice((300, 2000, 1 << 20)))
        recovered = storage.take_recovered()
        found = (recovered.term, read(storage, 1, recovered.last_index))
        assert not recovered.corrupt
        assert found in states
        states = [found]
        appender = Appender(storage.log_folder)
        for _ in range(rng.randrange(15)):
            ticket += 1
            command = random_command(rng, ticket, storage, states[-1][0])
            storage.execute([command])
            states.append(expected_behind(command, *states[-1]))
            batch = storage.take() if rng.random() < 0.6 else None
            if batch is not None:
                appender.execute([batch])
                assert storage.completed([batch]) == ticket
                states = states[-1:] if batch.sync else states
        appender.close()
        storage.close()
        disk.crash(rng)


def expected_behind(command: StoreCommand, term: int, entries: list[bytes]) -> tuple[int, list[bytes]]:
    match command:
        case HardState(_, term):
            return term, entries
        case Truncate(_, after):
            return term, entries[:after]
        case Append(_, first, added):
            return term, entries[: first - 1] + list(added)
    return term, entries


def random_command(rng: random.Random, ticket: int, storage: RaftStorage, term: int) -> StoreCommand:
    match rng.randrange(5):
        case 0:
            return HardState(ticket, term + rng.randrange(2), rng.choice(("", "1", "2")), 0)
        case 1:
            return Truncate(ticket, rng.randint(0, storage.last_index))
        case 2:
            return Note(ticket, "commit", rng.randint(0, 9))
        case _:
            first = rng.randint(1, storage.last_index + 1)
            added = tuple(entry(ticket * 10 + number, term, rng.randint(8, 200)) for number in range(3))
            return Append(ticket, first, added)
