"""Receiving a leader's snapshot, in the original's bare form or as a whole file (docs/specs/raft.md 9.4)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pavane.raft.core.election import Election
from pavane.raft.core.follower import Follower
from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Channel, Corrupt, PeerChannel, Route, SnapshotChanged
from pavane.raft.core.recovering import Recovering
from pavane.raft.core.requests import Ask, Requests
from pavane.raft.errors import DropReason
from pavane.raft.state.commands import SnapshotPart, StoredSnapshot
from pavane.raft.wire.frames import Frame
from pavane.raft.wire.pv import PvSnapshot
from pavane.raft.wire.replies import InstallSnapshotReply, RequestConfigReply
from pavane.raft.wire.requests import InstallSnapshot, RequestConfig
from pavane.raft.wire.snapshot import (
    SNAPSHOT_BYTES_MAX,
    BadSnapshotFile,
    SnapshotHead,
    SnapshotMeta,
    SnapshotScan,
)

ASK_S = 1.0  # between questions for the configuration
LEVEL_BARE = 1  # the original knows no levels


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a snapshot up to entry ``index``, whichever message it came in.

    ``term`` is that of this entry, ``None`` if only the file tells; ``whole`` says that it is the file, not bare data.
    ``sender`` is whose bare data it is: those of two peers may differ, and have no digest that would tell.
    """

    index: int
    term: int | None
    offset: int
    total: int
    data: Frame
    whole: bool
    sender: str = ""

    @property
    def key(self) -> tuple[int, int | None, int, bool, str]:
        """What all pieces of one transfer have in common."""
        return self.index, self.term, self.total, self.whole, self.sender


@dataclass(slots=True)
class _Transfer:
    key: tuple[int, int | None, int, bool, str]
    since: float
    taken: int = 0
    scan: SnapshotScan = field(default_factory=SnapshotScan)


