"""Who may use the client port of a log: certificates of clients, and what each may do."""

import asyncio
import base64
import contextlib
import os
import re
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
from typer.testing import CliRunner

import pavane
from pavane.application import LogConnection
from pavane.pods import immortal_log
from pavane.runtime.certificates import Certificates, client_of, trusting
from pavane.waltz.aio.links import StorageLink
from pavane.waltz.client import Unavailable, Waltz
from pavane.waltz.client.link import Link, parse_address
from pavane.waltz.core.rights import Right, Rights, Rule
from pavane.waltz.errors import RejectCode, Rejected
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId
from pavane_cli.main import app
from pavane_operator.tls.certificates import CLIENT_END, Pair, new_certificate
from tests.services.eventually import eventually
from tests.services.stage.certificates import LIFE, authority, certificate, now, publish
from tests.services.waltz.running import KEY, Log, RawClient, running_log

BOTH = frozenset({Right.APPEND, Right.READ})
RULES = [
    Rule("client", BOTH),
    Rule("billing", frozenset({Right.APPEND}), frozenset({1})),
    Rule("audit", frozenset({Right.READ})),
    Rule("keeper", frozenset(Right), frozenset({0})),
]


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

    async def open(self, client: str) -> Waltz:
        """Connect with the certificate of a client."""
        return await pavane.connect_log("ledger", connection=self.connection(shown(self.clients, client)))

    async def refusal(self, pair: Pair | None) -> str:
        """Return how it is told that it may not connect."""
        within_s, said = 0.1, "no answer in time"
        while "no answer in time" in said:  # a machine with other work
            with pytest.raises(pavane.CannotConnect) as caught:
                await pavane.connect_log("ledger", connection=self.connection(pair), timeout_s=within_s)
            within_s, said = 2 * within_s, str(caught.value)
        return said


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    found = Guarded(tmp_path)
    (tmp_path / "hosts").write_text("127.0.0.1 127.0.0.1\n")
    async with running_log(
        tmp_path, partitions=2, certificates=found.own, clients=found.port, rights=Rights(RULES)
    ) as found.log:
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


async def test_each_client_may_what_its_rules_say_and_hears_what_it_lacks(guarded: Guarded) -> None:
    async with await guarded.open("client") as all_but_trim, await guarded.open("billing") as billing:
        assert [await all_but_trim.append(number, b"one") for number in (0, 1)] == [0, 0]
        assert await billing.append(1, b"two") == 1

        async def refused(work: Awaitable[object], text: str) -> None:
            with pytest.raises(Rejected, match=text) as caught:
                await work
            assert caught.value.code is RejectCode.NOT_PERMITTED

        await refused(billing.append(0, b"elsewhere"), "billing has no right to append in partition 0")
        await refused(billing.get(1, 0), "billing has no right to read in partition 1")
        await refused(anext(billing.feed(1)), "no right to read")
        await refused(all_but_trim.trim(0, 1), "client has no right to trim in partition 0")
        async with await guarded.open("audit") as audit, await guarded.open("keeper") as keeper:
            assert (await audit.get(1, 1)).data == b"two"
            await refused(audit.append(1, b"never"), "audit has no right to append")
            assert (await keeper.trim(0, 1)).first == 1
            await refused(keeper.trim(1, 1), "no right to trim in partition 1")
        async with await guarded.open("stranger") as stranger:
            await refused(stranger.append(0, b"never"), "stranger has no right to append")
        assert [await all_but_trim.hwm(number) for number in (0, 1)] == [0, 1]
    counted = {each.labels["reason"]: each.value for each in guarded.log.servers[0].metrics() if "refused" in each.name}
    wanted = {"no right to append": 3, "no right to read": 2, "no right to trim": 2}
    assert counted.keys() == wanted.keys()
    assert all(counted[why] >= count for why, count in wanted.items()), "more where a slow machine asked again"


async def test_an_older_client_without_a_right_is_hung_up_on_for_it_knows_no_refusals(guarded: Guarded) -> None:
    def tls(client: str) -> ssl.SSLContext:
        pair = shown(guarded.clients, client)
        return trusting(guarded.pods.certificate.decode(), pair.certificate.decode(), pair.key.decode())

    port = guarded.log.servers[0].port
    served = await RawClient.connect(port, (4,), 1, tls("client"))
    await served.mount()
    reader = await RawClient.connect(port, (4,), 2, tls("audit"))
    await reader.mount()
    reader.append(b"never")
    assert await reader.next() is None
    stranger = await RawClient.connect(port, (4,), 3, tls("billing"))
    stranger.send(m.MountRequest(stranger.reqid(1), -1, 0))  # where it may append, but not read
    assert await stranger.next() is None
    served.append(b"mine")
    served.send(m.FlushRequest(served.reqid()))
    assert (await served.next(m.FlushResponse)).txid == 0
    served.hang_up("done")


