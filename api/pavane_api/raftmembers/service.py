"""Members and leadership by a Raft client: the control plane's, or a command's own."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pavane.raft.client import RaftClient
from pavane.raft.errors import RaftError
from pavane_api.raftmembers.schemas import Leader, Member, Members

ANSWER_S = 1.0  # a member that needs longer is shown as one that does not answer
ELECTION_S, ELECTION_LOOK_S = 5.0, 0.1
NOBODY_S = 5.0  # before it is said that nobody answers

Status = Mapping[str, Any]


async def members(client: RaftClient) -> Members:
    """Ask all members at once what they are; those that answer tell who the others are, so no leader is needed.

    While a majority answers and nobody leads yet, it looks again for up to ELECTION_S. Raises ``RaftError`` where
    nobody answers.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + ELECTION_S
    while True:
        found = await _look(client)
        answers = sum(each.role is not None for each in found.items)
        if found.leader or 2 * answers <= len(found.items) or loop.time() > until:
            return found
        await asyncio.sleep(ELECTION_LOOK_S)


async def _look(client: RaftClient) -> Members:
    asked = client.peer_urls()
    by_id = await _ask(client, asked)
    if by_id:
        newest = max(by_id.values(), key=lambda each: (each["configuration_index"], each["term"]))
        configuration = newest["configuration"]
        staying, leaving = dict(configuration["new"]), dict(configuration["old"] or ())
        leads = [each for each in by_id.values() if each["is_leader"]]
        leader = max(leads, key=lambda each: each["term"])["id"] if leads else ""
        peers, changing = leaving | staying, bool(leaving)
        by_id |= await _ask(client, [url for peer, url in peers.items() if peer not in by_id and url not in asked])
    else:  # programs that are not ours tell of themselves nothing but this
        told = await client.configuration(timeout_s=NOBODY_S)
        peers, leader, changing = dict(told.peers), told.leader or "", False
        staying = peers
    leading = by_id.get(leader, {})
    known = {each["id"]: each for each in leading.get("members", ())}
    return Members(
        leader=leader,
        changing=changing,
        items=[
            _member(peer, url, by_id.get(peer, {}), known.get(peer, {}), leading, old=peer not in staying)
            for peer, url in peers.items()
        ],
    )


async def transfer(client: RaftClient, to: str | None) -> Leader:
    """Hand leadership over and say who leads."""
    return Leader(leader=await client.transfer(to))


async def _ask(client: RaftClient, urls: Sequence[str]) -> dict[str, Status]:
    """Return what the peers at these urls say, by their ids, of those that answer."""
    answers = await asyncio.gather(*(_status(client, url) for url in urls))
    return {each["id"]: each for each in answers if each is not None}


async def _status(client: RaftClient, url: str) -> Status | None:
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
