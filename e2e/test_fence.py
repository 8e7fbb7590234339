"""At most one generation writes: the old one refuses after the fence, also a leader that slept through it."""

import asyncio
import signal
from typing import Any

import pytest
import zmq

from e2e.cluster import LOADED, QUICK, RaftTest
from e2e.targets import Capability
from pavane.raft.keys import RaftKeys
from pavane.raft.wire.decoder import decode_reply
from pavane.raft.wire.replies import RequestUpdateReply, UpdateStatus
from pavane.raft.wire.requests import RequestUpdate
from pavane_api.kinds import RAFT_CLUSTERS
from pavane_operator.kube.resources import SECRETS

pytestmark = pytest.mark.needs(Capability.DIRECT)

ANSWERS_MS = 5000


def update_at(address: str, keys: RaftKeys, reqid: bytes, data: bytes) -> list[RequestUpdateReply]:
    """Send one update to the peer at ``address`` alone; return what it answers within ANSWERS_MS or until the end."""
    answers: list[RequestUpdateReply] = []
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        if keys.curve is not None:
            keys.curve.secure(dealer)
        dealer.connect(f"tcp://{address}:8047")
        dealer.send_multipart([reqid, *RequestUpdate(data).encode(keys.ident)])
        while dealer.poll(ANSWERS_MS):
            _, *frames = dealer.recv_multipart()
            answer = decode_reply(RequestUpdateReply, frames)
            assert isinstance(answer, RequestUpdateReply)
            answers.append(answer)
            if answer.status is not UpdateStatus.ACCEPTED:
                break
    return answers


async def keys_of(raft: RaftTest) -> RaftKeys:
    return RaftKeys.of(await raft.kube.get(SECRETS, "q-keys", raft.namespace))


async def addresses(raft: RaftTest, generation: int) -> dict[str, str]:
    pods = await raft.pods()
    prefix = f"q-server-g{generation}-"
    return {
        pod["metadata"]["name"]: pod["status"]["podIP"] for pod in pods if pod["metadata"]["name"].startswith(prefix)
    }


async def roll(raft: RaftTest) -> None:
    patch: dict[str, Any] = {"spec": {"rollout": {"restart": "again"}}}
    await raft.kube.patch(RAFT_CLUSTERS, "q", patch, raft.namespace, manager="e2e")


async def test_the_old_generation_refuses_writes_and_names_the_new_leader(raft: RaftTest) -> None:
    await raft.apply(rollout={**QUICK["rollout"], "retireDelay": "1h"})
    await raft.until_current(generation=1)
    await roll(raft)
    await raft.until_state("Retiring")
    keys = await keys_of(raft)
    async with raft.client() as client:
        for address in (await addresses(raft, 1)).values():
            data = f"to {address}".encode()
            (answer,) = await asyncio.to_thread(update_at, address, keys, client.new_reqid(), data)
            assert answer.status is UpdateStatus.NOT_LEADER
            assert answer.leader is not None
            assert answer.leader.startswith("q-server-g2-")
            assert data not in [bytes(entry.data) async for entry in client.entries()]


async def test_a_leader_that_slept_through_the_fence_acknowledges_nothing(raft: RaftTest) -> None:
    await raft.apply(rollout={**QUICK["rollout"], "retireDelay": "1h"}, **LOADED)
    document = await raft.until_current(generation=1)
    sleeper = document["status"]["leader"]
    address = (await addresses(raft, 1))[sleeper]
    raft.signal(sleeper, signal.SIGSTOP)
    await roll(raft)
    await raft.until_state("Retiring", timeout_s=120)
    keys = await keys_of(raft)
    async with raft.client() as client:
        reqid = client.new_reqid()
        sending = asyncio.create_task(asyncio.to_thread(update_at, address, keys, reqid, b"from the past"))
        raft.signal(sleeper, signal.SIGCONT)
        answers = await sending
        assert UpdateStatus.DONE not in [answer.status for answer in answers]
        await client.update(b"after")
        assert b"from the past" not in [bytes(entry.data) async for entry in client.entries()]
