"""The encoding of the C++ library libtribe: no addresses, generations in few places (docs/specs/swim.md 4).

A node speaks one encoding, for the two cannot be told apart (``Config.encoding``).
"""

from contextlib import suppress

from pavane.swim.errors import DropReason
from pavane.swim.wire.messages import (
    Broadcast,
    JoinAck,
    JoinNak,
    JoinRedirect,
    JoinReq,
    Message,
    PayloadField,
    PingRequest,
    PingResponse,
)
from pavane.swim.wire.messages import decode as decode_v1
from pavane.swim.wire.payload import Payload
from pavane.swim.wire.values import BLOB, NODE, U8, U32, UNSPECIFIED, NodeId, NodeInfo
from pavane.wire import RemoteProtocolError
from pavane.wire.fields import Data, Layout, Table

TTL_AT = 9  # offset of the ttl in a ping


def encode(message: Message) -> bytes:
    """Return the datagram; raises ``LocalProtocolError`` for a message that this encoding does not have.

    Addresses, and generations for which there is no place, are left out.
    """
    if isinstance(message, JoinRedirect | JoinNak):
        return message.encode()
    return bytes(_TABLE.encode(message))


def decode(datagram: bytes | memoryview) -> Message:
    """Read one datagram; addresses are ``UNSPECIFIED`` and missing generations 0.

    Raises ``RemoteProtocolError`` with a reason of 3.3 and nothing else.
    """
    body = bytes(datagram)
    if not body or body[0] in (JoinRedirect.CODE, JoinNak.CODE):
        return decode_v1(body)
    try:
        message: Message = _TABLE.decode(body)
    except RemoteProtocolError:
        if body[0] == JoinReq.CODE:
            with suppress(RemoteProtocolError):
                return _WIDE_JOIN.decode(body, 1)
        raise  # the fault of the first attempt
    return message


class _Info:
    """A NodeInfo without its address."""

    size_min = 8

    def put(self, out: bytearray, value: NodeInfo) -> None:
        NODE.put(out, value.node)

    def get(self, body: bytes, at: int) -> tuple[NodeInfo, int]:
        node, at = NODE.get(body, at)
        return NodeInfo(*node, UNSPECIFIED), at


class _Number:
    """A NodeId without its generation."""

    size_min = 4

    def put(self, out: bytearray, value: NodeId) -> None:
        U32.put(out, value.id)

    def get(self, body: bytes, at: int) -> tuple[NodeId, int]:
        number, at = U32.get(body, at)
        return NodeId(number, 0), at


class _NoPayload:
    """No place for a payload."""

    size_min = 0

    def put(self, out: bytearray, value: Payload) -> None:
        pass

    def get(self, body: bytes, at: int) -> tuple[Payload, int]:
        return Payload(), at


_INFO, _NUMBER, _PAYLOAD = _Info(), _Number(), PayloadField(optional=True)
_TABLE = Table(
    {
        JoinReq.CODE: Layout(JoinReq, _INFO, BLOB, BLOB),
        JoinAck.CODE: Layout(JoinAck, _INFO, _NoPayload()),
        PingRequest.CODE: Layout(PingRequest, _NUMBER, _NUMBER, U8, _PAYLOAD),
        PingResponse.CODE: Layout(PingResponse, _NUMBER, NODE, U8, _PAYLOAD),
        Broadcast.CODE: Layout(Broadcast, _INFO),
    },
    DropReason.BYTECODE,
)
_WIDE_JOIN = Layout(JoinReq, _INFO, Data("<Q"), Data("<Q"))  # libtribe should write lengths of 2 bytes, and writes 8
