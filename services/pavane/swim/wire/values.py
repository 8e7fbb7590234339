"""Addresses, node ids and states: the small values of every message (docs/specs/swim.md 2.1, 3.1)."""

from collections.abc import Callable
from enum import IntEnum
from ipaddress import ip_address
from typing import NamedTuple, TypeVar

from pavane.swim.errors import DropReason
from pavane.wire import Reader, RemoteProtocolError, Writer

T = TypeVar("T")

U32_MAX = (1 << 32) - 1
_FAMILY_OF_SIZE = {0: 0, 4: 2, 16: 10}
_SIZE_OF_FAMILY = {family: size for size, family in _FAMILY_OF_SIZE.items()}
_MAPPED = bytes(10) + b"\xff\xff"  # IPv4 inside IPv6


class State(IntEnum):
    """What is believed of a peer. DEAD and LEFT entries are tombstones."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


class NodeStage(IntEnum):
    """How far a node takes part (16.1). JOINING is never on the wire."""

    JOINING = 0
    READ_ONLY = 1  # an observer: admits and accuses nobody
    READ_WRITE = 2
    DRAINING = 3  # about to leave


class Address(NamedTuple):
    """Where datagrams go: ``ip`` of 4 or 16 bytes and a UDP port.

    Without an ip it is family 0, "use the source of this datagram" (``UNSPECIFIED``).
    """

    ip: bytes
    port: int

    @classmethod
    def of(cls, host: str, port: int) -> "Address":
        """Make an address of a numeric host; IPv4 inside IPv6 becomes IPv4. Raises ``ValueError`` for a name."""
        return cls(ip_address(host).packed, port).plain()

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read what ``str()`` gives (``10.3.2.1:7946``, ``[2001:db8::7]:7946``); raises ``ValueError``."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdecimal() or int(port) > 0xFFFF:
            raise ValueError(f"{text!r} is no address and port, as 10.3.2.1:7946 is")
        return cls.of(host.removeprefix("[").removesuffix("]"), int(port))

    @property
    def host(self) -> str:
        """The numeric host as sockets take it."""
        return str(ip_address(self.ip))

    def plain(self) -> "Address":
        """Return the address with IPv4 inside IPv6 as IPv4: what is compared, stored and dialled (2.3)."""
        return Address(self.ip[12:], self.port) if len(self.ip) == 16 and self.ip.startswith(_MAPPED) else self

    def encode(self) -> bytes:
        """Return family, port (big-endian) and ip."""
        writer = Writer()
        write_address(writer, self)
        return writer.getvalue()

    def __str__(self) -> str:
        if not self.ip:
            return "unspecified"
        return f"[{self.host}]:{self.port}" if len(self.ip) == 16 else f"{self.host}:{self.port}"


UNSPECIFIED = Address(b"", 0)


class NodeId(NamedTuple):
    """A node number and its generation."""

    id: int
    gen: int


class NodeInfo(NamedTuple):
    """A node number, its generation and where it is; the address may be ``UNSPECIFIED``."""

    id: int
    gen: int
    address: Address

    @property
    def node(self) -> NodeId:
        """The id without the address."""
        return NodeId(self.id, self.gen)

    @property
    def size(self) -> int:
        """Bytes on the wire: 10, 16 or 28."""
        return 10 + (len(self.address.ip) + 2 if self.address.ip else 0)


def write_address(writer: Writer, address: Address) -> None:
    """Append an Address field."""
    writer.uint_le(_FAMILY_OF_SIZE[len(address.ip)], 2)
    if address.ip:
        writer.uint_be(address.port, 2).raw(address.ip)


def read_address(reader: Reader) -> Address:
    """Read an Address field; raises ``RemoteProtocolError`` (``short``, ``family``)."""
    family = reader.uint_le(2)
    size = _SIZE_OF_FAMILY.get(family)
    if size is None:
        raise RemoteProtocolError(DropReason.FAMILY, f"{family}")
    if size == 0:
        return UNSPECIFIED
    port = reader.uint_be(2)
    return Address(bytes(reader.take(size)), port)


def write_node(writer: Writer, node: NodeId) -> None:
    """Append a NodeID field."""
    writer.uint_le(node.id, 4).uint_le(node.gen, 4)


def read_node(reader: Reader) -> NodeId:
    """Read a NodeID field; raises ``RemoteProtocolError("short")``."""
    return NodeId(reader.uint_le(4), reader.uint_le(4))


def write_info(writer: Writer, info: NodeInfo) -> None:
    """Append a NodeInfo field."""
    writer.uint_le(info.id, 4).uint_le(info.gen, 4)
    write_address(writer, info.address)


def read_info(reader: Reader) -> NodeInfo:
    """Read a NodeInfo field; raises ``RemoteProtocolError`` (``short``, ``family``)."""
    return NodeInfo(reader.uint_le(4), reader.uint_le(4), read_address(reader))


def read_all(reader: Reader, read: Callable[[Reader], T]) -> tuple[T, ...]:
    """Read values until nothing is left."""
    values = []
    while reader.remaining:
        values.append(read(reader))
    return tuple(values)


def write_blob(writer: Writer, data: bytes) -> None:
    """Append a u16 length and ``data``."""
    writer.uint_le(len(data), 2).raw(data)


def read_blob(reader: Reader) -> memoryview:
    """Read a u16 length and that many bytes; raises ``RemoteProtocolError("short")``."""
    return reader.take(reader.uint_le(2))
