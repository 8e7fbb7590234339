"""What storage nodes hold → metadata for a cluster whose metadata store was lost (docs/specs/waltz.md 13.6). Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pavane.waltz.errors import StorageRefused
from pavane.waltz.state.recovery import EMPTY, NEVER
from pavane.waltz.wire.blobs import UNRESOLVED, Consumer, PartitionMetadata, ReplicaState

SESSION_STEP = 1 << 32  # beyond every fence: of store sessions that never opened nothing is left but that
GENERATION_STEP = 1 << 16  # beyond every generation: of one in which nothing was appended nothing is left
CLIENT_STEP = 1 << 20  # beyond every client id: of a client that has appended nothing lately nothing is left
CLIENTS_MAX = 1 << 30  # ids from here on no counter has given out: a client named itself so
HOLDER = "adopted"  # the consumer for which retention waits, while those that there were have not begun again
COUNTED_FROM_S = 1_577_836_800  # 2020: counters go on at seconds since then, which two adoptions never share


class Copy(NamedTuple):
    """What a storage node says of its copy of a partition; ``fault``: why it is not used.

    ``generation`` and ``client`` are the greatest that its last records name, 0 where nobody looked.
    """

    session: int
    lwm: int
    last: int
    fault: str = ""
    first: int = 0
    generation: int = 0
    client: int = 0


class Adopted(NamedTuple):
    """One partition: who keeps its copy, who is copied anew, and the metadata from which a recovery begins.

    ``None`` where the partition was never opened.
    """

    partition: int
    last: int
    kept: tuple[str, ...]
    anew: tuple[str, ...]
    metadata: PartitionMetadata | None


def adopt(
    partition: int, nodes: Sequence[str], copies: Mapping[str, Copy], fence: int = NEVER, hold_ms: int = 0
) -> Adopted:
    """Return what the metadata of a partition have to say; ``copies`` are of the ``nodes`` that answered.

    ``fence`` is the least session id that they obey. ``hold_ms``, the time if it is given: retention, which waited for
    consumers of which nobody knows any more, drops nothing until a person removes consumer HOLDER.

    Those that took part in the newest store session keep what they have and vote. Nothing tells how much of the log the
    others hold, or whether they acknowledged more than they have now: they count as disks that were set back.

    Raises ``StorageRefused`` unless a majority of all nodes took part in that session.
    """
    quorum = len(nodes) // 2 + 1
    usable = {node: copy for node, copy in copies.items() if not copy.fault}
    if len(usable) < quorum:
        missing = [f"{node} ({copies[node].fault if node in copies else 'no answer'})" for node in nodes]
        told = ", ".join(text for node, text in zip(nodes, missing, strict=True) if node not in usable)
        raise StorageRefused(
            f"partition {partition}: {len(usable)} of {len(nodes)} copies can be used, which is no majority; get these "
            f"storage nodes running first: {told}"
        )
    newest = max(copy.session for copy in usable.values())
    if newest == NEVER and all(copy.last == EMPTY for copy in usable.values()):
        return Adopted(partition, EMPTY, tuple(usable), (), None)
    kept = {node: usable[node] for node in nodes if node in usable and usable[node].session == newest}
    anew = tuple(node for node in nodes if node not in kept)
    if len(kept) < quorum or all(copy.last < copy.lwm for copy in kept.values()):
        raise StorageRefused(
            f"partition {partition}: only {', '.join(kept)} took part in the last store session, {newest}, or lacks "
            f"what it decided: get {', '.join(anew) or 'all storage nodes'} running with former disks, then try again"
        )
    session = max(newest + SESSION_STEP, fence)
    states = [ReplicaState(partition, node, copy.session, UNRESOLVED) for node, copy in kept.items()]
    states += [ReplicaState(partition, node, session, EMPTY) for node in anew]
    generation = max(copy.generation for copy in usable.values()) + GENERATION_STEP
    start = max(copy.first for copy in kept.values())
    last = max(copy.last for copy in kept.values())
    holder = (Consumer(HOLDER, start, hold_ms, hold_ms, "pavane waltz adopt"),) if hold_ms else ()
    metadata = PartitionMetadata(generation, session, tuple(states), start, holder)
    return Adopted(partition, last, tuple(kept), anew, metadata)


def counter(now_s: float, used: int) -> int:
    """Return where a counter goes on, of which ``used`` was given out for sure."""
    return max(int(now_s) - COUNTED_FROM_S, used + CLIENT_STEP)
