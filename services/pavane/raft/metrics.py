"""The metrics of a peer (docs/specs/raft.md 15.1), made from plain integers when they are read."""

from collections import Counter
from collections.abc import Mapping

from pavane.raft.aio import Adapter
from pavane.raft.core.status import Status
from pavane.raft.state.roles import Role
from pavane.runtime.metrics import Metric

PREFIX = "pavane_raft_"


def metrics(status: Status, adapter: Adapter) -> list[Metric]:
    """Return every metric that exists, with its full name."""
    gauges: dict[str, float] = {
        "role": status.role,
        "stage": status.stage,
        "term": status.term,
        "commit_index": status.commit,
        "applied_index": status.applied,
        "last_index": status.last,
        "first_index": status.first,
        "snapshot_index": status.snapshot,
        "is_leader": status.role is Role.LEADER,
        "streams": status.streams,
        "dedup_ids": status.dedup_ids,
        "dedup_window_seconds": _window_s(status, adapter),
        "log_bytes": adapter.log_bytes,
        "loop_late_seconds": adapter.late_s,
    }
    keys = adapter.core.key_counts()
    if keys is not None:
        gauges |= {
            "kv_keys": keys.keys,
            "kv_bytes": keys.size,
            "kv_leases": keys.leases,
            "kv_watches": keys.watches,
            "kv_history_floor": keys.history_floor,
        }
    counts, tally = adapter.counts, adapter.core.tally
    counters: dict[str, float] = {
        "leader_changes_total": counts.leader_changes,
        "quorum_lost_total": counts.quorum_lost,
        "config_changes_total": counts.config_changes,
        "config_rollbacks_total": counts.rollbacks,
        "update_seconds_sum": counts.update_s,
        "update_seconds_count": counts.updates["done"],
        "barrier_seconds_sum": counts.barrier_s,
        "barrier_seconds_count": counts.barriers.total(),
        "commit_seconds_sum": tally.commit_s,
        "commit_seconds_count": tally.commits,
        "heartbeat_round_seconds_sum": tally.round_s,
        "heartbeat_round_seconds_count": tally.rounds,
        "entries_read_total": tally.entries_read,
        "fsync_seconds_sum": adapter.writer.sync_seconds,
        "fsync_seconds_count": adapter.writer.syncs,
        "fsync_batch_entries_sum": counts.stored_entries,
    }
    connections = adapter.connections
    if connections is not None:
        gauges["connections"] = connections.count
        counters["connections_refused_total"] = connections.refused
    found = [Metric(PREFIX + name, {}, value) for name, value in {**gauges, **counters}.items()]
    found += _labelled("updates_total", "result", counts.updates)
    found += _labelled("barriers_total", "result", counts.barriers)
    found += _labelled("prevotes_total", "result", counts.prevotes)
    found += _labelled("elections_total", "result", counts.elections)
    found += _labelled("transfers_total", "result", counts.transfers)
    found += _labelled("dropped_total", "reason", Counter(dict(status.dropped)) + counts.dropped)
    found += _labelled("snapshots_total", "kind", counts.snapshots)
    found += _labelled("snapshot_seconds_sum", "kind", counts.snapshot_s)
    found += _labelled("corrupt_total", "where", counts.corrupt)
    if keys is not None:
        found.append(Metric(f"{PREFIX}kv_lease_expiries_total", {}, keys.expired))
        for (op, code), count in sorted(keys.commands.items()):
            found.append(Metric(f"{PREFIX}kv_commands_total", {"op": op, "code": code}, count))
    found += _labelled("members", "role", status.roles)
    for member in status.members:
        labels = {"peer": member.id}
        batches = tally.appended.get(member.id)
        if batches is not None:
            found.append(Metric(f"{PREFIX}append_batch_entries_sum", labels, batches.entries))
            found.append(Metric(f"{PREFIX}append_batch_entries_count", labels, batches.messages))
        found.append(Metric(f"{PREFIX}peer_match_index", labels, member.match))
        found.append(Metric(f"{PREFIX}peer_inflight", labels, member.in_flight))
        found.append(Metric(f"{PREFIX}peer_kind", {**labels, "kind": member.kind}, 1))
    return found


def _window_s(status: Status, adapter: Adapter) -> int:
    """Return how old the oldest request id is that is still known."""
    oldest = status.dedup_oldest_second
    return 0 if oldest is None else max(0, adapter.now().wall_s - oldest)


def _labelled(name: str, label: str, counts: Mapping[str, float]) -> list[Metric]:
    return [Metric(PREFIX + name, {label: value}, count) for value, count in sorted(counts.items())]
