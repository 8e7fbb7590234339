"""Addresses, node ids and states: the small values of every message (docs/specs/swim.md 2.1, 3.1)."""

from enum import IntEnum
from ipaddress import ip_address
from typing import NamedTuple

from pavane.swim.errors import DropReason
from pavane.wire import RemoteProtocolError
from pavane.wire.fields import Data, Ids, Layout, Scalar, taken

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
        out = bytearray()
        ADDRESS.put(out, self)
        return bytes(out)

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


class AddressField:
    """An Address: its family, and unless that is 0 the port in network order and the ip."""

    size_min = 2

    def put(self, out: bytearray, value: Address) -> None:
        """Append ``value``."""
        U16.put(out, _FAMILY_OF_SIZE[len(value.ip)])
        if value.ip:
            _PORT.put(out, value.port)
            out += value.ip

    def get(self, body: bytes, at: int) -> tuple[Address, int]:
        """Read the address at ``at``; raises ``RemoteProtocolError`` (``short``, ``family``)."""
        family, at = U16.get(body, at)
        size = _SIZE_OF_FAMILY.get(family)
        if size is None:
            raise RemoteProtocolError(DropReason.FAMILY, f"{family}")
        if size == 0:
            return UNSPECIFIED, at
        port, at = _PORT.get(body, at)
        return Address(taken(body, at, size), port), at + size


U8, U16, U32, U64 = (Scalar(code, "<") for code in "BHIQ")
_PORT = Scalar("H")
ADDRESS = AddressField()
NODE = Ids("<II", NodeId)
INFO = Layout(NodeInfo, U32, U32, ADDRESS)
BLOB = Data("<H")
