"""Members and leadership by a Raft client: the control plane's, or a command's own."""

import asyncio
from collections.abc import Mapping
from typing import Any

from pavane.raft.client import RaftClient
from pavane.raft.errors import RaftError
from pavane_api.raftmembers.schemas import Leader, Member, Members

ANSWER_S = 1.0  # a peer that needs longer is shown as one that does not answer


async def members(client: RaftClient) -> Members:
    """Ask all members at once what they are."""
    configuration = await client.configuration()
    statuses = await asyncio.gather(*(_status(client, url) for _, url in configuration.peers))
    by_id = {peer: status for (peer, _), status in zip(configuration.peers, statuses, strict=True)}
    leading = by_id.get(configuration.leader or "") or {}
    known = {each["id"]: each for each in leading.get("members", ())}
    effective = leading.get("configuration", {})
    staying = {peer for peer, _ in effective.get("new", configuration.peers)}
    return Members(
        leader=configuration.leader or "",
        changing=effective.get("old") is not None,
        items=[
            _member(peer, url, by_id[peer] or {}, known.get(peer, {}), leading, old=peer not in staying)
            for peer, url in configuration.peers
        ],
    )


async def transfer(client: RaftClient, to: str | None) -> Leader:
    """Hand leadership over and say who leads."""
    return Leader(leader=await client.transfer(to))


async def _status(client: RaftClient, url: str) -> Mapping[str, Any] | None:
    try:
        return await client.status(url, timeout_s=ANSWER_S)
    except RaftError:
        return None


def _member(
    peer: str, url: str, own: Mapping[str, Any], known: Mapping[str, Any], leading: Mapping[str, Any], *, old: bool
) -> Member:
    match = known.get("match_index")
    return Member(
        id=peer,
        url=url,
        old=old,
        role=own.get("role"),
        kind=known.get("kind", "unknown"),
        term=own.get("term"),
        last_index=own.get("last_index"),
        applied_index=own.get("applied_index"),
        lag=None if match is None else max(0, leading["last_index"] - match),
    )
