"""Addresses, hosts files, logs and volumes of the process kubelet (docs/specs/operator.md 6.8)."""

import asyncio
import contextlib
import datetime
import errno
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pavane_local.kubelet import addresses, logs, volumes
from pavane_local.kubelet.addresses import AddressBlock, AddressesExhausted, AddressesTaken
from pavane_local.kubelet.kubelet import hosts_text
from pavane_local.kubelet.logs import LogOptions, RunLog
from pavane_local.kubelet.pod import KubeletSettings
from pavane_local.kubelet.spawn import CannotStart, expand, signal_container
from tests.services.disks import no_file_beyond


@pytest.fixture
def folder_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Folders of clusters; the cache of this user is the test's own, and so are the addresses."""
    monkeypatch.setattr(addresses, "RANGE", ipaddress.IPv4Network("127.192.0.0/10"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(addresses, "PATIENCE_SECONDS", 0.1)

    def folder_of(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        return folder

    return folder_of


def block_of(folder: Path, former: str | None = None) -> ipaddress.IPv4Network:
    """The block of a cluster that starts and ends."""
    with contextlib.closing(AddressBlock.claim(folder, former)) as block:
        return block.network


Folders = Callable[[str], Path]


def test_a_block_belongs_to_a_folder_for_good(folder_of: Folders) -> None:
    """A cluster that stands still leaves its addresses to nobody: clients that know them would meet a stranger."""
    own = block_of(folder_of("a"))
    assert block_of(folder_of("b"), str(own[7])) != own, "also who had it once gets another one"
    assert block_of(folder_of("a"), "127.64.0.1") == own
    with contextlib.closing(AddressBlock.claim(folder_of("c"), str(own[7]))) as other:
        assert not other.network.overlaps(own)


def test_a_block_that_somebody_else_has_is_an_error_and_never_another_one(folder_of: Folders) -> None:
    own = block_of(folder_of("a"))
    with socket.socket() as stranger:
        stranger.bind((str(own[0]), addresses.CLAIM_PORT))
        stranger.listen(1)
        with pytest.raises(AddressesTaken, match=rf"{own}, are taken by another program: .* remove .*a/addresses"):
            AddressBlock.claim(folder_of("a"))
    assert block_of(folder_of("a")) == own


def test_a_claim_of_a_process_that_just_ends_is_waited_for(folder_of: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    own = block_of(folder_of("a"))
    killed = socket.socket()
    killed.bind((str(own[0]), addresses.CLAIM_PORT))
    killed.listen(1)
    monkeypatch.setattr(addresses, "PATIENCE_SECONDS", 60)
    monkeypatch.setattr(time, "sleep", lambda _: killed.close())
    assert block_of(folder_of("a")) == own


def test_a_copy_of_a_folder_has_no_right_to_its_addresses_and_a_folder_that_moved_keeps_them(
    folder_of: Folders,
) -> None:
    own = block_of(folder_of("a"))
    shutil.copytree(folder_of("a"), folder_of("a").with_name("copy"))
    with pytest.raises(AddressesTaken, match=r"taken by the local cluster of .*/a: "):
        AddressBlock.claim(folder_of("copy"))
    (folder_of("copy") / "addresses").unlink()
    assert block_of(folder_of("copy")) != own
    folder_of("a").rename(folder_of("a").with_name("moved"))
    assert block_of(folder_of("moved")) == own


def test_a_block_of_a_folder_that_is_gone_is_free_and_a_lost_cache_costs_nobody_his_own(
    folder_of: Folders, tmp_path: Path
) -> None:
    own, kept = block_of(folder_of("a")), block_of(folder_of("kept"))
    shutil.rmtree(folder_of("a"))
    assert block_of(folder_of("b"), str(own[7])) == own
    for lost in ("", "[1]", '{"a'):
        (tmp_path / "cache/pavane/addresses.json").write_text(lost)
        assert block_of(folder_of("kept")) == kept
        assert block_of(folder_of(f"new{len(lost)}"), str(kept[7])) != kept


def test_when_all_blocks_belong_to_folders_the_one_that_was_started_longest_ago_loses_its_own(
    folder_of: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "RANGE", ipaddress.IPv4Network("127.128.0.0/18"))
    blocks = {name: block_of(folder_of(name)) for name in "abcd"}
    assert len(set(blocks.values())) == 4
    block_of(folder_of("a"))
    assert block_of(folder_of("e")) == blocks["b"]
    with pytest.raises(AddressesTaken, match=r"taken by the local cluster of .*/e: "):
        AddressBlock.claim(folder_of("b"))
    with contextlib.ExitStack() as running:
        for name in "acde":
            running.enter_context(contextlib.closing(AddressBlock.claim(folder_of(name))))
        with pytest.raises(AddressesExhausted, match="stop a local cluster"):
            AddressBlock.claim(folder_of("f"))


def test_without_a_cache_the_folder_alone_remembers(folder_of: Folders, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    own = block_of(folder_of("a"))
    assert block_of(folder_of("a"), "127.64.0.1") == own


def test_the_address_that_was_unused_for_longest_is_taken() -> None:
    block = AddressBlock(ipaddress.IPv4Network("127.64.0.0/30"), socket.socket())
    with contextlib.closing(block):
        assert [block.take(), block.take()] == ["127.64.0.1", "127.64.0.2"]
        block.release("127.64.0.2")
        block.release("127.64.0.1")
        assert [block.take() for _ in range(3)] == ["127.64.0.3", "127.64.0.2", "127.64.0.1"]
        with pytest.raises(AddressesExhausted):
            block.take()


def test_a_pod_gets_its_former_address_unless_it_is_in_use() -> None:
    block = AddressBlock(ipaddress.IPv4Network("127.64.0.0/29"), socket.socket())
    with contextlib.closing(block):
        assert block.take("127.64.0.5") == "127.64.0.5"
        assert block.take("127.64.0.5") == "127.64.0.1"
        assert block.take("127.99.0.1") == "127.64.0.2"


def test_a_system_with_one_loopback_address_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    class OneAddress(socket.socket):
        def bind(self, address: Any) -> None:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))

    monkeypatch.setattr(socket, "socket", OneAddress)
    with pytest.raises(AddressesExhausted, match=r"127\.0\.0\.0/8 must be loopback"):
        AddressBlock.claim(Path())


def endpoint_slice(namespace: str, service: str, *endpoints: dict[str, Any]) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": service}
    return {"metadata": {"namespace": namespace, "labels": labels}, "endpoints": list(endpoints)}


def test_a_service_has_its_short_name_in_its_own_namespace_only() -> None:
    ready = {"addresses": ["127.64.0.1"], "conditions": {"ready": True}, "hostname": "db-0"}
    waiting = {"addresses": ["127.64.0.2"], "conditions": {"ready": False}}
    slices = [endpoint_slice("default", "db", ready, waiting)]
    address, *names = hosts_text("default", slices).split()
    assert address == "127.64.0.1"
    services = {"db", "db.default", "db.default.svc", "db.default.svc.cluster.local"}
    assert set(names) == services | {f"db-0.{each}" for each in services}
    assert set(hosts_text("other", slices).split()[1:]) == set(names) - {"db", "db-0.db"}


async def read(path: Path, live: RunLog | None = None, **options: Any) -> str:
    return b"".join([piece async for piece in logs.read(path, LogOptions(**options), live)]).decode()


async def test_log_options(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "0.log")
    log.feed(b"one\ntw")
    log.feed(b"o\nthree")
    log.close()
    assert await read(tmp_path / "0.log") == "one\ntwo\nthree\n"
    assert await read(tmp_path / "0.log", tail_lines=2) == "two\nthree\n"
    stamped = await read(tmp_path / "0.log", timestamps=True, tail_lines=1)
    assert datetime.datetime.fromisoformat(stamped.split()[0]).tzinfo is not None
    assert stamped.split()[1] == "three"


async def test_a_follower_sees_every_line_over_rotations_until_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES_MAX", 1000)
    log = RunLog(tmp_path / "0.log")
    following = asyncio.create_task(read(tmp_path / "0.log", log, follow=True))
    for number in range(200):
        log.feed(b"line %d\n" % number)
        await asyncio.sleep(0)
    log.close()
    assert (await following).splitlines() == [f"line {number}" for number in range(200)]
    files = list(tmp_path.iterdir())
    assert len(files) == logs.FILES_MAX
    assert all(file.stat().st_size <= 1000 for file in files)


async def test_a_full_disk_costs_lines_and_says_how_many(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "0.log")
    log.feed(b"before\n")
    with no_file_beyond((tmp_path / "0.log").stat().st_size + 20):
        log.feed(b"x" * 50 + b"\nlost\n")
        log.feed(b"lost too\n")
    log.feed(b"after\n")
    log.close()
    missing = "(3 lines are missing here: the disk had no room for them)"
    assert (await read(tmp_path / "0.log")).splitlines() == ["before", missing, "after"]


async def test_a_line_without_end_is_stored_before_it_fills_the_memory(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "0.log")
    long = b"x" * (3 * logs.LINE_BYTES_MAX + 5)
    for start in range(0, len(long), 1000):
        log.feed(long[start : start + 1000])
    log.feed(b"\nnext\n")
    log.close()
    *pieces, following = (await read(tmp_path / "0.log")).splitlines()
    assert "".join(pieces) == long.decode()
    assert max(map(len, pieces)) <= logs.LINE_BYTES_MAX + 1000
    assert following == "next"


def test_a_process_that_ends_while_it_is_killed_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    monkeypatch.setattr("pavane_local.kubelet.spawn._started", lambda _: "7")  # as it was a moment ago
    assert not signal_container(f"process://{ended.pid}/7", signal.SIGKILL)


def test_a_volume_is_swapped_as_a_whole_with_modes(tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    volumes.publish(folder, {"a": b"1", "b": b"2"}, 0o400)
    before = (folder / "..data").resolve()
    assert (folder / "a").read_bytes() == b"1"
    assert (folder / "b").stat().st_mode & 0o777 == 0o400
    volumes.publish(folder, {"a": b"3"}, 0o644)
    assert (folder / "a").read_bytes() == b"3"
    assert (folder / "a").stat().st_mode & 0o777 == 0o644
    assert not (folder / "b").is_symlink()
    assert not before.exists()
    current = (folder / "..data").resolve()
    volumes.publish(folder, {"a": b"3"}, 0o644)
    assert (folder / "..data").resolve() == current, "an equal content must not be written again"


def test_no_path_leads_out_of_a_volume_or_a_container(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="leaves"):
        volumes.mount(tmp_path / "root", "/../../etc", tmp_path)
    with pytest.raises(CannotStart, match="leaves"):
        volumes.publish(tmp_path / "volume", {"../../outside": b"x"}, 0o644)
    assert not (tmp_path.parent / "outside").exists()
    volumes.mount(tmp_path / "root", "/data", tmp_path)
    (tmp_path / "root/data/file").write_text("x")
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("/data", "ROOT/data"), ("/data/x", "ROOT/data/x"), ("/database", "/database"), ("--to=/data", "--to=/data")],
)
def test_only_texts_that_begin_with_a_mount_path_are_rewritten(text: str, wanted: str) -> None:
    assert volumes.rewritten(text, Path("ROOT"), ["/data"]) == wanted


def test_variables_are_expanded_as_kubernetes_does() -> None:
    assert expand("$(A)-$(B)-$$(A)-$A", {"A": "1"}) == "1-$(B)-$(A)-$A"


@pytest.mark.parametrize(
    ("image", "known"),
    [
        ("pavane", True),
        ("pavane:1.2", True),
        ("registry:5000/x/pavane@sha256:ab", True),
        ("notpavane", False),
        ("mine:1", True),
    ],
)
def test_every_pavane_image_is_the_installation_and_others_are_mapped(image: str, known: bool) -> None:
    settings = KubeletSettings(Path(), Path("/installation"), str, str, lambda *_: "", {"mine:1": Path("/mine")})
    assert (settings.environment_of(image) is not None) == known
