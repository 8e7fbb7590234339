"""An authority that is removed counts for nobody, on every TLS port of a running platform (operator.md 4.4)."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import QUICK, SWIM_GROUPS, RaftTest
from e2e.targets import Capability
from e2e.waiting import eventually
from pavane.ambrosia.wire.links import Channel, Hello
from pavane.compute.transport import STAGE_PORT
from pavane.pods.compute_settings import REPLICA_PORT
from pavane.pods.coordinator_settings import LINK_PORT
from pavane.pods.waltz_settings import ADMIN_PORT, SERVER_PORT, STORAGE_PORT
from pavane.runtime.certificates import Certificates, trusting
from pavane.waltz.aio.admin import StorageAdmin
from pavane.waltz.client.link import Link, parse_address
from pavane_api.kinds import COMPUTE_CLUSTERS, COORDINATORS, DATAFLOWS, RAFT_CLUSTERS, WALTZ_CLUSTERS
from pavane_operator.kinds.waltz import names
from pavane_operator.kube.resources import CONFIG_MAPS, PODS, SECRETS
from pavane_operator.tls.certificates import Pair, new_authority, new_certificate

pytestmark = [pytest.mark.needs(Capability.DIRECT), pytest.mark.timeout(480)]

SECRET = "shared"
REFUSED_S = 60.0
"""Within which an authority counts for nobody. The kubelet of this target renews files at once."""
MUTUAL = (STAGE_PORT, REPLICA_PORT, STORAGE_PORT, ADMIN_PORT, LINK_PORT)
PORTS = {
    "meta": {STAGE_PORT},
    "ledger-storage": {STORAGE_PORT, ADMIN_PORT},
    "ledger": {STAGE_PORT, SERVER_PORT},
    "views-replica": {REPLICA_PORT},
    "views": {STAGE_PORT},
    "group": {STAGE_PORT},
    "alice": {STAGE_PORT, LINK_PORT},
}
"""The ports with TLS of all kinds, by how the names of their pods begin."""
HELLO = Hello("stranger", "nobody", Channel.DATA, "test", (0, 0), 7).encode()
"""Is answered by a coordinator, to whom a stranger speaks first; others who speak first take it for noise."""
BANK = Path(__file__).parents[1] / "examples" / "bank" / "bank.py"
SCRIPT = """
CREATE TABLE orders (id BIGINT) USING waltz OPTIONS (partitions '0');
CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM orders;
"""


KINDS = (
    (RAFT_CLUSTERS, "meta"),
    (WALTZ_CLUSTERS, "ledger"),
    (COMPUTE_CLUSTERS, "views"),
    (SWIM_GROUPS, "group"),
    (COORDINATORS, "alice"),
)
PARTITIONS = 4


def fill(folder: Path, shown: Pair, *trusted: Pair) -> dict[str, bytes]:
    files = {
        "tls.crt": shown.certificate,
        "tls.key": shown.key,
        "ca.crt": b"".join(one.certificate for one in trusted),
    }
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return files


class PlatformTest(RaftTest):
    """One resource of each kind, all with the certificate of one Secret."""

    async def give(self, folder: Path, shown: Pair, *trusted: Pair) -> None:
        """Write the Secret, and the same files into a folder."""
        files = fill(folder, shown, *trusted)
        data = {name: base64.b64encode(content).decode() for name, content in files.items()}
        body = {"metadata": {"name": SECRET}, "type": "kubernetes.io/tls", "data": data}
        await self.kube.apply(SECRETS, body, self.namespace, manager="e2e", strict=True)

    async def start(self) -> None:
        common: dict[str, Any] = {"tls": {"mode": "Secret", "secretName": SECRET}, **QUICK}
        files = {"metadata": {"name": "bank"}, "data": {"bank.py": BANK.read_text(encoding="utf-8")}}
        await self.kube.apply(CONFIG_MAPS, files, self.namespace, manager="e2e", strict=True)
        flow = {"metadata": {"name": "n"}, "spec": {"computeClusterRef": {"name": "views"}, "script": SCRIPT}}
        await self.kube.apply(DATAFLOWS, flow, self.namespace, manager="e2e", strict=True)
        application = {"command": ["pavane", "ambrosia", "run", "bank:Account"], "files": "bank"}
        specs: dict[str, dict[str, Any]] = {
            "meta": {"stateMachine": "Tree", "replicas": 3, "storage": {"size": "64Mi"}},
            "ledger": {
                "partitions": PARTITIONS,
                "servers": {"replicas": 1},
                "storage": {"nodes": 3, "size": "64Mi"},
                "metadata": {"raftClusterRef": {"name": "meta"}},
            },
            "views": {"waltzClusterRef": {"name": "ledger"}, "partitions": {"ticks": 2, "views": 3}, "replicas": 1},
            "group": {"replicas": 1},
            "alice": {"application": application},
        }
        for kind, name in KINDS:
            body = {"metadata": {"name": name}, "spec": {**specs[name], **common}}
            await self.kube.apply(kind, body, self.namespace, manager="e2e", strict=True)

    async def ports(self) -> dict[str, tuple[str, int]]:
        """All ports with TLS, by what they are called here."""
        found = {}
        for pod in (await self.kube.list_all(PODS, self.namespace)).items:
            name = pod["metadata"]["name"]
            for number in next(numbers for start, numbers in PORTS.items() if name.startswith(start)):
                found[f"{name}:{number}"] = (pod["status"]["podIP"], number)
        return found


def accepts(address: tuple[str, int], tls: ssl.SSLContext) -> bool:
    """Whether a port agrees on TLS and says something then, which only those it lets in ever hear."""
    try:
        with socket.create_connection(address, 10) as plain, tls.wrap_socket(plain) as sealed:
            if address[1] == LINK_PORT:
                sealed.sendall(HELLO)
            return sealed.recv(1) != b""
    except OSError:
        return False


def showing(folder: Path) -> ssl.SSLContext:
    """A context that shows the certificate in a folder, and takes what its authorities have issued."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.check_hostname = False
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.set_alpn_protocols(["h2"])  # gRPC insists
    return context


