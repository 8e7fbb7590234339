"""The one total decoder of requests, replies and broadcasts: a message or a counted reason (docs/specs/raft.md 3.4)."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, TypeAlias, TypeVar

from pavane.raft.errors import DropReason
from pavane.raft.wire import pv, pv_update, requests
from pavane.raft.wire.frames import CLIENT_ID_BYTES, FRAMES_MAX, MESSAGE_ID_BYTES, REQID_BYTES, Frame, Frames
from pavane.raft.wire.rows import HEAD_FRAMES
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
    id_bytes_min: int = 0
    id_bytes_max: int = CLIENT_ID_BYTES


def _rpc(decode: Callable[[Frames], Request], fields: int) -> _Form:
    return _Form(decode, HEAD_FRAMES + fields, 1, MESSAGE_ID_BYTES)


def _change(decode: Callable[[Frames], Request]) -> _Form:
    return _Form(decode, HEAD_FRAMES + 1, REQID_BYTES, REQID_BYTES)


def _query(decode: Callable[[Frames], Request], fields: int) -> _Form:
    return _Form(decode, HEAD_FRAMES + fields)


_DISPATCH = _query(requests.ClientDispatch.decode, 0)
_FORMS = {
    requests.VOTE: _rpc(requests.RequestVote.decode, 4),
    requests.APPEND: _rpc(requests.AppendEntries.decode, 5),
    requests.SNAPSHOT: _rpc(requests.InstallSnapshot.decode, 7),
    requests.CONFIG: _query(requests.RequestConfig.decode, 0),
    requests.LOG_INFO: _query(requests.RequestLogInfo.decode, 0),
    requests.UPDATE: _change(requests.RequestUpdate.decode),
    requests.CONFIG_UPDATE: _change(requests.ConfigUpdate.decode),
    requests.ENTRIES: _query(requests.RequestEntries.decode, 1),
    requests.BROADCAST_URL: _query(requests.RequestBroadcastUrl.decode, 0),
    pv.HELLO: _query(pv.PvHello.decode, 4),
    pv.VOTE: _rpc(pv.PvVote.decode, 5),
    pv.APPEND: _rpc(pv.PvAppend.decode, 6),
    pv.SNAPSHOT: _rpc(pv.PvSnapshot.decode, 7),
    pv.NOW: _rpc(pv.PvNow.decode, 4),
    pv.FOLLOW: _query(pv.PvFollow.decode, 4),
    pv_update.UPDATE: _query(pv_update.PvUpdate.decode, 1),
    pv.KV: _change(pv.PvKv.decode),
    pv.READ: _query(pv.PvRead.decode, 1),
    pv.WATCH: _query(pv.PvWatch.decode, 1),
    pv.LEASE: _query(pv.PvLease.decode, 1),
    pv.STATUS: _query(pv.PvStatus.decode, 0),
    pv.TRANSFER: _query(pv.PvTransfer.decode, 1),
}
_TYPE_BYTES_MAX = max(map(len, _FORMS))
