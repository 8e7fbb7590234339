"""What a resource that is deleted has left in a log is taken back, with the log's own certificate."""

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pavane.runtime.certificates import Certificates, trusting
from pavane.waltz.aio.cluster import set_replicas
from pavane.waltz.client import Rejected, Unavailable, Waltz
from pavane.waltz.core.partition import Partition
from pavane.waltz.core.rights import Rights
from pavane_operator.kinds.waltz import leaving
from pavane_operator.plan.model import Observed
from pavane_operator.tls.certificates import CLIENT_END, new_certificate
from tests.services.eventually import eventually
from tests.services.stage.certificates import LIFE, authority, certificate, now, publish
from tests.services.waltz.running import running_log

NAME = "computecluster.bank"


def observed(**secrets: dict[str, str]) -> Observed:
    data = {
        f"ledger-{name}": {"data": {key: base64.b64encode(text.encode()).decode() for key, text in held.items()}}
        for name, held in secrets.items()
    }
    return Observed(fresh=True, references={"WaltzCluster/ledger": {"metadata": {}}, **data})


def without(partition: Partition, node: str) -> bool:
    session = partition.session
    return partition.healthy and session is not None and not session._replicas[node].voting


async def test_its_consumer_goes_from_all_partitions_and_others_stay(tmp_path: Path) -> None:
    async with running_log(tmp_path, partitions=2, nodes=1) as log:
        await log.settled()
        servers = f"127.0.0.1:{log.servers[0].port}"
        async with Waltz([servers]) as client:
            for name, partition in ((NAME, 0), (NAME, 1), ("billing", 1)):
                await client.consumer(name).start(partition, 0)
            for _ in range(2):
                await leaving.forget(observed(client={"servers": servers}), "ledger", NAME)
                assert [[one.name for one in await client.consumers(p)] for p in range(2)] == [[], ["billing"]]


async def test_an_added_partition_that_was_never_open_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "PATIENCE_S", 0.5)
    async with running_log(tmp_path) as log:
        await log.settled()
        servers = f"127.0.0.1:{log.servers[0].port}"
        async with Waltz([servers]) as client:
            await client.consumer(NAME).start(0, 0)
            await log.stop_node(2)
            await set_replicas(log.metadata, replace(log.config, partitions=2))
            await eventually(lambda: 1 in log.servers[0].running.owned)
            await eventually(lambda: without(log.servers[0].running.owned[0], log.config.storage[2]))
            with pytest.raises((Unavailable, Rejected)):
                await leaving.forget(observed(client={"servers": servers}), "ledger", NAME)
            assert await client.consumers(0) == []


async def test_the_rights_of_clients_do_not_hold_it_back(tmp_path: Path) -> None:
    pods, clients = authority(), authority()
    (tmp_path / "tls").mkdir()
    own = certificate(pods)
    publish(tmp_path / "tls", own, pods)
    (tmp_path / "clients").write_bytes(clients.certificate)
    port = Certificates(tmp_path / "tls", tmp_path / "clients")
    async with running_log(
        tmp_path, nodes=1, certificates=Certificates(tmp_path / "tls"), clients=port, rights=Rights(None)
    ) as log:
        await log.settled()
        servers, ca = f"127.0.0.1:{log.servers[0].port}", pods.certificate.decode()
        pairs = {
            name: {"servers": servers, "ca.crt": ca, "tls.crt": pair.certificate.decode(), "tls.key": pair.key.decode()}
            for name, pair in {
                "client": new_certificate(clients, ("client",), now(), LIFE, CLIENT_END),
                "tls": own,
            }.items()
        }
        one = pairs["client"]
        async with Waltz([servers], tls=trusting(ca, one["tls.crt"], one["tls.key"])) as client:
            await client.consumer(NAME).start(0, 0)
            await leaving.forget(observed(**pairs), "ledger", NAME)
            assert await client.consumers(0) == []


async def test_a_log_that_is_gone_or_goes_is_not_asked_and_one_that_is_silent_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaving, "PATIENCE_S", 0.1)
    nobody = observed(client={"servers": "127.0.0.1:9"})
    with pytest.raises(Unavailable):
        await leaving.forget(nobody, "ledger", NAME)
    going: dict[str, Any] = {**nobody.references, "WaltzCluster/ledger": {"metadata": {"deletionTimestamp": "now"}}}
    for references in (going, {}):
        await leaving.forget(replace(nobody, references=references), "ledger", NAME)
