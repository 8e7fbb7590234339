"""Files of certificates that change, whole and half: what is handed out, and which connections end."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from cryptography import x509

from pavane.runtime.certificates import Certificates, chain_of, issued, watch
from pavane_operator.tls.certificates import Pair
from tests.services.eventually import eventually
from tests.services.stage.certificates import authority, certificate, publish

WELCOME = b"w"
OTHERS = certificate(authority()).key
"""What belongs into none of the files, though it is whole."""


class Port(asyncio.Protocol):
    """Notes what is connected to it."""

    def __init__(self, open_now: set["Port"]) -> None:
        self._open = open_now

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._open.add(self)
        cast("asyncio.Transport", transport).write(WELCOME)
        watch(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)


@asynccontextmanager
async def listening(tls: ssl.SSLContext) -> AsyncIterator[tuple[int, set[Port]]]:
    found: set[Port] = set()
    server = await asyncio.get_running_loop().create_server(lambda: Port(found), "127.0.0.1", 0, ssl=tls)
    yield server.sockets[0].getsockname()[1], found
    server.close()


def made(folder: Path, shown: Pair, *trusted: Pair) -> Certificates:
    folder.mkdir()
    publish(folder, shown, *trusted)
    return Certificates(folder)


async def dial(port: int, tls: ssl.SSLContext) -> asyncio.StreamWriter:
    """Connect; raises ``OSError`` when one of both refuses, which TLS 1.3 tells who reads."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname="")
    try:
        if await reader.read(1) != WELCOME:
            raise ConnectionResetError("refused")
    except OSError:
        writer.close()
        raise
    return writer


async def test_an_authority_that_is_removed_counts_no_more(tmp_path: Path) -> None:
    old, new = authority(), authority()
    own = made(tmp_path / "own", certificate(new), old, new)
    former, renewed = made(tmp_path / "old", certificate(old), new), made(tmp_path / "new", certificate(new), new)
    async with listening(own.mutual_port) as (port, open_now):
        ends, stays = await dial(port, former.dialling), await dial(port, renewed.dialling)
        await eventually(lambda: len(open_now) == 2)
        publish(tmp_path / "own", certificate(new), new)
        with pytest.raises(OSError, match=r"unknown ca|refused"):
            await dial(port, former.dialling)  # before anybody has looked at the files
        own.refresh()
        await eventually(lambda: len(open_now) == 1)
        assert not stays.is_closing()
        again = await dial(port, renewed.dialling)
        own.refresh()
        assert len(open_now) == 2
        for writer in (ends, stays, again):
            writer.close()


async def test_who_has_shown_nothing_is_ended_with_any_authority_but_not_who_came_afterwards(tmp_path: Path) -> None:
    old, new = authority(), authority()
    own = made(tmp_path / "own", certificate(new), old, new)
    client = made(tmp_path / "client", certificate(new), new)
    async with listening(own.open_port) as (port, open_now):
        first = await dial(port, client.dialling)
        publish(tmp_path / "own", certificate(new), old, new)  # renewed, nothing is removed
        own.refresh()
        assert len(open_now) == 1
        publish(tmp_path / "own", certificate(new), new)
        second = await dial(port, client.dialling)
        own.refresh()
        await eventually(lambda: len(open_now) == 1)
        assert not second.is_closing()
        for writer in (first, second):
            writer.close()


async def test_a_dialled_connection_ends_when_the_authority_of_the_port_is_removed(tmp_path: Path) -> None:
    old, new = authority(), authority()
    theirs, own = made(tmp_path / "port", certificate(old), new), made(tmp_path / "own", certificate(new), old, new)
    async with listening(theirs.mutual_port) as (port, open_now):
        loop = asyncio.get_running_loop()
        ours: set[Port] = set()
        await loop.create_connection(lambda: Port(ours), "127.0.0.1", port, ssl=own.dialling, server_hostname="")
        await eventually(lambda: open_now)
        publish(tmp_path / "own", certificate(new), new)
        own.refresh()
        await eventually(lambda: not ours and not open_now)
        with pytest.raises(ssl.SSLCertVerificationError):
            await dial(port, own.dialling)


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
@pytest.mark.parametrize("left", [b"", b"half of a fi", None, OTHERS])
async def test_files_that_are_not_whole_leave_the_former_ones_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, left: bytes | None
) -> None:
    signer = authority()
    own = made(tmp_path / "own", certificate(signer), signer)
    client = made(tmp_path / "client", certificate(signer), signer)
    former = own.current()
    file = (tmp_path / "own" / name).resolve()
    other = certificate(signer)
    if left is None:
        file.unlink()
    else:
        file.write_bytes(left or b"")
    async with listening(own.mutual_port) as (port, _):
        for _ in range(3):
            (await dial(port, client.dialling)).close()
            own.refresh()
        assert own.current() is former
        assert caplog.text.count("the former ones stay in use") == 1
        publish(tmp_path / "own", other, signer)
        (await dial(port, client.dialling)).close()
        assert own.current().certificate == other.certificate


def test_without_files_there_is_nothing_to_begin_with(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"tls\.crt"):
        Certificates(tmp_path)


def test_files_that_change_while_they_are_read_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = authority(), authority()
    publish(tmp_path, certificate(old), old)
    own = Certificates(tmp_path)
    former = own.current()
    publish(tmp_path, certificate(new), new)
    read = Path.read_bytes

    def slow(path: Path) -> bytes:
        found = read(path)
        monkeypatch.undo()
        publish(tmp_path, certificate(new), new)
        return found

    monkeypatch.setattr(Path, "read_bytes", slow)
    assert own.current() is former
    assert own.current().generation == former.generation + 1


def test_who_was_accepted_is_judged_by_all_certificates_that_lead_to_an_authority(tmp_path: Path) -> None:
    root, other = authority(), authority()
    between = certificate(root)
    assert issued(chain_of([between.certificate.decode()]), frozenset(chain_of([root.certificate.decode()])))
    assert not issued(chain_of([between.certificate.decode()]), frozenset(chain_of([other.certificate.decode()])))
    leaf = certificate(between, "leaf.orders.svc")
    assert x509.load_pem_x509_certificate(leaf.certificate).issuer
    both = chain_of([leaf.certificate.decode(), between.certificate.decode()])
    assert issued(both, frozenset(chain_of([root.certificate.decode()])))
    assert not issued(both[:1], frozenset(chain_of([root.certificate.decode()])))
    assert not issued((b"broken",), frozenset(chain_of([root.certificate.decode()])))
