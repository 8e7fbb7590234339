"""The log as the API shows it, by a Raft client: the control plane's, or a command's own."""

import base64
from contextlib import aclosing
from typing import Literal

from pavane.raft.client import Entry, RaftClient
from pavane.raft.wire.entry import EntryType
from pavane_api.problems import BadRequest
from pavane_api.raftlog.schemas import Appended, LogEntries, LogEntry, LogInfo, Peer
from pavane_api.request_ids import written

ENTRIES_MAX = 1000  # per answer
ANSWER_BYTES_MAX = 16 * 1024 * 1024  # data per answer; a single larger entry is still sent whole
ENTRY_BYTES_MAX = 10 * 1024 * 1024  # the protocol's own limit (docs/specs/raft.md 14.4)
TIMEOUT_S = 20.0

_TYPES: dict[int, Literal["State", "Config", "Checkpoint"]] = {
    EntryType.STATE: "State",
    EntryType.CONFIG: "Config",
    EntryType.CHECKPOINT: "Checkpoint",
}


async def log_info(client: RaftClient) -> LogInfo:
    """Return the leader's log info."""
    configuration = await client.configuration()
    info = await client.log_info()
    return LogInfo(
        leader=configuration.leader or "",
        term=info.term,
        first_index=info.first_index,
        last_index=info.last_index,
        commit_index=info.commit_index,
        applied_index=info.applied_index,
        peers=[Peer(id=peer_id, url=url) for peer_id, url in configuration.peers],
    )


async def entries(client: RaftClient, after: int, limit: int) -> LogEntries:
    """Return committed entries after ``after``: at most ``limit``, and about ANSWER_BYTES_MAX of data."""
    found: list[LogEntry] = []
    size = 0
    async with aclosing(client.entries(after=after, count=limit)) as stream:
        async for entry in stream:
            found.append(shown(entry))
            size += len(entry.data)
            if size >= ANSWER_BYTES_MAX:
                break
    return LogEntries(items=found, next_after=found[-1].index if found else after)


def shown(entry: Entry) -> LogEntry:
    """Return an entry as answers have it."""
    return LogEntry(
        index=entry.index,
        type=_TYPES.get(entry.type, "Unknown"),
        term=entry.term,
        request_id=bytes(entry.reqid).hex(),
        data=base64.b64encode(entry.data).decode(),
    )


async def append(client: RaftClient, data: bytes, request_id: str | None) -> Appended:
    """Append ``data`` as one entry, once however often the same ``request_id`` is sent."""
    if not data:
        raise BadRequest("The body is empty: an entry has at least one byte.")
    index, used = await written(client, request_id, lambda reqid: client.update(data, reqid=reqid, timeout_s=TIMEOUT_S))
    return Appended(index=index, request_id=used)
