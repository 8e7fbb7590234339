"""One immortal as two real processes: a coordinator and an application."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pavane.ambrosia.state import Progress
from pavane.ambrosia.storage import CheckpointReader, Registry, Replay
from pavane.ambrosia.wire.messages import checkpoint
from pavane.ambrosia.wire.records import checkpoint_record
from pavane.wal.files import DiskFolder
from tests.services.ambrosia.model import Application
from tests.services.ports import free_ports

ROOT = Path(__file__).parents[3]
WAIT_S = 50.0
INTERVAL_S = 0.02


def wait(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"never: {what}")
        select_a_moment()


def select_a_moment() -> None:
    # What other processes do has no event.
    subprocess.run(["sleep", str(INTERVAL_S)], check=True)


class Unit:
    """``start``, ``kill`` either process; the other follows; ``replayed`` is what the log says afterwards."""

    def __init__(self, folder: Path, name: str, peer: str, *options: str) -> None:
        self.folder = folder
        self.name = name
        self.peer = peer
        self.options = options
        self.port, self.rp, self.sp = free_ports(3)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.output = folder / f"{name}.out"

    def command(self) -> list[str]:
        ports = [f"--port={self.port}", f"--receivePort={self.rp}", f"--sendPort={self.sp}"]
        places = [f"--instanceName={self.name}", f"--log={self.folder}/logs/"]
        return [sys.executable, "-m", "pavane.ambrosia.server", *places, *ports, *self.options]

    def start(self) -> None:
        """Start what does not run; an application is nothing without the coordinator that it found."""
        if not self.runs("coordinator"):
            self.kill("application")
            self.run("coordinator", self.command())
        if not self.runs("application"):
            (self.folder / f"{self.name}.state").unlink(missing_ok=True)
            arguments = [self.name, self.peer, str(self.rp), str(self.sp), str(self.folder)]
            self.run("application", [sys.executable, "-m", "tests.services.ambrosia.ball", *arguments])

    def run(self, name: str, command: list[str]) -> None:
        with self.output.open("ab") as output:
            self.processes[name] = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)

    def runs(self, name: str) -> bool:
        return name in self.processes and self.processes[name].poll() is None

    def kill(self, *which: str) -> None:
        for name in which:
            if name in self.processes:
                self.processes[name].kill()
                self.processes[name].wait(timeout=WAIT_S)

    def state(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / f"{self.name}.state").read_text())
        except FileNotFoundError:
            return {"sent": {}, "taken": {}, "handled": 0, "primary": False, "open": 0}
        return found

    def taken(self) -> int:
        found: int = self.state()["taken"].get(self.peer, 0)
        return found

    def said(self) -> str:
        return self.output.read_text()

    def replayed(self, number: int) -> Application:
        """Handle the whole log from checkpoint ``number`` on, in this process."""
        folder = DiskFolder(self.folder / "logs" / f"{self.name}_0")
        meta = Registry(DiskFolder(self.folder / "logs" / "registry")).load(self.name).meta
        reader = CheckpointReader(folder, number)
        app = Application(self.name)
        app.feed(checkpoint_record(reader.head.committer, checkpoint(reader.head.size)))
        for chunk in reader.blob():
            app.feed(chunk)
        replay = Replay(folder, number, meta.last_log, Progress.restored(reader.head))
        while (record := replay.next()) is not None:
            app.feed(record.delivered())
        replay.finish()
        replay.close()
        reader.close()
        return app

    def checkpoints(self) -> list[int]:
        names = [path.name for path in (self.folder / "logs" / f"{self.name}_0").iterdir()]
        return sorted(int(name[11:]) for name in names if name.startswith("serverchkpt") and name[11:].isdigit())

    def close(self) -> None:
        self.kill("application", "coordinator")
