"""Whole ØMQ messages on plain non-blocking sockets (docs/specs/raft.md 14.3): what peers and clients have in common.

Every call here is made for each message or frame. So flags are plain integers: combining ØMQ's enumerations costs more
than the call that they are for.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import zmq

from pavane.raft.wire.frames import FRAMES_MAX, Frame

if TYPE_CHECKING:
    Socket = zmq.Socket[bytes]

_INPUT = int(zmq.POLLIN)
_OUTPUT = int(zmq.POLLOUT)
_LAST_FRAME = int(zmq.DONTWAIT)
_MORE_FRAMES = int(zmq.DONTWAIT | zmq.SNDMORE)


def has_input(socket: "Socket") -> bool:
    """Say whether a message can be received; this also takes back what the descriptor announced."""
    return bool(cast("int", socket.get(zmq.EVENTS)) & _INPUT)


def has_room(socket: "Socket") -> bool:
    """Say whether a message can be sent; this, too, takes back what the descriptor announced."""
    return bool(cast("int", socket.get(zmq.EVENTS)) & _OUTPUT)


def descriptor(socket: "Socket") -> int:
    """Return the descriptor that becomes readable when there may be news: an edge, so look until there are none."""
    return cast("int", socket.get(zmq.FD))


def receive(socket: "Socket", heard: dict[bytes, zmq.Frame] | None = None) -> list[bytes] | None:
    """Take one message; None if it has more than FRAMES_MAX frames, of which the excess is read and discarded.

    ``heard`` gets its first frame, by what is in it. Raises ``zmq.Again`` if there is no message.
    """
    # A frame object knows whether more follow; asking the socket costs as much as receiving.
    frame = socket.recv(_LAST_FRAME, copy=False)
    frames = [frame.bytes]
    if heard is not None:
        heard[frames[0]] = frame
    excess = False
    while frame.more:
        frame = socket.recv(_LAST_FRAME, copy=False)
        if len(frames) <= FRAMES_MAX:
            frames.append(frame.bytes)
        else:
            excess = True
    return None if excess else frames


def send(socket: "Socket", frames: Sequence[Frame]) -> None:
    """Send one message; only its first frame can find no room, so that a message goes whole or not at all.

    Raises ``zmq.ZMQError``: ``Again`` without room, ``EHOSTUNREACH`` for a route that is gone.
    """
    for frame in frames[:-1]:
        socket.send(frame, _MORE_FRAMES)
    socket.send(frames[-1], _LAST_FRAME)
