"""Who may use the client port of a log: certificates of clients."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

import pavane
from pavane.application import LogConnection
from pavane.runtime.certificates import Certificates, client_of, trusting
from pavane.waltz.aio.links import StorageLink
from pavane.waltz.client import Unavailable, Waltz
from pavane.waltz.client.link import Link, parse_address
from pavane_operator.tls.certificates import CLIENT_END, Pair, new_certificate
from tests.services.eventually import eventually
from tests.services.stage.certificates import LIFE, authority, certificate, now, publish
from tests.services.waltz.running import KEY, Log, running_log


def shown(signer: Pair, client: str = "client", life: timedelta = LIFE) -> Pair:
    return new_certificate(signer, (client,), now(), life, CLIENT_END)


class Guarded:
    """A log whose client port wants certificates."""

    def __init__(self, folder: Path) -> None:
        self.pods, self.clients = authority(), authority()
        self.folder = folder
        (folder / "tls").mkdir()
        publish(folder / "tls", certificate(self.pods), self.pods)
        self.own = Certificates(folder / "tls")
        self.trust(self.clients)
        self.port = Certificates(folder / "tls", folder / "clients")
        self.log: Log

    def trust(self, *authorities: Pair) -> None:
        """Let clients in that have a certificate of one of these."""
        (self.folder / "new").write_bytes(b"".join(one.certificate for one in authorities))
        (self.folder / "new").rename(self.folder / "clients")

    def connection(self, pair: Pair | None) -> LogConnection:
        """Return what an application is given."""
        held = {"servers": f"127.0.0.1:{self.log.servers[0].port}", "ca.crt": self.pods.certificate.decode()}
        if pair is not None:
            held |= {"tls.crt": pair.certificate.decode(), "tls.key": pair.key.decode()}
        return LogConnection.of("ledger", held, hosts=self.folder / "hosts")

    async def refusal(self, pair: Pair | None) -> str:
        """Return how it is told that it may not connect."""
        while True:
            with pytest.raises(pavane.CannotConnect) as caught:
                await pavane.connect_log("ledger", connection=self.connection(pair), timeout_s=0.1)
            if "no answer in time" not in str(caught.value):  # a machine with other work
                return str(caught.value)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    found = Guarded(tmp_path)
    (tmp_path / "hosts").write_text("127.0.0.1 127.0.0.1\n")
    async with running_log(tmp_path, certificates=found.own, clients=found.port) as found.log:
        await found.log.settled()
        yield found


async def test_whoever_shows_a_certificate_of_the_log_is_served_and_others_hear_why_not(guarded: Guarded) -> None:
    given = guarded.connection(shown(guarded.clients))
    assert LogConnection.parse(given.text(), "what was printed") == given
    async with await pavane.connect_log("ledger", connection=given) as log:
        assert await log.append(0, b"known") == 0
        lapsed = shown(guarded.clients, life=timedelta(seconds=-1))
        for pair in (None, shown(authority()), lapsed):
            said = await guarded.refusal(pair)
            assert said.startswith("Keys: "), said
            assert "shows a certificate that was issued for it, has not expired" in said
        assert await log.append(0, b"still here") == 1
    refused = {each.labels["reason"]: each.value for each in guarded.log.servers[0].metrics() if "refused" in each.name}
    assert min(refused[why] for why in ("none shown", "expired", "another authority")) >= 1


async def test_who_has_no_way_in_is_told_so_at_once(guarded: Guarded) -> None:
    mismatched = Pair(shown(guarded.clients).certificate, shown(guarded.clients).key)
    with pytest.raises(pavane.CannotConnect, match="Keys: the connection to ledger is damaged"):
        await pavane.connect_log("ledger", connection=guarded.connection(mismatched))


async def test_a_removed_authority_of_clients_counts_no_more_at_once(guarded: Guarded) -> None:
    newer = authority()
    server = parse_address(f"127.0.0.1:{guarded.log.servers[0].port}")

    def tls(signer: Pair) -> ssl.SSLContext:
        pair = shown(signer)
        return trusting(guarded.pods.certificate.decode(), pair.certificate.decode(), pair.key.decode())

    guarded.trust(guarded.clients, newer)
    former, later = [await Link.connect(server, tls(each), 1) for each in (guarded.clients, newer)]
    pods = await Link.connect(server, guarded.own.dialling, 1)
    guarded.trust(newer)
    guarded.port.refresh()
    await eventually(lambda: former.closed)
    assert not any((later.closed, pods.closed))
    with pytest.raises(Unavailable, match="whose authority still counts"):
        await Link.connect(server, tls(guarded.clients), 1)
    for each in (later, pods):
        await each.close()


async def test_a_client_is_no_pod_to_storage_nodes(guarded: Guarded, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    publish(tmp_path / "mine", shown(guarded.clients), guarded.pods)
    tls = client_of(tmp_path / "mine")
    heard: list[str] = []
    link = StorageLink(
        f"127.0.0.1:{guarded.log.ports[0]}", KEY, 1, tls=tls, up=heard.append, down=heard.append, heard=lambda *_: None
    )
    running = asyncio.create_task(link.run())
    await eventually(lambda: link.fault not in ("", "not connected yet"))
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert heard == []
    async with Waltz([f"127.0.0.1:{guarded.log.servers[0].port}"], tls=tls) as log:
        assert await log.append(0, b"as a client") == 0