async def test_who_may_only_append_reads_nothing_by_a_mount(guarded: Guarded) -> None:
    pair = shown(guarded.clients, "billing")
    tls = trusting(guarded.pods.certificate.decode(), pair.certificate.decode(), pair.key.decode())
    async with await guarded.open("client") as log:
        assert await log.append(1, b"secret") == 0
    billing = await RawClient.connect(guarded.log.servers[0].port, (5,), 9, tls)
    billing.send(m.MountRequest(billing.reqid(1), -1, 0))
    answer = await billing.next()
    assert isinstance(answer, m.MountResponse), "no transaction"
    assert answer.state is m.MountState.READY
    billing.append(b"mine", partition=1, hwm=0)
    assert (await billing.next()).txid == 1
    billing.hang_up("done")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
async def test_the_key_store_of_the_documentation_opens_the_port(guarded: Guarded, tmp_path: Path) -> None:
    page = Path("docs/waltz.md").read_text()
    (commands,) = [block for block in re.findall("```sh\n(.+?)```", page, re.DOTALL) if "pkcs12" in block]
    pair = shown(guarded.clients)
    (tmp_path / "crt").write_bytes(base64.b64encode(pair.certificate))
    (tmp_path / "key").write_bytes(base64.b64encode(pair.key))
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f'#!/bin/sh\ncase "$5" in *tls*crt*) cat "{tmp_path}/crt";; *tls*key*) cat "{tmp_path}/key";; esac\n'
    )
    kubectl.chmod(0o700)
    path = f"{tmp_path}:{os.environ['PATH']}"
    ran = await asyncio.create_subprocess_exec("sh", "-ec", commands, cwd=tmp_path, env={**os.environ, "PATH": path})
    assert await ran.wait() == 0
    assert (tmp_path / "client.p12").stat().st_mode & 0o077 == 0
    key, certificate, _ = pkcs12.load_key_and_certificates((tmp_path / "client.p12").read_bytes(), b"changeit")
    assert key is not None
    assert certificate is not None
    encoding = Encoding.PEM
    held = Pair(certificate.public_bytes(encoding), key.private_bytes(encoding, PrivateFormat.PKCS8, NoEncryption()))
    async with await pavane.connect_log("ledger", connection=guarded.connection(held)) as log:
        assert await log.append(0, b"from the key store") == 0


async def test_pods_and_commands_show_what_is_in_the_folder_of_the_secret(guarded: Guarded, tmp_path: Path) -> None:
    folder, server = tmp_path / "mounted", f"127.0.0.1:{guarded.log.servers[0].port}"
    folder.mkdir()
    (folder / "ca.crt").write_bytes(guarded.pods.certificate)  # all that there was before the log asked for more
    before = client_of(folder)
    with pytest.raises(Unavailable, match="shows a certificate"):
        await Link.connect(parse_address(server), before, 1)
    (folder / "ca.crt").unlink()
    publish(folder, shown(guarded.clients), guarded.pods)
    await (await Link.connect(parse_address(server), before, 1)).close()
    (folder / "servers").write_text(f"{server}\n")
    async with immortal_log.client(folder) as log:
        assert await log.append(0, b"an immortal's") == 0
    typed = ["waltz", "hwm", "--servers", server, "--tls-ca", str(folder)]
    found = await asyncio.to_thread(CliRunner().invoke, app, typed)
    assert (found.exit_code, found.stdout) == (0, "0\n"), found.exception
    found = await asyncio.to_thread(CliRunner().invoke, app, [*typed[:-1], str(tmp_path / "node0")])
    assert "has no ca.crt" in str(found.exception), "never in clear"


def test_without_rules_a_certificate_gives_all_but_trim_and_pods_may_all() -> None:
    rights, reqid = Rights(), ReqId(1, 1, 0, 1)
    trim, read = m.TrimRequest(reqid, 1, 0), m.TransactionDataRequest(reqid, 1)
    assert [rights.lacking("client", 5, each) for each in (trim, read)] == [Right.TRIM, None]
    assert Rights([]).lacking("ledger.default.svc", 5, trim) is None
    assert Rights([]).lacking("", 5, read) is Right.READ
    reading = frozenset({Right.READ})
    several = Rights([Rule("audit", reading, frozenset({1})), Rule("audit", reading, frozenset({0}))])
    assert several.lacking("audit", 5, read) is None
    assert Rights([Rule("audit", reading), Rule("audit", reading, frozenset({1}))]).lacking("audit", 5, read) is None
