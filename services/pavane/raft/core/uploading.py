"""A leader's snapshot on its way to one peer: one chunk outstanding (docs/specs/raft.md 7.3, 7.4, 9.3)."""

from collections.abc import Callable
from dataclasses import dataclass

from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Channel, Corrupt, PeerChannel, SnapshotChanged
from pavane.raft.core.requests import Ask, Requests
from pavane.raft.state.commands import SnapshotSource
from pavane.raft.wire.pv import PvSnapshot
from pavane.raft.wire.replies import InstallSnapshotReply
from pavane.raft.wire.requests import InstallSnapshot

BARE_CHUNK_BYTES = 64 * 1024  # what the original sends and takes
WHOLE_CHUNK_BYTES = 1 << 20


@dataclass(slots=True)
class Upload:
    """One transfer. It keeps its file open, so a newer snapshot does not disturb it; ``close`` when it ends."""

    peer: str
    url: str
    source: SnapshotSource
    whole: bool
    since: float
    repeat_at: float = 0.0
    offset: int = 0
    ask: Ask | None = None
    sequence: int = 0

    @property
    def index(self) -> int:
        """The last entry that the snapshot covers."""
        return self.source.head.index

    @property
    def total(self) -> int:
        """Bytes to be sent: the whole file, or the machine's data alone."""
        return self.source.head.total if self.whole else self.source.head.data_bytes

    @property
    def to(self) -> PeerChannel:
        """The socket that the form of the message asks for."""
        return PeerChannel(Channel.SIDE if self.whole else Channel.RPC, self.peer, self.url)


class Uploading:
    """Begins, drives and ends transfers; what an answer means for the peer's progress is the replication's."""

    def __init__(self, node: Node, requests: Requests, answered: Callable[[Ask, InstallSnapshotReply], None]) -> None:
        self._node = node
        self._requests = requests
        self._answered = answered

    def begin(self, peer: str, url: str, *, whole: bool) -> Upload | None:
        """Open the newest snapshot for a peer; one that cannot be read halts us: the next start finds the damage."""
        node = self._node
        if node.snapshot is None:
            return None
        try:
            source = node.log.open_snapshot(node.snapshot.index)
        except OSError:
            node.halt(Corrupt(node.snapshot.index))
            return None
        return Upload(peer, url, source, whole, node.now.mono)

    def send(self, upload: Upload, sequence: int) -> None:
        """Send the next chunk; the empty one of an empty snapshot is sent too."""
        node, head = self._node, upload.source.head
        size = min(WHOLE_CHUNK_BYTES if upload.whole else BARE_CHUNK_BYTES, upload.total - upload.offset)
        start = upload.offset if upload.whole else head.data_offset + upload.offset
        try:
            chunk = upload.source.read(start, size)
        except OSError:
            node.halt(Corrupt(head.index))
            return
        message = PvSnapshot if upload.whole else InstallSnapshot
        upload.sequence = sequence
        upload.ask = self._requests.ask(
            upload.to,
            message(node.id, node.term, head.index, head.term, upload.offset, upload.total, chunk),
            InstallSnapshotReply,
            self._answered,
            after=node.term_ticket,
        )
        upload.repeat_at = node.now.mono + node.config.append_timeout_s

    def repeat(self, upload: Upload) -> None:
        """Send the outstanding chunk once more, with the same id and bytes."""
        if upload.ask is not None:
            self._requests.again(upload.ask)
            upload.repeat_at = self._node.now.mono + self._node.config.append_timeout_s

    def take(self, upload: Upload, reply: InstallSnapshotReply) -> bool:
        """Take the answer to the outstanding chunk; return whether all has arrived and is durable there."""
        sent = min(WHOLE_CHUNK_BYTES if upload.whole else BARE_CHUNK_BYTES, upload.total - upload.offset)
        upload.ask = None
        if reply.wanted_offset is not None:
            upload.offset = min(reply.wanted_offset, upload.total)
            return False
        upload.offset += sent
        if upload.offset < upload.total:
            return False
        self._node.event(SnapshotChanged("sent", upload.index, self._node.now.mono - upload.since))
        return True

    def end(self, upload: Upload) -> None:
        """Give a transfer up, or let go of one that is done."""
        self._requests.cancel(upload.ask)
        upload.source.close()
