"""The one total decoder of requests, replies and broadcasts: a message or a counted reason (docs/specs/raft.md 3.4)."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, TypeAlias, TypeVar, get_args

from pavane.raft.errors import DropReason
from pavane.raft.wire import pv, pv_update, requests
from pavane.raft.wire.frames import FRAMES_MAX, Frame, Frames
from pavane.raft.wire.rows import HEAD_FRAMES, QUERY
from pavane.wire import RemoteProtocolError

PeerRequest: TypeAlias = (
    requests.RequestVote
    | requests.AppendEntries
    | requests.InstallSnapshot
    | pv.PvHello
    | pv.PvVote
    | pv.PvAppend
    | pv.PvSnapshot
    | pv.PvNow
    | pv.PvFollow
)
ClientRequest: TypeAlias = (
    requests.RequestConfig
    | requests.RequestLogInfo
    | requests.RequestUpdate
    | requests.ConfigUpdate
    | requests.RequestEntries
    | requests.RequestBroadcastUrl
    | requests.ClientDispatch
    | pv_update.PvUpdate
    | pv.PvKv
    | pv.PvRead
    | pv.PvWatch
    | pv.PvWatchAcknowledge
    | pv.PvLease
    | pv.PvStatus
    | pv.PvTransfer
)
Request: TypeAlias = PeerRequest | ClientRequest


@dataclass(frozen=True, slots=True)
class Drop:
    """A message that is not taken; no answer is sent unless 3.4 names one."""

    reason: DropReason


class Reply(Protocol):
    """A reply class: the least number of frames behind the id, and how to read them."""

    REQUIRED: ClassVar[int]

    def encode(self) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        ...

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the frames behind the id; raises ``RemoteProtocolError``."""
        ...


AnyReply = TypeVar("AnyReply", bound=Reply)


def decode_request(frames: Frames, ident: bytes) -> Request | Drop:
    """Decode a request from a ROUTER: id first, the route frame taken off.

    ``ident`` is the cluster's; a request with another is a drop whatever else it holds. The id frame is checked for its
    length and stays with the caller.
    """
    if not HEAD_FRAMES <= len(frames) <= FRAMES_MAX:
        return Drop(DropReason.FRAMES)
    if not hmac.compare_digest(frames[2], ident):
        return Drop(DropReason.IDENT)
    kind = frames[1]
    form = _FORMS.get(bytes(kind)) if len(kind) <= _TYPE_BYTES_MAX else None
    if form is None:
        if len(kind) < 2 or kind[: len(pv.PREFIX)] == pv.PREFIX:
            return Drop(DropReason.TYPE)
        form = _DISPATCH
    if not form.id_bytes_min <= len(frames[0]) <= form.id_bytes_max:
        return Drop(DropReason.ID)
    if len(frames) < form.required:
        return Drop(DropReason.FRAMES)
    try:
        return form.decode(frames)
    except RemoteProtocolError as error:
        return Drop(DropReason(error.reason))


def decode_reply(reply: type[AnyReply], frames: Frames) -> AnyReply | Drop:
    """Decode the ``frames`` behind the id of a reply by the class that answers the request sent."""
    if not reply.REQUIRED <= len(frames) <= FRAMES_MAX:
        return Drop(DropReason.FRAMES)
    try:
        return reply.decode(frames)
    except RemoteProtocolError as error:
        return Drop(DropReason(error.reason))


def decode_broadcast(frames: Frames, ident: bytes) -> requests.StateBroadcast | Drop:
    """Decode a message of the PUB socket; the topic has to be the whole ident, for filters only match prefixes."""
    if not 3 <= len(frames) <= FRAMES_MAX:
        return Drop(DropReason.FRAMES)
    if not hmac.compare_digest(frames[0], ident):
        return Drop(DropReason.IDENT)
    try:
        return requests.StateBroadcast.decode(frames)
    except RemoteProtocolError as error:
        return Drop(DropReason(error.reason))


@dataclass(frozen=True, slots=True)
class _Form:
    """What one type of request needs before its fields are looked at."""

    decode: Callable[[Frames], Request]
    required: int
    id_bytes_min: int
    id_bytes_max: int


def _watch(frames: Frames) -> pv.PvWatch | pv.PvWatchAcknowledge:
    """Read a query, or, if there are two frames, the acknowledgement of a message."""
    return (pv.PvWatchAcknowledge if len(frames) > HEAD_FRAMES + 1 else pv.PvWatch).decode(frames)


_DISPATCH = _Form(requests.ClientDispatch.decode, HEAD_FRAMES, *QUERY)
_FORMS = {
    kind.TYPE: _Form(kind.decode, HEAD_FRAMES + kind.REQUIRED, *kind.ID)
    for kind in get_args(Request)
    if kind is not requests.ClientDispatch
}
_FORMS[pv.PvWatch.TYPE] = _Form(_watch, HEAD_FRAMES + pv.PvWatch.REQUIRED, *pv.PvWatch.ID)
_TYPE_BYTES_MAX = max(map(len, _FORMS))