class Installing:
    """Puts the pieces together; one transfer at a time, in memory only its meta part."""

    def __init__(
        self,
        node: Node,
        requests: Requests,
        following: Follower,
        election: Election,
        recovering: Recovering,
        forgotten_before: Callable[[], int],
    ) -> None:
        """``forgotten_before`` is the Unix second before which the original may have compacted request ids."""
        self._node = node
        self._follower = following
        self._election = election
        self._recovering = recovering
        self._forgotten_before = forgotten_before
        self._transfer: _Transfer | None = None
        self._requests = requests
        self._ask_at = node.now.mono

    @property
    def taken(self) -> int:
        """Bytes that have come of the snapshot on its way, 0 if there is none."""
        return 0 if self._transfer is None else self._transfer.taken

    def next_timer(self) -> float | None:
        """Return when to ask the leader for its configuration again, if a bare snapshot left that open."""
        return self._ask_at if self._node.doubts_configuration else None

    def timer(self) -> None:
        """Ask it."""
        node = self._node
        if not node.doubts_configuration or node.now.mono < self._ask_at:
            return
        self._ask_at = node.now.mono + ASK_S
        url = node.configurations.effective.url(node.leader or "")
        if url is not None and node.leader is not None and node.leader != node.id:
            to = PeerChannel(Channel.SIDE, node.leader, url)
            self._requests.ask(to, RequestConfig(self._requests.poll()), RequestConfigReply, self._configuration)

    def _configuration(self, ask: Ask, reply: RequestConfigReply) -> None:
        del ask
        node = self._node
        if reply.is_leader and set(reply.peers) == set(node.configurations.effective.members):
            node.trust_configuration()

    def original(self, route: Route, request_id: Frame, message: InstallSnapshot) -> None:
        """Handle ``$``, whose data are those of the machine alone."""
        self._request(route, request_id, message, whole=False)

    def ours(self, route: Route, request_id: Frame, message: PvSnapshot) -> None:
        """Handle ``pv.snapshot``."""
        self._request(route, request_id, message, whole=True)

    def _request(self, route: Route, request_id: Frame, message: InstallSnapshot | PvSnapshot, *, whole: bool) -> None:
        node, following = self._node, self._follower
        if not following.may_lead(message.leader, message.term, message.last_index):
            return
        if message.term < node.term:
            following.answer(route, request_id, message.leader, InstallSnapshotReply(node.term))
            return
        if following.repeated(route, request_id, message.leader):
            return
        following.follow(message.leader, message.term)
        sender = "" if whole else message.leader
        chunk = Chunk(
            message.last_index, message.last_term, message.offset, message.total, message.chunk, whole, sender
        )
        if not self.fits(chunk):
            node.drop(DropReason.SIZE)
            return
        wanted, after = self.take(chunk)
        if node.halted or self._recovering.silent:
            return
        self._election.reset(behind=after if after is not None else node.term_ticket)
        following.answer(route, request_id, message.leader, InstallSnapshotReply(node.term, wanted), after)
        self._recovering.progress()

    def fits(self, chunk: Chunk) -> bool:
        """Whether a snapshot of this form and size can be taken: without a meta part only by the plain log."""
        return chunk.total <= SNAPSHOT_BYTES_MAX and (chunk.whole or not self._node.config.serves_keys)

    def take(self, chunk: Chunk) -> tuple[int | None, int | None]:
        """Store a piece; return the offset that is wanted instead, if so, and the ticket that the answer waits for."""
        node = self._node
        known = node.snapshot.index if node.snapshot is not None else 0
        if chunk.index <= known or chunk.index < node.log.first:
            return None, node.durable_ticket(chunk.index)  # the file may still be on its way to the disk
        transfer = self._transfer
        if transfer is None or transfer.key != chunk.key:
            if chunk.offset != 0:
                return 0, None
            transfer = self._transfer = _Transfer(chunk.key, node.now.mono)
        if chunk.offset != transfer.taken:
            return transfer.taken, None
        try:
            if chunk.offset == 0 and not chunk.whole:
                self._store(transfer, self._front(chunk))
            self._store(transfer, chunk.data)
            transfer.taken += len(chunk.data)
            return None, self._finish(transfer) if transfer.taken == chunk.total else None
        except BadSnapshotFile:
            self._transfer = None
            node.event(SnapshotChanged("bad", chunk.index, node.now.mono - transfer.since))
            return 0, None

    def _store(self, transfer: _Transfer, data: Frame) -> None:
        begin = transfer.scan.taken == 0
        transfer.scan.feed(data)
        kept = bytes(data)  # the frame belongs to the message, the disk takes its time
        self._node.store(lambda ticket: SnapshotPart(ticket, begin, kept))

    def _front(self, chunk: Chunk) -> bytes:
        """Return head and meta part for bare data: our configuration there, and no request ids (9.4, 5)."""
        node = self._node
        stated_at, configuration = node.configurations.committed(chunk.index)
        encoded = configuration.encode() if configuration.new else b""
        floor = max(node.dedup.floor, self._forgotten_before())
        meta = SnapshotMeta(encoded, stated_at, node.config.machine, LEVEL_BARE, floor, b"", bare=True).encode()
        return SnapshotHead(chunk.index, chunk.term or 0, len(meta), chunk.total).encode() + meta

    def _finish(self, transfer: _Transfer) -> int | None:
        node, scan = self._node, transfer.scan
        index, term, _, whole, _ = transfer.key
        if not whole:
            self._store(transfer, scan.digest)
        head, meta = scan.finish()
        term = head.term if term is None else term
        if (head.index, head.term, meta.machine) != (index, term, node.config.machine):
            raise BadSnapshotFile("it is not the snapshot that was announced")
        self._transfer = None
        if index <= node.commit and node.log.term_at(index) != term:
            node.halt(Corrupt(index))  # as a differing entry below the commit index (7.1)
            return None
        self._recovering.judge_snapshot(meta)
        ticket = node.install(StoredSnapshot(index, term, meta, head.data_bytes))
        node.event(SnapshotChanged("installed", index, node.now.mono - transfer.since))
        return ticket
