"""Encryption by default and without, and certificates that change while clients write (docs/specs/operator.md 1.2)."""

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509

from e2e.cluster import RaftTest, reason_of
from e2e.waiting import eventually
from pavane_api.kinds import RAFT_CLUSTERS
from pavane_cli.commands.resources import condition
from pavane_operator.kube.resources import SECRETS, Object
from pavane_operator.tls.certificates import new_authority, new_certificate

SHORT: dict[str, Any] = {"duration": "1h", "renewBefore": "59m45s"}
"""Renewed 15 s after it was issued."""
WRITES = 50


async def certificate(raft: RaftTest) -> x509.Certificate:
    secret = await raft.kube.get(SECRETS, "q-tls", raft.namespace)
    return x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))


def signer_of(certificate: x509.Certificate) -> bytes | None:
    return certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier


async def until(raft: RaftTest, renewed: Callable[[x509.Certificate], bool], what: str) -> x509.Certificate:
    async def look() -> x509.Certificate | None:
        present = await certificate(raft)
        return present if renewed(present) else None

    return await eventually(look, what)


def given(name: str) -> Object:
    """A Secret as a user makes it, with an authority of his own."""
    now = datetime.now(UTC)
    authority = new_authority("somebody", now, timedelta(days=2))
    pair = new_certificate(authority, ["queue.example.org"], now, timedelta(days=1))
    files = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.certificate}
    data = {key: base64.b64encode(content).decode() for key, content in files.items()}
    return {"metadata": {"name": name}, "type": "kubernetes.io/tls", "data": data}


def lives(pods: list[Object]) -> dict[str, int]:
    """Restarts of each pod, by uid."""
    return {
        pod["metadata"]["uid"]: sum(one["restartCount"] for one in pod["status"]["containerStatuses"]) for pod in pods
    }


async def roll(raft: RaftTest) -> None:
    patch: dict[str, Any] = {"spec": {"rollout": {"restart": "again"}}}
    await raft.kube.patch(RAFT_CLUSTERS, "q", patch, raft.namespace, manager="e2e")


async def test_certificates_are_renewed_while_clients_write(raft: RaftTest) -> None:
    await raft.apply(tls=SHORT)
    await raft.until_current(generation=1)
    before = lives(await raft.pods())
    async with raft.writer("renewal") as writer:
        await writer.reach(WRITES)
        first = await certificate(raft)
        renewed = await until(raft, lambda item: item.serial_number != first.serial_number, "it was renewed")
        assert signer_of(renewed) == signer_of(first)
        await raft.kube.delete(SECRETS, "q-ca", raft.namespace)
        await until(raft, lambda item: signer_of(item) != signer_of(first), "a new authority signed")
        assert lives(await raft.pods()) == before
        await writer.more(WRITES)
        await roll(raft)  # needs streams to new pods, which have only ever seen the new authority
        await raft.until_current(generation=2)
        await writer.more(WRITES)
        proof = await writer.stop()
    assert proof.holds, proof


async def test_a_cluster_in_clear_is_rolled_out_and_has_no_certificates(raft: RaftTest) -> None:
    await raft.apply(tls={"mode": "Disabled"})
    await raft.until_current(generation=1)
    async with raft.writer("clear") as writer:
        await writer.reach(WRITES)
        await roll(raft)
        await raft.until_current(generation=2)
        await writer.more(WRITES)
        proof = await writer.stop()
    assert proof.holds, proof
    labels = "app.kubernetes.io/instance=q"
    secrets = (await raft.kube.list_all(SECRETS, raft.namespace, labels=labels)).items
    found = {secret["metadata"]["name"]: set(secret["data"]) for secret in secrets}
    assert set(found) == {"q-client", "q-keys"}
    assert found["q-keys"] == {"secret"}
    assert found["q-client"] == {"connection.json"}


async def test_a_certificate_of_the_users_own_is_waited_for_and_then_used(raft: RaftTest) -> None:
    await raft.apply(tls={"mode": "Secret", "secretName": "mine"})
    waiting = await raft.until(lambda item: reason_of(item, "UpToDate") == "ReferenceNotReady", "the Secret is missed")
    assert "Secret mine does not exist" in (condition(waiting, "UpToDate") or {})["message"]
    await raft.kube.create(SECRETS, given("mine"), raft.namespace)
    await raft.until_current(generation=1)
    await roll(raft)
    await raft.until_current(generation=2)
