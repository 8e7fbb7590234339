"""The encoding of the C++ library libtribe: no addresses, generations in few places (docs/specs/swim.md 4).

A node speaks one encoding, for the two cannot be told apart (``Config.encoding``).
"""

from collections.abc import Callable

from pavane.swim.errors import DropReason
from pavane.swim.wire.messages import (
    Broadcast,
    JoinAck,
    JoinNak,
    JoinRedirect,
    JoinReq,
    Message,
    PingRequest,
    PingResponse,
)
from pavane.swim.wire.messages import decode as decode_v1
from pavane.swim.wire.payload import decode_payload
from pavane.swim.wire.values import UNSPECIFIED, NodeId, NodeInfo, read_blob, write_blob
from pavane.wire import LocalProtocolError, Reader, RemoteProtocolError, Writer

TTL_AT = 9  # offset of the ttl in a ping
LENGTH_BYTES_READ = (2, 8)  # what it should write, and what it writes


def encode(message: Message) -> bytes:
    """Return the datagram; raises ``LocalProtocolError`` for a message that this encoding does not have.

    Addresses, and generations for which there is no place, are left out.
    """
    writer = Writer().uint_le(message.CODE, 1)
    match message:
        case JoinReq():
            _write_info(writer, message.src)
            write_blob(writer, message.token)
            write_blob(writer, message.auth)
        case JoinAck():
            _write_info(writer, message.desc)
        case Broadcast():
            _write_info(writer, message.src)
        case JoinRedirect() | JoinNak():
            return message.encode()
        case PingRequest():
            writer.uint_le(message.src.id, 4).uint_le(message.target.id, 4).uint_le(message.ttl, 1)
            _write_payload(writer, message.payload.encode())
        case PingResponse():
            writer.uint_le(message.src.id, 4).uint_le(message.target.id, 4).uint_le(message.target.gen, 4)
            writer.uint_le(message.ttl, 1)
            _write_payload(writer, message.payload.encode())
        case _:
            raise LocalProtocolError("libtribe has no Leave")
    return writer.getvalue()


def decode(datagram: bytes | memoryview) -> Message:
    """Read one datagram; addresses are ``UNSPECIFIED`` and missing generations 0.

    Raises ``RemoteProtocolError`` with a reason of 3.3 and nothing else.
    """
    reader = Reader(datagram)
    code = reader.uint_le(1)
    if code in (JoinRedirect.CODE, JoinNak.CODE):
        return decode_v1(datagram)
    read = _READERS.get(code)
    if read is None:
        raise RemoteProtocolError(DropReason.BYTECODE, f"{code:#04x}")
    message = read(reader)
    if reader.remaining:
        raise RemoteProtocolError(DropReason.TRAILING, f"{reader.remaining} bytes")
    return message


def _read_join(body: memoryview) -> JoinReq:
    """Read a JoinReq with lengths of either width; the fault of the first attempt is the one that is told."""
    faults = []
    for size in LENGTH_BYTES_READ:
        reader = Reader(body)
        try:
            src = _read_info(reader)
            token = bytes(reader.take(reader.uint_le(size)))
            auth = bytes(reader.take(reader.uint_le(size)))
            if not reader.remaining:
                return JoinReq(src, token, auth)
            faults.append(RemoteProtocolError(DropReason.TRAILING, f"{reader.remaining} bytes"))
        except RemoteProtocolError as error:
            faults.append(error)
    raise faults[0]


def _read_request(reader: Reader) -> PingRequest:
    src, target, ttl = reader.uint_le(4), reader.uint_le(4), reader.uint_le(1)
    return PingRequest(NodeId(src, 0), NodeId(target, 0), ttl, decode_payload(_records(reader)))


def _read_response(reader: Reader) -> PingResponse:
    src, replier, gen, ttl = reader.uint_le(4), reader.uint_le(4), reader.uint_le(4), reader.uint_le(1)
    return PingResponse(NodeId(src, 0), NodeId(replier, gen), ttl, decode_payload(_records(reader)))


def _records(reader: Reader) -> memoryview:
    """Read the payload, which may be absent; what is left over is told before its records' faults."""
    records = read_blob(reader) if reader.remaining else reader.rest()
    if reader.remaining:
        raise RemoteProtocolError(DropReason.TRAILING, f"{reader.remaining} bytes")
    return records


def _read_info(reader: Reader) -> NodeInfo:
    return NodeInfo(reader.uint_le(4), reader.uint_le(4), UNSPECIFIED)


def _write_info(writer: Writer, info: NodeInfo) -> None:
    writer.uint_le(info.id, 4).uint_le(info.gen, 4)


def _write_payload(writer: Writer, records: bytes) -> None:
    if records:
        write_blob(writer, records)


_READERS: dict[int, Callable[[Reader], Message]] = {
    JoinReq.CODE: lambda reader: _read_join(reader.rest()),
    JoinAck.CODE: lambda reader: JoinAck(_read_info(reader)),
    PingRequest.CODE: _read_request,
    PingResponse.CODE: _read_response,
    Broadcast.CODE: lambda reader: Broadcast(_read_info(reader)),
}
