"""A cluster whose shared secret its user gave (docs/specs/operator.md 1.4)."""

import asyncio
import base64
from dataclasses import replace
from typing import Any

import pytest
import zmq

from e2e.cluster import RaftTest, reason_of
from e2e.targets import Capability
from pavane.raft.keys import RaftKeys
from pavane.raft.wire.decoder import decode_reply
from pavane.raft.wire.replies import RequestUpdateReply, UpdateStatus
from pavane.raft.wire.requests import RequestUpdate
from pavane_api.kinds import RAFT_CLUSTERS
from pavane_cli.commands.resources import condition
from pavane_operator.kube.resources import SECRETS

IDENT = b"of the user"
REFERENCE = {"name": "mine", "key": "ident"}
WRITES = 50
ANSWER_MS = 30_000


async def give(raft: RaftTest) -> None:
    """Make the Secret as `kubectl create secret generic mine --from-file=ident` does of a file of one line."""
    data = {"ident": base64.b64encode(IDENT + b"\n").decode()}
    await raft.kube.create(SECRETS, {"metadata": {"name": "mine"}, "data": data}, raft.namespace)


async def test_it_is_waited_for_and_both_generations_of_a_rollout_have_it(raft: RaftTest) -> None:
    await raft.apply(secretRef=REFERENCE)
    waiting = await raft.until(lambda item: reason_of(item, "UpToDate") == "ReferenceNotReady", "the Secret is missed")
    assert "Secret mine does not exist" in (condition(waiting, "UpToDate") or {})["message"]
    await give(raft)
    await raft.until_current(generation=1)
    assert "secret" not in (await raft.kube.get(SECRETS, "q-keys", raft.namespace))["data"]
    async with raft.writer("given") as writer:
        await writer.reach(WRITES)
        patch: dict[str, Any] = {"spec": {"rollout": {"restart": "again"}}}
        await raft.kube.patch(RAFT_CLUSTERS, "q", patch, raft.namespace, manager="e2e")
        await raft.until_current(generation=2)
        await writer.more(WRITES)
        proof = await writer.stop()
    assert proof.holds, proof
    raft.append("by the control plane")


def answered(address: str, requests: list[tuple[bytes, RaftKeys, bytes]]) -> list[bytes]:
    """Send updates (reqid, keys, data) over one connection; return the reqids of all answers until the last is done."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        curve = requests[0][1].curve
        assert curve is not None
        curve.secure(dealer)
        dealer.connect(f"tcp://{address}:8047")
        for reqid, keys, data in requests:
            dealer.send_multipart([reqid, *RequestUpdate(data).encode(keys.ident)])
        found = []
        while dealer.poll(ANSWER_MS):
            reqid, *frames = dealer.recv_multipart()
            found.append(reqid)
            answer = decode_reply(RequestUpdateReply, frames)
            assert isinstance(answer, RequestUpdateReply)
            if reqid == requests[-1][0] and answer.status is UpdateStatus.DONE:
                return found
    raise AssertionError(f"not done; answers to {found}")


@pytest.mark.needs(Capability.DIRECT)
async def test_who_has_another_is_not_heard(raft: RaftTest) -> None:
    await give(raft)
    await raft.apply(secretRef=REFERENCE)
    document = await raft.until_current(generation=1)
    (address,) = [
        pod["status"]["podIP"] for pod in await raft.pods() if pod["metadata"]["name"] == document["status"]["leader"]
    ]
    keys = RaftKeys.of(await raft.kube.get(SECRETS, "q-keys", raft.namespace), IDENT)
    async with raft.client() as client:
        foreign, own = client.new_reqid(), client.new_reqid()
        requests = [(foreign, replace(keys, ident=b"of nobody"), b"foreign"), (own, keys, b"own")]
        assert set(await asyncio.to_thread(answered, address, requests)) == {own}
        written = [bytes(entry.data) async for entry in client.entries()]
    assert b"own" in written
    assert b"foreign" not in written
