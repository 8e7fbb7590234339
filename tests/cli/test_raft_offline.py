"""`pavane raft dump|verify|import-js|export-js|repair|recover` as a user sees them (docs/specs/raft.md 17)."""

from pathlib import Path

import pytest

from pavane.raft.machines.commands import Put, Txn, encode_command
from pavane.raft.machines.keyvalue import KeyValue
from pavane.raft.offline.store import StoredLog
from pavane.raft.offline.writing import StoreWriter
from pavane.raft.state.commands import RECOVERING_FLOOR, Append, HardState
from pavane.raft.storage import Identity
from pavane.raft.wire.entry import EntryType, encode_entry
from pavane_cli.backups import PROGRESS_S, Meter
from pavane_cli.commands.raft_offline import compact, dump, export_js, import_js, recover, repair, verify
from pavane_cli.failures import ExitCode, UserError
from tests.services.raft.test_offline import IDENTITY, change, entry, store
from tests.services.raft.test_offline_js import left_behind

Captured = pytest.CaptureFixture[str]


def lines(capsys: Captured) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_log_in_hexadecimal_is_the_same_in_both_programs_folders(tmp_path: Path, capsys: Captured) -> None:
    js, ours, back = tmp_path / "js", tmp_path / "ours", tmp_path / "back"
    import_js(left_behind("members_changed", js), ours, "1")
    export_js(ours, back)
    assert "entries 1 to 7" in capsys.readouterr().out
    dumps = []
    for folder in (js, ours, back):
        dump(folder, as_hex=True)
        dumps.append(lines(capsys))
    assert dumps[0] == dumps[1] == dumps[2]
    assert dumps[0][0] == "1 6b0228b128c448025c954e74" + "00" + "01000000000000" + "61"
    assert len(dumps[0]) == 7


def test_entries_are_shown_as_text(tmp_path: Path, capsys: Captured) -> None:
    dump(left_behind("members_changed", tmp_path), after=3)
    shown = lines(capsys)
    one, two = "1=tcp://127.0.0.1:18141", "2=tcp://127.0.0.1:18142"
    assert shown[0] == f"4  1  Config  6b0228b128c448025c954e77  {one} to {one},{two}"
    assert shown[2:] == [
        r"6  1  State  6b0228b128c448025c954e78  \x00\xff",
        "7  1  State  6b0228b128c448025c954e79  last",
    ]


def test_a_store_of_keys_is_shown_in_words_and_is_nothing_for_zmq_raft(tmp_path: Path, capsys: Captured) -> None:
    command = encode_command(Txn((), (Put(b"colour", b"red"),), ()))
    with StoreWriter(tmp_path / "1", Identity("1", KeyValue.name, "c")) as writer:
        stored = encode_entry(bytes(12), EntryType.STATE, 1, command)
        writer.execute([Append(0, 1, (stored,)), HardState(0, 1, "")])
    dump(tmp_path / "1")
    assert lines(capsys) == [f"1  1  State  {'0' * 24}  put colour=red"]
    with pytest.raises(UserError, match="machine KeyValue: a peer of zmq-raft keeps a plain log"):
        export_js(tmp_path / "1", tmp_path / "js")
    assert not (tmp_path / "js").exists()
    with pytest.raises(UserError, match="nothing to compact, for no entry behind 0 is known to be committed"):
        compact(tmp_path / "1")


def test_only_the_configuration_that_counts_is_shown(tmp_path: Path, capsys: Captured) -> None:
    import_js(left_behind("members_changed", tmp_path / "js"), tmp_path / "1", "1")
    verify(str(tmp_path / "1"), all_configurations=True)
    every = [line for line in lines(capsys) if ": members " in line]
    verify(str(tmp_path / "1"))
    assert [line for line in lines(capsys) if ": members " in line] == every[-1:]
    assert len(every) > 1


def test_a_good_store_verifies(tmp_path: Path, capsys: Captured) -> None:
    verify(str(store(tmp_path / "1")))
    shown = lines(capsys)
    assert shown[0] == "store of peer 1 of cluster c, machine Broadcast"
    assert "entries 1 to 5, term 1, known committed 4" in shown
    assert shown[-1] == "good"


