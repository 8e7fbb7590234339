"""What happened in a peer since its start, for metrics (docs/specs/raft.md 15)."""

from collections import Counter
from dataclasses import dataclass, field

from pavane.raft.core.outputs import (
    Appended,
    BarrierDone,
    ConfigurationChanged,
    Event,
    LeaderKnown,
    QuorumLost,
    RoleChanged,
    SnapshotChanged,
    TransferChanged,
    UpdateDone,
)
from pavane.raft.state.roles import Role


@dataclass(slots=True)
class Counts:
    """What happened since the start, for metrics; ``dropped`` only holds what never reached the core."""

    dropped: Counter[str] = field(default_factory=Counter)
    updates: Counter[str] = field(default_factory=Counter)
    update_s: float = 0.0
    barriers: Counter[str] = field(default_factory=Counter)
    barrier_s: float = 0.0
    prevotes: Counter[str] = field(default_factory=Counter)
    elections: Counter[str] = field(default_factory=Counter)
    transfers: Counter[str] = field(default_factory=Counter)
    leader_changes: int = 0
    quorum_lost: int = 0
    rollbacks: int = 0
    config_changes: int = 0
    snapshots: Counter[str] = field(default_factory=Counter)
    corrupt: Counter[str] = field(default_factory=Counter)  # files found damaged by the start
    stored_entries: int = 0
    snapshot_s: dict[str, float] = field(default_factory=dict)

    def event(self, event: Event) -> None:
        """Count ``event``."""
        match event:
            case UpdateDone(result=result, seconds=seconds):
                self.updates[result] += 1
                self.update_s += seconds
            case BarrierDone(ok, seconds):
                self.barriers["ok" if ok else "failed"] += 1
                self.barrier_s += seconds
            case RoleChanged(Role.PRE_CANDIDATE, new):
                self.prevotes["passed" if new is Role.CANDIDATE else "refused"] += 1
            case RoleChanged(Role.CANDIDATE, new):
                self.elections["won" if new is Role.LEADER else "lost"] += 1
            case TransferChanged(_, ("done" | "failed") as result):
                self.transfers[result] += 1
            case LeaderKnown(str()):
                self.leader_changes += 1
            case QuorumLost():
                self.quorum_lost += 1
            case ConfigurationChanged("rolled_back"):
                self.rollbacks += 1
            case ConfigurationChanged("committed", _, configuration) if not configuration.transitional:
                self.config_changes += 1
            case Appended(count=count):
                self.stored_entries += count
            case SnapshotChanged(what, _, seconds):
                self.snapshots[what] += 1
                self.snapshot_s[what] = self.snapshot_s.get(what, 0.0) + seconds
