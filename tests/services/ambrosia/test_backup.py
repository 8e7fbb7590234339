"""A copy of an instance that runs, and the instance that goes on from it (docs/specs/ambrosia.md 12.5)."""

import random
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from pavane.ambrosia.backup import KIND, BackupError, back_up, decode, place_of, restore, verify
from pavane.ambrosia.errors import FatalError
from pavane.ambrosia.storage import LogReader, Registry
from pavane.ambrosia.tenure import FENCE, read_fence
from pavane.runtime.backups import NAME, Manifest
from pavane.wal.files import DiskFolder, replace_file
from tests.services.ambrosia.model import Model, Node
from tests.services.ambrosia.unit import Unit, wait
from tests.services.memory_disk import MemoryDisk, MemoryFolder

STEPS = 3000


def written(folder: MemoryFolder, path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name in folder.names():
        (path / name).write_bytes(bytes(folder.content(name).data))


def backup_of(node: Node, path: Path) -> Path:
    """Back up a node of a model as it stands, and return the folder of the backup."""
    for name in (node.name, "registry"):
        written(node.disk.folder(name), path / "source" / name)
    back_up(path / "source" / node.name, path / "source" / "registry", node.name, path / "backup")
    return path / "backup"


def restored(node: Node, backup: Path, path: Path) -> None:
    """Take the node's disk away and let it go on from a backup."""
    if node.up:
        node.crash()
    restore(backup, path)
    node.disk = MemoryDisk()
    for name, folder in ((node.name, path / f"{node.name}_0"), ("registry", path / "registry")):
        for file in sorted(folder.iterdir()):
            made = node.disk.folder(name).create(file.name)
            made.append([file.read_bytes()])
            made.sync()
        node.disk.folder(name).sync()
    node.start()


def quiet(model: Model, steps: int, until: Callable[[], bool] = lambda: False) -> None:
    for _ in range(steps):
        if until() or not model.step():
            return


@pytest.mark.parametrize("seed", range(12))
def test_a_call_that_was_lost_never_has_its_number_given_to_another(seed: int, tmp_path: Path) -> None:
    model = Model(seed)
    model.chaos(600)
    model.settle()
    a, b = model.nodes["a"], model.nodes["b"]
    backup = backup_of(a, tmp_path)
    lost = seed % 2 == 0
    if lost:
        for _ in range(3):
            a.app.impulse("b", 0)
        model.settle()
    a.crash()
    taken = b.app.state["taken"].get("a", 0)
    restored(a, backup, tmp_path / "log")
    quiet(model, STEPS, lambda: a.core.live)
    assert a.core.live
    made = a.app.state["sent"].get("b", 0)
    assert (taken > made) == lost
    for life in range(3):  # the longer it goes on, the more new calls have the numbers of lost ones
        for _ in range(4):
            a.app.impulse("b", 0)
            quiet(model, 200)
        if life == 1:
            a.crash()
            quiet(model, STEPS, lambda: a.up and a.core.live)
    assert a.app.state["sent"]["b"] > taken
    if lost:
        assert b.app.state["taken"]["a"] == taken, "a call was taken for one that is lost"
        assert any("restored from a backup" in text for text in a.said)
        assert len(a.core.links.outputs["b"]) >= a.app.state["sent"]["b"] - made, "and none is gone"
    else:
        model.settle()
        assert b.app.state["taken"]["a"] == a.app.state["sent"]["b"]


@pytest.fixture
def alice(tmp_path: Path) -> Unit:
    """An immortal that has handled something, and has stopped; its peer never came."""
    unit = Unit(tmp_path, "alice", "bob")
    with closing(unit):
        unit.start()
        wait(lambda: unit.state()["handled"] > 30, "it handles calls")
    return unit


def copied(unit: Unit, name: str = "backup") -> Path:
    source, registry = place_of(unit.folder / "logs", unit.name)
    back_up(source, registry, unit.name, unit.folder / name)
    return unit.folder / name


def test_an_immortal_that_runs_is_copied_and_goes_on_elsewhere_as_it_was(tmp_path: Path) -> None:
    with closing(Unit(tmp_path, "alice", "bob")) as unit:
        unit.start()
        wait(lambda: unit.state()["handled"] > 30, "it handles calls")
        seen = unit.state()["handled"]
        found = verify(copied(unit))
        go_on = seen + 20
        wait(lambda: unit.state()["handled"] > go_on, "it goes on meanwhile")
    (tmp_path / "new").mkdir()
    restore(tmp_path / "backup", tmp_path / "new" / "logs")
    again = Unit(tmp_path / "new", "alice", "bob")
    state = again.replayed(1).state
    assert seen <= state["handled"] <= go_on, "all that it had handled, and no more than until the copy was made"
    assert found.instance == "alice"
    with closing(again):
        again.start()
        wait(lambda: again.state()["handled"] > state["handled"] + 10, "it goes on from there")


def test_a_backup_that_is_cut_or_changed_anywhere_is_refused(alice: Unit, tmp_path: Path) -> None:
    backup = copied(alice)
    good, rng = verify(backup), random.Random(7)
    files = {path: path.read_bytes() for path in backup.iterdir()}
    assert len(files) > 2
    for path, data in files.items():
        for at in {0, len(data) - 1, *(rng.randrange(len(data)) for _ in range(20))}:
            flipped = bytearray(data)
            flipped[at] ^= 1 << rng.randrange(8)
            for damaged in (bytes(flipped), data[:at], data + b"x" * (path.name != NAME)):
                if damaged == data or (path.name == NAME and damaged.rstrip() == data.rstrip()):
                    continue  # the end of the line behind the manifest states nothing
                path.write_bytes(damaged)
                with pytest.raises(BackupError):
                    restore(backup, tmp_path / "never")
        path.unlink()
        with pytest.raises(BackupError):
            restore(backup, tmp_path / "never")
        path.write_bytes(data)
    assert not (tmp_path / "never").exists()
    assert verify(backup) == good


def test_nothing_is_replaced_and_no_name_is_changed(alice: Unit, tmp_path: Path) -> None:
    backup = copied(alice)
    with pytest.raises(BackupError, match="is not empty"):
        copied(alice)
    with pytest.raises(BackupError, match="cannot go on as carol"):
        restore(backup, tmp_path / "new", "carol")
    with pytest.raises(BackupError, match="is there already"):
        restore(backup, tmp_path / "logs")
    fenced = tmp_path / "logs" / "alice_0" / "serverkillFile"
    with closing(alice):
        alice.start()
        wait(lambda: alice.state()["handled"] > 0, "it leads")
        with pytest.raises(BackupError, match="is in use"):
            restore(backup, tmp_path / "logs", replace_files=True)
    fenced.write_text("7")
    restore(backup, tmp_path / "logs", replace_files=True)
    assert fenced.read_text() == "7", "no lower generation writes again"
    assert len([*(tmp_path / "logs").glob("replaced-alice-*")]) == 1
    shutil.rmtree(tmp_path / "logs" / "alice_0")
    with pytest.raises(BackupError, match=r"alice\.json is there already"):
        restore(backup, tmp_path / "logs")


def test_what_was_being_written_is_left_out(alice: Unit) -> None:
    good = verify(copied(alice))
    folder = alice.folder / "logs" / "alice_0"
    last = folder / f"serverlog{Registry(DiskFolder(alice.folder / 'logs' / 'registry')).load('alice').meta.last_log}"
    whole = last.read_bytes()
    last.write_bytes(whole + whole[:40])
    torn = copied(alice, "torn")
    assert verify(torn).digest == good.digest
    assert (torn / last.name).read_bytes() == whole


def test_what_is_damaged_is_not_copied(alice: Unit) -> None:
    source, registry = place_of(alice.folder / "logs", "alice")
    while True:
        meta = Registry(DiskFolder(registry)).load("alice").meta
        with closing(LogReader(DiskFolder(source), meta.last_log)) as reader:
            ends = [reader.offset for _ in range(2) if reader.read() is not None]
        if len(ends) == 2:
            break
        enough = alice.state()["handled"] + 30  # a new log had just begun, and nothing follows what would be damaged
        with closing(alice):
            alice.start()
            wait(lambda enough=enough: alice.state()["handled"] > enough, "it goes on")  # type: ignore[misc]
    last = source / f"serverlog{meta.last_log}"
    damaged = bytearray(last.read_bytes())
    damaged[ends[0] - 1] ^= 1
    last.write_bytes(bytes(damaged))
    with pytest.raises(BackupError, match="a whole record follows"):
        copied(alice, "damaged")
    assert not (alice.folder / "damaged" / NAME).exists()


def test_a_copy_that_met_a_take_over_is_made_again(alice: Unit) -> None:
    source, registry = place_of(alice.folder / "logs", "alice")
    last = max(path for path in source.iterdir() if path.name.startswith("serverlog"))

    def overtake(done: int, total: int) -> None:
        if done + last.stat().st_size == total:  # its turn has come
            (source / f"{last.name}.end").write_text(str(last.stat().st_size - 1))

    with pytest.raises(BackupError, match="was taken over meanwhile"):
        back_up(source, registry, "alice", alice.folder / "backup", overtake)
    assert not (alice.folder / "backup" / NAME).exists()
    (source / f"{last.name}.end").unlink()
    verify(copied(alice, "again"))


def test_an_instance_is_upgraded_only_once_it_has_counted_what_its_backup_leads_to() -> None:
    model = Model(1, ("a",))
    model.settle()
    node = model.nodes["a"]
    core = node.core
    core.meta = type(core.meta)(last_log=core.meta.last_log, last_checkpoint=1, restored=1)
    core.settings = type(core.settings)("a", version=2)
    with pytest.raises(FatalError, match="start version 0 first"):
        core.replayed()


def test_a_manifest_whose_name_leads_out_of_the_folder_restores_nothing(tmp_path: Path) -> None:
    for about in ({"instance": "../../x"}, {"instance": "/etc/x"}, {"instance": ""}, {"checkpoint": "1"}, {"log": -1}):
        folder = tmp_path / "backup"
        folder.mkdir(exist_ok=True)
        whole = {"instance": "x", "app_version": 0, "checkpoint": 1, "log": 1, "connections": [], "next_seq": 1}
        (folder / NAME).write_bytes(Manifest(KIND, {**whole, "digest": "", **about}, {}).encode())
        with pytest.raises(BackupError, match="is damaged"):
            restore(folder, tmp_path / "logs" / "deep")
    assert [path.name for path in tmp_path.iterdir()] == ["backup"]


def test_a_restore_that_was_interrupted_keeps_the_fence_and_each_one_gives_a_greater_token(
    alice: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, rename = tmp_path / "logs", Path.rename
    backup, registry = copied(alice), Registry(DiskFolder(logs / "registry"))
    replace_file(DiskFolder(logs / "alice_0"), FENCE, b"3")

    def killed(path: Path, target: Path) -> Path:
        if path.name == "restoring-alice":
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            restore(backup, logs, replace_files=True)
    assert not (logs / "alice_0").exists()
    tokens = []
    for _ in range(3):
        restore(backup, logs, replace_files=True)
        assert read_fence(DiskFolder(logs / "alice_0")) == 3
        tokens.append(registry.load("alice").meta.restored)
    assert tokens == sorted(set(tokens))


def test_a_manifest_that_says_nothing_that_can_be_used_is_damaged() -> None:
    """Whatever is in it: it is told, and no list of others ends because of it."""
    whole = {
        "instance": "x",
        "app_version": 0,
        "checkpoint": 1,
        "log": 1,
        "connections": [],
        "next_seq": 1,
        "digest": "",
    }
    decode(Manifest(KIND, whole, {}).encode())
    for key in whole:
        for value in (None, [], {}, 1.5, "", -1, True, [1], {"a": 1}):
            about = {**whole, key: value}
            with suppress(BackupError):
                kept = decode(Manifest(KIND, about, {}).encode()).about
                assert isinstance(kept["instance"], str)
                assert kept["instance"]
                assert kept["next_seq"] - 1 >= -1
        with pytest.raises(BackupError, match="is damaged"):
            decode(Manifest(KIND, {name: value for name, value in whole.items() if name != key}, {}).encode())
    absent: tuple[object, ...] = ([], None, "x", 1)
    for nothing in absent:
        with pytest.raises(BackupError, match="is damaged"):
            decode(Manifest(KIND, cast("dict[str, Any]", nothing), {}).encode())
