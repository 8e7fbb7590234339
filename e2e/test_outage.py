"""An outage: two of three members are stopped. What still can be told is told, and it is true."""

import asyncio
import json
import signal

from e2e.cluster import RaftTest, reason_of

COMMANDS = (
    ("raft", "members", "q", "-o", "json"),
    ("raft", "kv", "get", "q", "greeting", "--stale"),
    ("status", "raft/q"),
    ("why", "raft/q"),
)


async def pavane(raft: RaftTest, *words: str) -> str:
    """What a command prints, as one line; this process goes on meanwhile."""
    found = await asyncio.to_thread(raft.platform.run, *words, "-n", raft.namespace)
    return " ".join(found.stdout.split())


async def test_with_two_of_three_members_stopped_the_third_still_tells(raft: RaftTest) -> None:
    await raft.apply(stateMachine="KeyValue")
    document = await raft.until_current()
    await pavane(raft, "raft", "kv", "put", "q", "greeting", "hello")
    leader, names = document["status"]["leader"], [each["name"] for each in document["status"]["members"]]
    left = next(name for name in names if name != leader)
    stopped = [name for name in names if name != left]
    for name in stopped:
        raft.signal(name, signal.SIGSTOP)
    try:
        await raft.until(lambda item: reason_of(item, "Ready") == "NoQuorum", "the outage is told")
        # All at once: a pod that answers no probe for half a minute is started anew, and the outage ends.
        members, value, status, why = await asyncio.gather(*(pavane(raft, *words) for words in COMMANDS))
    finally:
        for name in stopped:
            raft.signal(name, signal.SIGCONT)
    found = json.loads(members)
    assert not found["leader"]
    assert [each["id"] for each in found["items"] if each["role"] is not None] == [left]
    assert value == "hello"
    for told in (status, why):
        assert f"1 of 3 members answer, 2 are needed; no answer from {', '.join(sorted(stopped))}" in told
    await raft.until_current()
    assert await pavane(raft, "raft", "kv", "get", "q", "greeting") == "hello"
