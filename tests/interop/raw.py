"""Frames to one peer and back, without any client library in between."""

from typing import TypeVar

import zmq

from pavane.raft.wire.decoder import Drop, decode_reply
from pavane.raft.wire.pv import PvReply, PvStatus
from pavane.raft.wire.replies import RequestConfigReply, RequestLogInfoReply
from pavane.raft.wire.requests import RequestConfig, RequestLogInfo

IDENT = b"s3cr3t"
ANSWER_MS = 5000
LATE_MS = 50  # for an answer that should not come, behind one that was asked for later

ReplyT = TypeVar("ReplyT", RequestConfigReply, RequestLogInfoReply)


class Raw:
    """A DEALER that speaks to one peer; use it as a context manager."""

    def __init__(self, url: str) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(url)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *frames: bytes | memoryview) -> None:
        self._socket.send_multipart(frames)

    def receive(self, within_ms: int = ANSWER_MS) -> list[bytes]:
        """Return the next message, an empty list if none comes in time."""
        return self._socket.recv_multipart() if self._socket.poll(within_ms) else []

    def ask(self, *frames: bytes | memoryview, within_ms: int = ANSWER_MS) -> list[bytes]:
        self.send(*frames)
        return self.receive(within_ms)

    def is_silent(self, *frames: bytes) -> bool:
        """Whether the peer says nothing to this, though it answers the next request."""
        self.send(*frames)
        return self.ask(b"after", b"^", IDENT)[:1] == [b"after"] and self.receive(LATE_MS) == []


def _asked(url: str, request: RequestConfig | RequestLogInfo, kind: type[ReplyT], within_ms: int) -> ReplyT | None:
    with Raw(url) as raw:
        answer = raw.ask(b"\x01", *request.encode(IDENT), within_ms=within_ms)
    if not answer:
        return None
    reply = decode_reply(kind, answer[1:])
    assert not isinstance(reply, Drop), answer
    return reply


def is_recovering(url: str) -> bool:
    """Whether a peer of ours may not take part yet (docs/specs/raft.md 5.5)."""
    with Raw(url) as raw:
        answer = raw.ask(b"\x01", *PvStatus().encode(IDENT))
    reply = decode_reply(PvReply, answer[1:])
    assert isinstance(reply, PvReply), answer
    assert isinstance(reply.value, dict)
    return reply.value["role"] == "Recovering"


def configuration(url: str, within_ms: int = 1000) -> RequestConfigReply | None:
    """Ask a peer who leads and who the members are; None if it does not answer."""
    return _asked(url, RequestConfig(), RequestConfigReply, within_ms)


def log_info(url: str, within_ms: int = 1000) -> RequestLogInfoReply | None:
    """Ask a peer for the indices of its log; None if it does not answer."""
    return _asked(url, RequestLogInfo(), RequestLogInfoReply, within_ms)
