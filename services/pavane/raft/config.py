"""The settings of a peer and what is wrong with them (docs/specs/raft.md 16)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pavane.raft.state.configuration import Members, fault_in, generation_of

ELECTION_MIN_MS = 50  # below this a slow fsync looks like a dead leader
REQUEST_ID_TTL_S = 8 * 3600
REQUEST_ID_MARGIN_S = 15 * 60
REQUEST_ID_TTL_MIN_S = 60
PRESETS: Mapping[str, tuple[int, int]] = {
    "local": (150, 250),
    "lan": (200, 300),
    "loaded": (1500, 2500),  # two-core CI machines make lan flap
    "wan": (1000, 1500),
}
"""Election time-outs (least, greatest) in ms by name."""
BROADCAST = "Broadcast"
KEY_MACHINES = ("KeyValue", "Tree")
MACHINES = (BROADCAST, *KEY_MACHINES)
"""Our state machines by name (12.2); an application's own have other names (12.10)."""
MACHINE_BYTES_MAX = 64  # of a name: told in each hello and in each snapshot


class LostVoter(StrEnum):
    """How a voter without its disk comes back to voting (5.5)."""

    AUTO = "auto"  # it proves by itself that its forgotten votes can do no harm
    BY_CHANGE = "by_change"  # only by being removed and added again


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of one peer. Times in ms but for the ttl; ``None`` is the default that follows from another key.

    ``peers`` is the seed list (it becomes the configuration of an empty store, bootstrap ``seed``); ``seeds`` are urls
    to ask for the configuration, never members.
    """

    id: str
    ident: bytes
    url: str = ""
    peers: Members = ()
    seeds: tuple[str, ...] = ()
    lost_voter: LostVoter = LostVoter.AUTO
    machine: str = BROADCAST
    broadcast_url: str = ""
    broadcast_heartbeat: int = 500
    election_min: int = 200
    election_max: int = 300
    heartbeat: int | None = None
    rpc_timeout: int | None = None
    append_timeout: int | None = None
    request_id_ttl_s: int = REQUEST_ID_TTL_S
    request_id_margin_s: int | None = None
    request_entries_ttl: int = 5000
    generation: int | None = None
    snapshot_entries: int = 10_000
    snapshot_bytes: int = 256 << 20
    log_retention: int = 5000

    @property
    def serves_keys(self) -> bool:
        """Whether the machine is one that clients ask (12.2)."""
        return self.machine in KEY_MACHINES

    @property
    def heartbeat_s(self) -> float:
        """Pause between two heartbeats of an idle leader."""
        return (self.heartbeat if self.heartbeat is not None else 0.35 * self.election_min) / 1000

    @property
    def rpc_timeout_s(self) -> float:
        """Pause before a vote request or a poll is repeated."""
        return (self.rpc_timeout if self.rpc_timeout is not None else self.election_min / 4) / 1000

    @property
    def append_timeout_s(self) -> float:
        """Pause before an AppendEntries with entries is repeated."""
        return (self.append_timeout if self.append_timeout is not None else self.election_min / 2) / 1000

    @property
    def margin_s(self) -> int:
        """How far in the future a request id may lie; also what the ttl is shortened by."""
        if self.request_id_margin_s is not None:
            return self.request_id_margin_s
        return min(REQUEST_ID_MARGIN_S, self.request_id_ttl_s // 4)

    @property
    def own_generation(self) -> int | None:
        """The generation number of this peer: as set, else as its id says."""
        return self.generation if self.generation is not None else generation_of(self.id)

    def validate(self) -> None:
        """Check every rule of the table; raises ``ValueError`` that names key, value and rule."""
        least, greatest = self.election_min, self.election_max
        rpc, append, beat = self.rpc_timeout_s * 1000, self.append_timeout_s * 1000, self.heartbeat_s * 1000
        rules = (
            (1 <= len(self.id.encode()) <= 128, "id", self.id, "must be 1 to 128 bytes"),
            (least >= ELECTION_MIN_MS, "election_min", least, f"must be at least {ELECTION_MIN_MS} ms"),
            (greatest >= 1.5 * least, "election_max", greatest, f"must be at least 1.5 x election_min ({least})"),
            (rpc / 2 <= beat <= least / 2, "heartbeat", beat, "must lie between rpc_timeout/2 and election_min/2"),
            (rpc <= append <= least / 2, "append_timeout", append, "must lie between rpc_timeout and election_min/2"),
            (
                self.request_id_ttl_s >= REQUEST_ID_TTL_MIN_S and self.request_id_ttl_s > 2 * self.margin_s,
                "request_id_ttl",
                self.request_id_ttl_s,
                f"must be at least {REQUEST_ID_TTL_MIN_S} s and more than twice the margin ({self.margin_s} s)",
            ),
            (self.snapshot_entries >= 1, "snapshot.entries", self.snapshot_entries, "must be at least 1"),
            (self.snapshot_bytes >= 1, "snapshot.bytes", self.snapshot_bytes, "must be at least 1"),
            (self.log_retention >= 0, "log_retention", self.log_retention, "must not be negative"),
            (
                1 <= len(self.machine.encode()) <= MACHINE_BYTES_MAX,
                "machine",
                self.machine,
                f"must be 1 to {MACHINE_BYTES_MAX} bytes",
            ),
        )
        for holds, key, value, rule in rules:
            if not holds:
                raise ValueError(f"{key}: {value!r} {rule}")
        fault = fault_in(self.peers) if self.peers else None
        if fault is not None:
            raise ValueError(f"peers: {fault}")
