"""A copy of a running cluster, made without disturbing it (docs/specs/raft.md 13.5).

The copy is the data folder of a learner, which follows until it has everything that was committed when it was asked
for. So every machine, and a leader of either program, is copied alike, and a second copy into the same folder fetches
only what is new. The manifest is written last, once the copy was read back: a folder without one is no backup.
``pavane.raft.offline.restoring.restore`` makes a new cluster of it.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

from pavane.raft.client import RaftClient
from pavane.raft.config import BROADCAST, Config
from pavane.raft.curve import CurveServer
from pavane.raft.errors import Unreachable
from pavane.raft.machine import Broadcast, StateMachine, UnknownMachine, machine_of
from pavane.raft.offline.manifest import PEER, seal, unseal
from pavane.raft.server import RaftServer
from pavane.wire import Stage

BIND = "tcp://127.0.0.1:0"  # a peer listens; nobody is told where
STATUS_S = 2.0  # one peer's answer to what machine it serves; an original peer gives none
LOOK_S = 0.05  # between two looks at how far it is
SILENCE_S = 30.0  # without anything new, as for the client's streams: the copy is broken off


class BackupError(Exception):
    """The copy could not be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Backup:
    """What was copied: everything up to entry ``index``, and the machine that it belongs to."""

    index: int
    machine: str


async def back_up(
    folder: Path,
    urls: Sequence[str],
    ident: bytes,
    *,
    curve: CurveServer | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Backup:
    """Copy the cluster that ``urls`` belong to into ``folder``, or bring the copy that is there up to date.

    ``progress`` is told entries. Raises ``RaftError`` when the cluster does not answer, ``Unreachable`` also when
    nothing new comes for ``SILENCE_S`` (another call goes on there), ``BackupError``, ``StoreError`` for a copy that
    does not read back, and as ``RaftServer.start`` for a folder that holds something else.
    """
    async with RaftClient(urls, ident, curve=None if curve is None else curve.keys) as client:
        members = (await client.configuration(timeout_s=SILENCE_S)).peers
        machine = await _machine(client, [url for _, url in members])
        goal = await _committed(client)
    seeds = tuple(dict.fromkeys((*urls, *(url for _, url in members))))
    config = Config(PEER, ident, seeds=seeds)
    server = RaftServer(config, data=folder, bind=BIND, stage=Stage.READ_ONLY, machine=_made(machine), curve=curve)
    await server.start()
    loop = asyncio.get_running_loop()
    had, heard_s = (0, 0), loop.time()
    try:
        await asyncio.to_thread(unseal, folder)
        while min((status := server.status()).applied, status.durable) < goal:
            progress(status.applied, goal)
            has = (status.last, status.received)
            if has != had or status.durable < status.last or status.applied < status.commit:
                had, heard_s = has, loop.time()  # something came, or disk and machine are still at it
            elif loop.time() - heard_s > SILENCE_S:
                raise Unreachable(seeds, SILENCE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    raise BackupError((await asyncio.shield(server.failure)).reason)
    finally:
        await server.stop()
    manifest = await asyncio.to_thread(seal, folder, status.applied)
    return Backup(manifest.index, manifest.machine)


class _Copied(Broadcast):
    """In place of a machine whose package is not installed here: a copy needs log and snapshots, but no state."""

    def __init__(self, name: str) -> None:
        self.name = name


def _made(name: str) -> StateMachine:
    try:
        return machine_of(name)
    except UnknownMachine:
        return _Copied(name)


async def _machine(client: RaftClient, urls: Sequence[str]) -> str:
    """Return the machine that the members serve: those of the original program answer nothing and serve the log."""

    async def asked(url: str) -> object:
        with suppress(Unreachable):
            return (await client.status(url, timeout_s=STATUS_S)).get("machine")
        return None

    machines = await asyncio.gather(*map(asked, urls))
    return next((machine for machine in machines if isinstance(machine, str)), BROADCAST)


async def _committed(client: RaftClient) -> int:
    """Return an index up to which everything is that was acknowledged before this call."""
    index = (await client.log_info()).commit_index
    # Reading begins with a barrier (10.5); a leader that was deposed without knowing it does not pass one.
    async with aclosing(client.entries(index)) as entries:
        async for entry in entries:
            index = entry.index
    return index
