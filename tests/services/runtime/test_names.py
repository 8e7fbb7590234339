import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pavane.raft.client import RaftClient
from pavane.runtime import names

THREADS_MIN = 5
"""As many threads as an event loop has by default on one core."""


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "hosts"
    monkeypatch.setenv("PAVANE_HOSTS_FILE", str(path))
    return path


@pytest.fixture
def installed() -> Iterator[None]:
    before = socket.getaddrinfo
    names.install()
    yield
    socket.getaddrinfo = before


def replace(path: Path, text: str) -> None:
    """As the kubelet does it: a new file takes the place of the old one."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_a_name_gives_all_its_addresses_in_the_order_of_the_file(hosts: Path) -> None:
    hosts.write_text("# pods\n127.64.0.2 db.default.svc db\n127.64.0.1 db.default.svc # the first\n\nnonsense\n")
    assert names.resolve("db.default.svc") == ["127.64.0.2", "127.64.0.1"]
    assert names.resolve("db") == ["127.64.0.2"]


def test_case_and_the_final_dot_do_not_matter(hosts: Path) -> None:
    hosts.write_text("127.64.0.2 Db.Default.svc\n")
    assert names.resolve("dB.default.SVC.") == ["127.64.0.2"]


def test_a_changed_file_is_seen_at_once(hosts: Path) -> None:
    replace(hosts, "127.64.0.2 db.test\n")
    assert names.resolve("db.test") == ["127.64.0.2"]
    replace(hosts, "127.64.0.3 db.test\n")
    assert names.resolve("db.test") == ["127.64.0.3"]


def test_an_address_is_itself(hosts: Path) -> None:
    hosts.write_text("127.64.0.2 10.0.0.1\n")
    assert names.resolve("10.0.0.1") == ["10.0.0.1"]
    assert names.resolve("::1") == ["::1"]


@pytest.mark.parametrize("content", [None, "127.64.0.2 other\n"])
def test_the_system_answers_for_what_the_file_does_not_name(hosts: Path, content: str | None) -> None:
    if content is not None:
        hosts.write_text(content)
    assert "127.0.0.1" in names.resolve("localhost")


@pytest.mark.parametrize("host", ["q-0.q-server-g1.ns.svc", "q.ns.svc.cluster.local."])
@pytest.mark.parametrize("content", [None, "127.64.0.2 other\n"])
def test_the_system_is_not_asked_for_services_of_a_local_cluster(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, host: str
) -> None:
    if content is not None:
        hosts.write_text(content)
    monkeypatch.setattr(names, "_system_getaddrinfo", pytest.fail)
    with pytest.raises(socket.gaierror, match="hosts file"):
        names.resolve(host)
    with pytest.raises(socket.gaierror, match="hosts file"):
        names.resolve_among({}, host)


@pytest.mark.usefixtures("installed")
def test_python_sockets_do_not_ask_the_system_for_services(hosts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts.write_text("127.64.0.2 other\n")
    monkeypatch.setattr(names, "_system_getaddrinfo", pytest.fail)
    with pytest.raises(socket.gaierror, match="hosts file"):
        socket.getaddrinfo("q-0.q-server-g1.ns.svc", 8047)


async def test_names_that_nobody_answers_for_hold_no_other_work_up() -> None:
    free, asked = threading.Event(), 0

    def slow(host: str) -> list[str]:
        nonlocal asked
        asked += 1
        free.wait()
        return [host]

    async with RaftClient([f"tcp://gone-{number}:1" for number in range(64)], b"x", resolve=slow) as client:
        call = asyncio.create_task(client.update(b"nobody hears this"))
        try:
            while asked < THREADS_MIN:
                await asyncio.sleep(0)
            async with asyncio.timeout(5):
                assert await asyncio.to_thread(lambda: "done") == "done"
        finally:
            free.set()
            call.cancel()


def test_a_name_that_nobody_knows_is_an_error(hosts: Path) -> None:
    hosts.write_text("")
    with pytest.raises(socket.gaierror):
        names.resolve("no-such-host.invalid")


@pytest.mark.usefixtures("installed")
def test_python_sockets_reach_a_name_of_the_file(hosts: Path) -> None:
    listener = socket.create_server(("127.64.99.1", 0))
    hosts.write_text("127.64.99.1 service.namespace.svc\n")
    with listener, socket.create_connection(("service.namespace.svc", listener.getsockname()[1]), timeout=5) as client:
        assert client.getpeername()[0] == "127.64.99.1"


@pytest.mark.usefixtures("installed")
def test_getaddrinfo_keeps_port_type_and_family(hosts: Path) -> None:
    hosts.write_text("127.64.0.2 db.test\n127.64.0.3 db.test\n")
    found = socket.getaddrinfo("db.test", 8047, type=socket.SOCK_STREAM)
    assert [address for *_, address in found] == [("127.64.0.2", 8047), ("127.64.0.3", 8047)]
    assert {kind for _, kind, *_ in found} == {socket.SOCK_STREAM}
    assert socket.getaddrinfo(b"db.test", 8047, socket.AF_INET, socket.SOCK_STREAM) == found
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo("db.test", 8047, socket.AF_INET6)


@pytest.mark.usefixtures("installed")
def test_installing_twice_changes_nothing(hosts: Path) -> None:
    names.install()
    hosts.write_text("127.64.0.2 db.test\n")
    assert socket.getaddrinfo("db.test", 1, type=socket.SOCK_STREAM)[0][4] == ("127.64.0.2", 1)
    assert socket.getaddrinfo("127.0.0.1", 1, type=socket.SOCK_STREAM)[0][4] == ("127.0.0.1", 1)


def test_without_the_variable_there_is_only_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAVANE_HOSTS_FILE", raising=False)
    assert "PAVANE_HOSTS_FILE" not in os.environ
    assert "127.0.0.1" in names.resolve("localhost")


@pytest.mark.parametrize("host", ["a" * 64, "a..b"])
def test_what_cannot_be_a_name_has_no_address(host: str) -> None:
    with pytest.raises(socket.gaierror):
        names.resolve(host)


DNS = {  # as a cluster's answers: the last name of a chain, and its address
    "kubernetes.default.svc": ("kubernetes.default.svc.east.test.", "10.0.0.1"),
    "own.tenants.svc": ("own.tenants.svc.east.test.", "10.0.0.2"),
    "known.tenants.svc": ("known.tenants.svc", "10.0.0.3"),  # by the system's own file of hosts
    "alias.tenants.svc": ("alice.victims.svc.east.test.", "10.0.0.4"),
    "looks.tenants.svc": ("looks.tenants.svc.west.test.", "10.0.0.4"),
}


def test_a_service_is_not_left_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def system(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        official, address = DNS[host]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, official, (address, 0))]

    monkeypatch.delenv("PAVANE_HOSTS_FILE", raising=False)
    monkeypatch.setattr(names, "_system_getaddrinfo", system)
    names._cluster_domain.cache_clear()
    assert names.resolve_service("own.tenants.svc") == ["10.0.0.2"]
    assert names.resolve_service("known.tenants.svc") == ["10.0.0.3"]
    for host in ("alias.tenants.svc", "looks.tenants.svc"):
        assert names.resolve(host) == ["10.0.0.4"], "who asks for any name gets what it stands for"
        with pytest.raises(names.AnotherName, match="ExternalName"):
            names.resolve_service(host)
    names._cluster_domain.cache_clear()
