"""Read-only pictures of a peer, for ``pv.status``, metrics, stage reports and the fence of a pod (4.4, 8.3, 8.6)."""

from collections.abc import Set
from dataclasses import dataclass

from pavane.raft.core.fence import Fence
from pavane.raft.core.learner import Learner
from pavane.raft.core.node import Node
from pavane.raft.core.programs import Programs
from pavane.raft.core.replication import Replication
from pavane.raft.core.serving import Serving
from pavane.raft.state.configuration import Configuration
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import peers_value
from pavane.raft.wire.msgpack import Value
from pavane.wire import Stage


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member as this peer sees it. ``match`` is -1 where we do not lead; ``kind`` is ours, js or unknown."""

    id: str
    url: str
    kind: str
    match: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Status:
    """One moment of a peer. ``target`` is the greatest commit index of a leader that was seen, never falling."""

    id: str
    machine: str
    role: Role
    stage: Stage
    term: int
    leader: str | None
    first: int
    snapshot: int  # index of the newest, 0 if there is none
    last: int
    durable: int
    commit: int
    applied: int
    target: int
    effective: Configuration
    effective_index: int
    committed: Configuration
    committed_index: int
    members: tuple[MemberStatus, ...]
    transfer_to: str | None
    fence: Fence
    recovering: bool
    blockers: tuple[str, ...]  # NoLeader, StateLost, VolumeFull
    dedup_ids: int
    dedup_oldest_second: int | None
    streams: int
    received: int  # bytes of a snapshot on its way to this peer
    learners: int  # of ours that read the log here and are no members
    pending: int
    dropped: tuple[tuple[str, int], ...]
    first_write_ms: int | None
    last_write_ms: int | None

    @property
    def roles(self) -> dict[str, int]:
        """How many members lead and follow as this peer sees it, and how many learners it feeds (15.1)."""
        leading = sum(member.id == self.leader for member in self.members)
        return {"leader": leading, "follower": len(self.members) - leading, "learner": self.learners}


def picture(
    node: Node,
    *,
    programs: Programs,
    replication: Replication,
    serving: Serving,
    learner: Learner,
    transfer_to: str | None,
    streams: int,
    fed: Set[str],
    received: int,
) -> Status:
    """Gather the picture from the parts of the core; ``fed`` are those who follow this peer."""
    committed_index, committed = node.configurations.committed(node.commit)
    return Status(
        id=node.id,
        machine=node.config.machine,
        role=node.role,
        stage=node.stage,
        term=node.term,
        leader=node.leader,
        first=node.log.first,
        snapshot=node.snapshot.index if node.snapshot is not None else 0,
        last=node.log.last,
        durable=node.durable,
        commit=node.commit,
        applied=node.applied,
        target=max(learner.target, node.commit),
        effective=node.configurations.effective,
        effective_index=node.configurations.index,
        committed=committed,
        committed_index=committed_index,
        members=tuple(
            _member(node, programs, replication, peer, url) for peer, url in node.configurations.effective.members
        ),
        transfer_to=transfer_to,
        fence=learner.fence(),
        recovering=node.recovering,
        blockers=_blockers(node),
        dedup_ids=len(node.dedup),
        dedup_oldest_second=node.dedup.oldest_second,
        streams=streams,
        received=received,
        learners=len(fed - {peer for peer, _ in node.configurations.effective.members}),
        pending=len(serving),
        dropped=tuple(sorted(node.dropped.items())),
        first_write_ms=serving.first_write_ms,
        last_write_ms=serving.last_write_ms,
    )


def status_value(status: Status) -> dict[str, Value]:
    """Return the map that ``pv.status`` answers (4.4)."""
    effective = status.effective
    old = effective.old
    return {
        "id": status.id,
        "machine": status.machine,
        "role": status.role.title,
        "stage": int(status.stage),
        "term": status.term,
        "leader": status.leader,
        "is_leader": status.role == Role.LEADER,
        "first_index": status.first,
        "snapshot_index": status.snapshot,
        "last_index": status.last,
        "durable_index": status.durable,
        "commit_index": status.commit,
        "applied_index": status.applied,
        "target_index": status.target,
        "configuration": {"old": None if old is None else peers_value(old), "new": peers_value(effective.new)},
        "configuration_index": status.effective_index,
        "configuration_committed": status.effective_index <= status.commit,
        "members": [
            {
                "id": member.id,
                "url": member.url,
                "kind": member.kind,
                "match_index": None if member.match < 0 else member.match,
                "in_flight": member.in_flight,
            }
            for member in status.members
        ],
        "transfer_to": status.transfer_to,
        "fence": status.fence.value,
        "blockers": list(status.blockers),
        "dedup_ids": status.dedup_ids,
        "streams": status.streams,
        "learners": status.learners,
        "pending": status.pending,
        "dropped": {reason: count for reason, count in status.dropped},
    }


def _member(node: Node, programs: Programs, replication: Replication, peer: str, url: str) -> MemberStatus:
    if peer == node.id:
        return MemberStatus(peer, url, "ours", node.durable if node.role == Role.LEADER else -1, 0)
    progress = replication.peers.get(peer)
    if progress is None:
        return MemberStatus(peer, url, programs.kind(peer).value, -1, 0)
    return MemberStatus(peer, url, programs.kind(peer).value, progress.match, progress.in_flight)


def _blockers(node: Node) -> tuple[str, ...]:
    blockers = []
    if node.leader is None:
        blockers.append("NoLeader")  # whether there is a quorum, one peer alone cannot tell
    if node.recovering:
        blockers.append("StateLost")
    if not node.has_room:
        blockers.append("VolumeFull")
    return tuple(blockers)


__all__ = ["Fence", "MemberStatus", "Status", "picture", "status_value"]
