"""The coordinator of a pod as a process of its own: `HOST FOLDER CLIENT GENERATION [follow]`; SIGUSR1 lets it write.

On standard output it says, line by line, what its pod would tell the operator.
"""

import asyncio
import signal
import sys
from pathlib import Path

from pavane.ambrosia.errors import FatalError
from pavane.pods.coordinator_instance import Instance
from pavane.pods.coordinator_settings import CoordinatorConfig

LOOK_S = 0.05
INSTANCE = "alice"


async def main(host: str, folder: str, client: str, generation: str, *follow: str) -> None:
    config = CoordinatorConfig(instance=INSTANCE, log="alice-1", partition=0)
    instance = Instance(config, Path(folder), host, "default", int(generation), Path(client))
    running = asyncio.create_task(instance.run())
    allow = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, allow.set)
    allowing = asyncio.create_task(allow.wait())
    if follow:
        instance.following.set()
    else:
        allow.set()
    said = ""
    while not running.done():
        if allowing.done() and not instance.writing.is_set():
            await instance.allow_writes()
        report, server = instance.report(), instance.server
        stage = server.stage if server is not None else ""
        text = f"{stage} leads={report.leads} fault={instance.fault!r}"
        if report.leads and report.write_gap_ms:
            text += f" gap={report.write_gap_ms}ms"
        if text != said:
            said = text
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
        await asyncio.wait({running}, timeout=LOOK_S)
    running.result()
    sys.stdout.write("fenced\n" if instance.fenced else "ended\n")


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except FatalError as error:
        sys.exit(str(error))
