"""The hello that opens a stream between two coordinators, and its answer (docs/specs/ambrosia.md 11.5)."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from pavane.ambrosia.errors import Reason
from pavane.ambrosia.wire.primitives import Buffer, Cursor, i32, string, zz32, zz64
from pavane.wire import RemoteProtocolError

HELLO = 32  # the task code of our transport; those of others are below
HELLO_VERSION = 1
HELLO_BYTES_MAX = 2048  # six names and numbers; nobody is known yet
TEXT_BYTES_MAX = 1024

DATA_OUT = "Ambrosiadataout"
DATA_IN = "Ambrosiadatain"
CONTROL_OUT = "Ambrosiacontrolout"
CONTROL_IN = "Ambrosiacontrolin"

Token = tuple[int, int]
"""(generation, revision of the log lock), compared in this order; (0, 0) without a registry."""


class Channel(IntEnum):
    """What a stream carries."""

    DATA = 0
    CONTROL = 1

    @property
    def ends(self) -> tuple[str, str]:
        """The endpoint names of its from side and its to side."""
        return (DATA_OUT, DATA_IN) if self is Channel.DATA else (CONTROL_OUT, CONTROL_IN)


class Code(IntEnum):
    """How a hello was taken."""

    SUCCESS = 0
    UNKNOWN = 1
    NOT_LIVE = 6
    OLD_TOKEN = 11
    DIVERGED = 12
    VERSION = 13


@dataclass(frozen=True, slots=True)
class Hello:
    """What the dialler, the from side, says first."""

    source: str
    target: str
    channel: Channel
    process: str
    token: Token
    committer: int

    def encode(self) -> bytes:
        """Encode the message."""
        out, into = self.channel.ends
        names = b"".join(string(name) for name in (self.source, out, self.target, into, self.process))
        numbers = zz64(self.token[0]) + zz64(self.token[1]) + i32(self.committer)
        return zz32(HELLO) + zz32(HELLO_VERSION) + names + numbers

    @classmethod
    def decode(cls, data: Buffer) -> tuple[Self, int] | None:
        """Return the hello and its length, ``None`` while it is not all there; raises ``RemoteProtocolError``."""
        cursor = Cursor(data)
        try:
            if cursor.zz32() != HELLO or cursor.zz32() != HELLO_VERSION:
                raise RemoteProtocolError(Reason.VERSION, "not a hello of this version")
            source, out, target, into, process = (cursor.string() for _ in range(5))
            token = (cursor.zz64(), cursor.zz64())
            committer = cursor.i32()
        except RemoteProtocolError as error:
            if error.reason == Reason.SHORT and len(data) < HELLO_BYTES_MAX:
                return None
            raise
        for channel in Channel:
            if channel.ends == (out, into):
                return cls(source, target, channel, process, token, committer), cursor.position
        raise RemoteProtocolError(Reason.NAME, f"no stream leads from {out!r} to {into!r}")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the other side answers; ``token`` is the greatest it knows of the dialler's instance."""

    code: int
    token: Token = (0, 0)
    text: str = ""

    def encode(self) -> bytes:
        """Encode the message."""
        return zz32(self.code) + zz64(self.token[0]) + zz64(self.token[1]) + string(self.text)

    @classmethod
    def decode(cls, data: Buffer) -> tuple[Self, int] | None:
        """Return the answer and its length, ``None`` while it is not all there; raises ``RemoteProtocolError``."""
        cursor = Cursor(data)
        try:
            answer = cls(cursor.zz32(), (cursor.zz64(), cursor.zz64()), cursor.string(TEXT_BYTES_MAX))
        except RemoteProtocolError as error:
            if error.reason == Reason.SHORT and len(data) < HELLO_BYTES_MAX:
                return None
            raise
        return answer, cursor.position
