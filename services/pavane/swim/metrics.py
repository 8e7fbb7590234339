"""The metrics of a member (docs/specs/swim.md 17.4), made from plain integers when they are read."""

from collections.abc import Mapping

from pavane.runtime.metrics import Metric
from pavane.swim.core.outputs import Own
from pavane.swim.member import SwimMember
from pavane.swim.wire.values import State

PREFIX = "pavane_swim_"


def metrics(member: SwimMember) -> list[Metric]:
    """Return every metric that exists, with its full name."""
    others = [peer.state for peer in member.members() if peer.id != member.info.id]
    gauges: dict[str, float] = {
        "is_member": member.own is Own.MEMBER,
        "peers_alive": others.count(State.ALIVE),
        "peers_suspect": others.count(State.SUSPECT),
        "health": member.health,
        "generation": member.info.gen,
    }
    traffic = member.traffic
    found = [Metric(PREFIX + name, {}, value) for name, value in gauges.items()]
    found.append(Metric(PREFIX + "send_errors_total", {}, member.send_errors))
    found += _by("counts_total", "kind", member.counts)
    found += _by("dropped_total", "reason", member.dropped)
    found += _by("sent_total", "kind", traffic.sent)
    found += _by("sent_bytes_total", "kind", traffic.sent_bytes)
    found += _by("received_total", "kind", traffic.received)
    found += _by("received_bytes_total", "kind", traffic.received_bytes)
    return found


def _by(name: str, label: str, counts: Mapping[str, int]) -> list[Metric]:
    return [Metric(PREFIX + name, {label: str(key)}, value) for key, value in counts.items()]
