"""The client's sockets: nothing that came in is left lying (docs/specs/raft.md 14.3)."""

import asyncio
from collections.abc import Sequence

import pytest
import zmq

from pavane.raft.client import connections
from pavane.raft.client.causes import Causes
from pavane.raft.client.connections import Connections
from pavane.raft.messages import has_input
from pavane.raft.messages import send as really_send
from pavane.raft.wire.frames import Frame
from tests.services.raft.stranger import Stranger


async def test_an_answer_that_comes_while_waiting_messages_go_out_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    endpoint = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
    told: asyncio.Queue[list[bytes]] = asyncio.Queue()
    full = False

    def send(socket: "zmq.Socket[bytes]", frames: Sequence[Frame]) -> None:
        """Send when there is room. ØMQ notes what comes in meanwhile, and its descriptor is silent about it then."""
        if full:
            raise zmq.Again
        really_send(socket, frames)
        while frames[0] == b"second" and not has_input(socket):
            pass

    monkeypatch.setattr(connections, "send", send)
    loop = asyncio.get_running_loop()
    client = Connections(
        loop, None, lambda _, frames: told.put_nowait(frames), lambda *_: None, lambda: None, Causes(encrypts=False)
    )
    try:
        client.keep(frozenset({endpoint}))
        client.send(endpoint, (b"first",))
        route, first = await asyncio.to_thread(router.recv_multipart)
        full = True
        client.send(endpoint, (b"second",))
        full = False
        router.send_multipart([route, first])
        echoing = loop.run_in_executor(None, lambda: router.send_multipart(router.recv_multipart()))
        assert await told.get() == [b"first"]
        assert await told.get() == [b"second"]
        await echoing
    finally:
        client.close()
        context.destroy(linger=0)


async def test_a_message_that_found_no_room_goes_out_when_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """To send, ØMQ looks for new connections once in a millisecond; asked for events, it does so at once."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.set(zmq.RCVTIMEO, 20_000)
    endpoint = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
    refusals = 1

    def send(socket: "zmq.Socket[bytes]", frames: Sequence[Frame]) -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise zmq.Again
        really_send(socket, frames)

    monkeypatch.setattr(connections, "send", send)
    loop = asyncio.get_running_loop()
    up = asyncio.Event()
    client = Connections(loop, None, lambda *_: None, lambda *_: up.set(), lambda: None, Causes(encrypts=False))
    try:
        client.keep(frozenset({endpoint}))
        await up.wait()
        client.send(endpoint, (b"first",))
        assert (await asyncio.to_thread(router.recv_multipart))[1:] == [b"first"]
    finally:
        client.close()
        context.destroy(linger=0)


async def test_a_server_is_reached_behind_a_stranger_that_answered_in_its_place() -> None:
    """A proxy may do so before a Service has its rules, or a new pod with a former one's address."""
    context, stranger = zmq.Context(), Stranger()
    endpoint = stranger.url
    up = asyncio.Event()
    loop = asyncio.get_running_loop()
    client = Connections(
        loop,
        None,
        lambda *_: None,
        lambda _, stands: up.set() if stands else None,
        lambda: None,
        Causes(encrypts=False),
    )
    router = context.socket(zmq.ROUTER)
    try:
        client.keep(frozenset({endpoint}))
        await asyncio.to_thread(stranger.answer_and_go)
        router.bind(endpoint)
        await up.wait()
        client.send(endpoint, (b"hello",))
        assert (await asyncio.to_thread(router.recv_multipart))[1] == b"hello"
    finally:
        client.close()
        context.destroy(linger=0)
