"""Messages as rows of a table: each attribute is one frame, in the order of the class (docs/specs/raft.md 3, 4).

A class names its ``FIELDS``; where a frame depends on another one, or a class is made for every entry, it encodes and
decodes itself, and says how many frames it needs: ``REQUIRED``.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

from pavane.raft.wire.frames import (
    CLIENT_ID_BYTES,
    MESSAGE_ID_BYTES,
    REQID_BYTES,
    Frame,
    Frames,
    decode_bool,
    decode_string,
    decode_uint,
    encode_bool,
    encode_uint,
)

HEAD_FRAMES = 3  # of a request as a ROUTER's application sees it: id, type, ident


class IdBytes(NamedTuple):
    """How long the id frame of a request may be."""

    min: int
    max: int


RPC = IdBytes(1, MESSAGE_ID_BYTES)  # of a peer
CHANGE = IdBytes(REQID_BYTES, REQID_BYTES)  # takes effect once
QUERY = IdBytes(0, CLIENT_ID_BYTES)


class Field(NamedTuple):
    """How an attribute becomes a frame and is read from it; the frame of an ``optional`` one is missing for None."""

    encode: Callable[[Any], Frame]
    decode: Callable[[Frame], Any]
    optional: bool = False


UINT = Field(encode_uint, decode_uint)
UINT_OR_NONE = Field(encode_uint, decode_uint, optional=True)
BOOL = Field(encode_bool, decode_bool)
TEXT = Field(str.encode, decode_string)
TEXT_OR_NONE = Field(str.encode, decode_string, optional=True)


def as_it_is(frame: Frame) -> Frame:
    """Return ``frame``: a field that stays bytes, or a view of the input."""
    return frame


BYTES = Field(as_it_is, as_it_is)


class _Row:
    """What requests and replies have in common; frames behind those of ``FIELDS`` are ignored."""

    __slots__ = ()

    FIELDS: ClassVar[tuple[Field, ...]] = ()
    REQUIRED: ClassVar[int] = 0
    _READERS: ClassVar[tuple[Callable[[Frame], Any], ...]] = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        if "REQUIRED" not in vars(cls):
            cls.REQUIRED = sum(not field.optional for field in cls.FIELDS)
        cls._READERS = tuple(field.decode for field in cls.FIELDS)

    def _encoded(self) -> list[Frame]:
        frames = []
        for name, field in zip(self.__match_args__, self.FIELDS, strict=True):
            value = getattr(self, name)
            if value is not None or not field.optional:
                frames.append(field.encode(value))
        return frames

    @classmethod
    def _decoded(cls, frames: Frames) -> Self:
        return cls(*[read(frame) for read, frame in zip(cls._READERS, frames, strict=False)])


class RequestRow(_Row):
    """A request of ``TYPE`` that has ``REQUIRED`` frames or more behind the ident, and an id frame of ``ID`` bytes."""

    __slots__ = ()

    TYPE: ClassVar[bytes]
    ID: ClassVar[IdBytes] = QUERY

    def encode(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        return (self.TYPE, ident, *self._encoded())

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read fields from frame 4 on."""
        return cls._decoded(frames[HEAD_FRAMES:])


class ReplyRow(_Row):
    """A reply that has ``REQUIRED`` frames or more behind the id."""

    __slots__ = ()

    def encode(self) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        return tuple(self._encoded())

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the frames behind the id."""
        return cls._decoded(frames)