def test_a_new_store_verifies(tmp_path: Path, capsys: Captured) -> None:
    StoreWriter(tmp_path / "1", IDENTITY).storage.close()
    verify(str(tmp_path / "1"))
    assert "no entries behind 0, term 0, known committed 0" in lines(capsys)


def test_a_damaged_store_does_not(tmp_path: Path, capsys: Captured) -> None:
    path = store(tmp_path / "1")
    with StoreWriter(path, IDENTITY) as writer:
        writer.execute([Append(0, 6, (entry(b"six"),))])
        writer.execute([Append(0, 7, (entry(b"seven"),))])

    def flip(data: bytearray) -> None:
        data[data.index(b"six")] ^= 1

    change(path, flip)
    with pytest.raises(UserError, match="damaged at offset") as refused:
        verify(str(path))
    assert refused.value.code == ExitCode.ERROR
    with pytest.raises(UserError, match="damaged at offset") as refused:
        dump(path)
    assert refused.value.code == ExitCode.ERROR
    assert "good" not in lines(capsys)

    with StoreWriter(path, IDENTITY):
        pass  # as the next start of the peer: it sets aside what is damaged
    [aside] = (path / "log").glob("*.corrupt*")
    (path / "snap" / "000000000000002a-0000000000000001.pvs.bad").write_bytes(bytes(1234))
    verify(str(path))
    told = [line.partition("start: ")[2] for line in lines(capsys) if line.startswith("set aside")]
    assert told == [
        f"log/{aside.name}, {aside.stat().st_size:,} bytes",
        "snap/000000000000002a-0000000000000001.pvs.bad, 1,234 bytes",
    ]


def test_a_configuration_that_is_none_is_shown_all_the_same(tmp_path: Path, capsys: Captured) -> None:
    path = store(tmp_path / "1", Append(0, 6, (encode_entry(bytes(12), EntryType.CONFIG, 1, b"\xc0"),)))
    dump(path, after=5)
    assert lines(capsys) == [f"6  1  Config  {bytes(12).hex()}  \\xc0"]
    with pytest.raises(UserError, match="entry 6"):
        verify(str(path))


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    path = store(tmp_path / "1")
    with StoreWriter(path, IDENTITY), pytest.raises(UserError, match="in use") as refused:
        verify(str(path))
    assert refused.value.code == ExitCode.REFUSED


def test_a_folder_of_something_else_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither") as refused:
        dump(tmp_path)
    assert refused.value.code == ExitCode.NOT_FOUND


def test_a_repair_is_told_first_and_done_with_yes(tmp_path: Path, capsys: Captured) -> None:
    path = store(tmp_path / "1")
    with pytest.raises(UserError, match="--yes"):
        repair(path, 2)
    assert lines(capsys) == [
        "drops: entries 3 to 5",
        "of these, entries up to 4 are committed: they must be on other members",
    ]
    with StoredLog(path) as stored:
        assert stored.recovered.last_index == 5
    repair(path, 2, yes=True)
    with StoredLog(path) as stored:
        assert (stored.recovered.last_index, stored.recovered.vote_floor) == (2, RECOVERING_FLOOR)


def test_a_recovery_says_what_may_be_lost_and_is_done_with_yes(tmp_path: Path, capsys: Captured) -> None:
    path = store(tmp_path / "1")
    with pytest.raises(UserError, match="--yes"):
        recover(path, "1=tcp://127.0.0.1:9")
    told = "\n".join(lines(capsys))
    for words in ("2=tcp://127.0.0.1:18142", "entries 1 to 5, known committed 4", "above 5", "never acknowledged"):
        assert words in told
    recover(path, "1=tcp://127.0.0.1:9", yes=True)
    with StoredLog(path) as stored:
        assert stored.recovered.last_index == 6


def test_members_must_be_pairs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--members: .* must be ID=URL"):
        recover(store(tmp_path / "1"), "tcp://127.0.0.1:9")


def test_long_work_says_how_far_it_is(capsys: Captured) -> None:
    times = iter((0.0, PROGRESS_S / 2, PROGRESS_S, PROGRESS_S + 0.1))
    meter = Meter("reading", lambda: next(times))
    for done in (10, 250, 251):
        meter(done, 1000)
    assert capsys.readouterr().err == "reading: 250 of 1,000 bytes (25 %)\n"
