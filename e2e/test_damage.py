"""Copies of a log that rot on their volumes are named by the condition, by an event and by `why` (docs/waltz.md)."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from e2e.cluster import reason_of
from e2e.targets import Capability
from e2e.targets.local import ProcessTarget
from e2e.test_waltz import LogTest, ledger
from e2e.waiting import eventually
from pavane.waltz.client import Rejected, Unavailable
from pavane_cli.commands.resources import condition
from pavane_operator.kube.resources import EVENTS, Object

__all__ = ["ledger"]

pytestmark = [pytest.mark.needs(Capability.EMBEDDED), pytest.mark.timeout(480)]

PARTITION, BAD, RECORDS = 1, 7, 30
PATIENCE_S = 10.0
UNUSABLE = "CopyUnusable"


def rot(folder: Path) -> None:
    """Flip bits in the middle of one record, while its storage node runs."""
    (offset,) = struct.unpack_from(">q", (folder / f"{0:019d}.idx").read_bytes(), 128 + 8 * BAD)
    with (folder / f"{0:019d}.seg").open("r+b") as segment:
        segment.seek(offset + 50)
        before = segment.read(1)
        segment.seek(offset + 50)
        segment.write(bytes([before[0] ^ 0xFF]))


async def test_damaged_copies_are_named_by_condition_event_and_why(ledger: LogTest) -> None:
    platform = ledger.platform
    assert isinstance(platform, ProcessTarget)
    await ledger.start()
    async with ledger.client_of_log() as log:
        for number in range(RECORDS):
            await log.append(PARTITION, b"%d " % number * 100)
    volumes = platform.folder / ".pavane" / "volumes" / ledger.namespace

    async def forget() -> None:
        """Start the servers anew, which have the newest transactions in memory."""
        for pod in await ledger.pods():
            name = pod["metadata"]["name"]
            if "storage" not in name:
                ledger.kill(name)
                await ledger.until_replaced(name)
        await ledger.until(lambda item: item["status"]["writable"] == "4/4", "the log is writable")

    def named(node: str) -> str:
        return f"storage node {node}, partition {PARTITION}: damaged from transaction {BAD} on"

    async def told(node: str) -> bool:
        notes = [each.get("note", "") for each in (await ledger.kube.list_all(EVENTS, ledger.namespace)).items]
        return any(named(node) in note for note in notes)

    await forget()
    rot(volumes / "data-q-storage-0" / "waltz" / str(PARTITION))
    async with ledger.client_of_log() as log:
        assert [each.id async for each in log.read(PARTITION, 0, RECORDS)] == list(range(RECORDS))
        assert await log.append(PARTITION, b"the others go on") == RECORDS
        await eventually(lambda: told("q-storage-0"), "an event names the copy")
        # It is whole again by itself, perhaps before anybody has seen the condition.
        await ledger.until(lambda item: reason_of(item, "LogHealthy") == "AllReplicated", "the copy is rebuilt")

    await forget()
    for node in range(3):
        rot(volumes / f"data-q-storage-{node}" / "waltz" / str(PARTITION))
    async with ledger.client_of_log(PATIENCE_S) as log:
        with pytest.raises((Unavailable, Rejected), match="no storage node"):
            async for _ in log.read(PARTITION, 0, RECORDS):
                pass

    def down(item: Object) -> bool:
        """Each look has what nodes have told that answered at once."""
        healthy = condition(item, "LogHealthy") or {"message": ""}
        return reason_of(item, "Ready") == UNUSABLE and named("q-storage-0") in healthy["message"]

    async def why() -> str:
        said = platform.run("why", "waltz/q", "-n", ledger.namespace).stdout.replace("\n", " ")
        return said if named("q-storage-0") in said and "too few copies are left" in said else ""

    await ledger.until(down, "the log is down for its copies")
    assert "does not answer" not in await eventually(why, "the command says why")
