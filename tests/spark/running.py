"""A log of three storage nodes and a server on sockets and real files, in a process of its own.

`python -m tests.spark.running FOLDER PARTITIONS [archived]` prints the server's address and runs until its input ends.
With `archived` the storage nodes keep next to nothing, and the rest is in FOLDER/archive.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pavane.waltz.aio.archive import Archive
from pavane.waltz.core import feed, storing
from pavane.waltz.core.retention import KEEP_ALL, Policy
from tests.services.waltz.running import running_log

ROOT = Path(__file__).parents[2]
PARTITIONS = 48


async def run(folder: Path, partitions: int, *, archived: bool) -> None:
    policy, opened = KEEP_ALL, None
    if archived:
        policy = Policy(bytes_max=40_000, archives=True)
        # Else what was dropped is in memory still.
        vars(storing)["LOOK_S"], vars(feed)["TAILS_BYTES_MAX"] = 0.05, 10_000
        opened = partial(Archive, f"file://{folder}/archive", {})
    async with running_log(folder, partitions=partitions, policy=policy, archive=opened) as log:
        await log.settled()
        sys.stdout.write(f"127.0.0.1:{log.servers[0].port}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


@contextmanager
def log_process(folder: Path, partitions: int = PARTITIONS, *options: str) -> Iterator[str]:
    """Run a log and yield the address of its server."""
    command = [sys.executable, "-m", "tests.spark.running", str(folder), str(partitions), *options]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address, "the log did not start"
            yield address
        finally:
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2]), archived="archived" in sys.argv[3:]))