async def accepting(ports: dict[str, tuple[str, int]], tls: ssl.SSLContext) -> set[str]:
    found = await asyncio.gather(*(asyncio.to_thread(accepts, address, tls) for address in ports.values()))
    return {name for name, accepted in zip(ports, found, strict=True) if accepted}


async def test_an_authority_that_is_removed_counts_for_nobody(raft: RaftTest, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    old, new = (new_authority(name, now, timedelta(days=2)) for name in ("old", "new"))
    former, renewed = (new_certificate(each, ["all.example.org"], now, timedelta(days=1)) for each in (old, new))
    folder = {name: tmp_path / name for name in ("old", "both", "new", "stale")}
    test = PlatformTest(raft.platform, raft.kube, raft.namespace)
    await test.give(folder["old"], former, old)
    await test.start()
    for kind, name in KINDS:
        await PlatformTest(raft.platform, raft.kube, raft.namespace, kind).until_current(name, generation=1)
    ports = await test.ports()
    assert {address[1] for address in ports.values()} == {*MUTUAL, SERVER_PORT}
    assert await accepting(ports, showing(folder["old"])) == set(ports)

    await test.give(folder["both"], renewed, old, new)
    fill(folder["new"], renewed, new)
    fill(folder["stale"], former, old, new)
    fresh, stale = showing(folder["new"]), showing(folder["stale"])

    async def all_accept() -> bool:
        return await accepting(ports, fresh) == await accepting(ports, stale) == set(ports)

    await eventually(all_accept, "every port shows the renewed certificate, and takes both")

    log = await raft.kube.get(WALTZ_CLUSTERS, "ledger", raft.namespace)
    by_port = {number: f"{host}:{number}" for host, number in ports.values()}
    key = names.key(log["metadata"]["uid"])
    admin = await StorageAdmin.connect(by_port[ADMIN_PORT], key, PARTITIONS, Certificates(folder["stale"]).dialling)
    server = parse_address(by_port[SERVER_PORT])
    link = await Link.connect(server, trusting(old.certificate.decode() + new.certificate.decode()), 1)
    assert not admin.closed
    assert not link.closed

    await test.give(folder["new"], renewed, new)
    mutual = {name for name, address in ports.items() if address[1] in MUTUAL}

    async def removed() -> bool:
        return admin.closed and bool(link.closed) and not mutual & await accepting(ports, stale)

    await eventually(removed, "the old authority counts for nobody", REFUSED_S)
    assert await accepting(ports, fresh) == set(ports)
    for kind, name in KINDS:
        await PlatformTest(raft.platform, raft.kube, raft.namespace, kind).until_current(name, generation=1)
