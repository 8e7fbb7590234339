"""A real ZooKeeper server as a process of a test, with a folder and a port of its own."""

import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from kazoo.client import KazooClient

from tests.requires import ZOOKEEPER_JAR, requires
from tests.services.ports import free_ports

TICK_MS = 300  # a session lives at least two of them, whatever a client asks for
SESSION_MAX_MS = 60_000
START_S = 60.0


class ZooKeeper:
    """Runs from ``start`` to ``stop``; ``kill`` and ``start`` again keep what was written."""

    def __init__(self, folder: Path) -> None:
        requires("zookeeper")
        self._folder = folder
        self._parts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_ports(1)[0]
        self.connect = f"127.0.0.1:{self.port}"

    def start(self) -> None:
        (self._folder / "data").mkdir(parents=True, exist_ok=True)
        config = self._folder / "zoo.cfg"
        settings = {
            "tickTime": TICK_MS,
            "maxSessionTimeout": SESSION_MAX_MS,
            "dataDir": self._folder / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        classes = f"{ZOOKEEPER_JAR}:{ZOOKEEPER_JAR.with_name('slf4j-simple.jar')}"
        flags = ["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.jmx.log4j.disable=true"]
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                ["java", *flags, "-cp", classes, main, str(config)], stdout=output, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + START_S
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"ZooKeeper did not start: {(self._folder / 'output').read_text()}")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=0.05)

    def part(self) -> str:
        """Make an empty tree in this server and return how it is reached."""
        self._parts += 1
        client = KazooClient(self.connect)
        client.start(timeout=START_S)
        client.create(f"/part{self._parts}")
        client.stop()
        client.close()
        return f"{self.connect}/part{self._parts}"

    def pause(self) -> None:
        self._running.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._running.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._running.kill()
        self._running.wait(timeout=20)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    @property
    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None
        return self._process

    def _serves(self) -> bool:
        """It listens before it serves, and a client that comes in between waits for long."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as probe:
                probe.sendall(b"srvr")
                return b"Mode: standalone" in b"".join(iter(lambda: probe.recv(4096), b""))
        except OSError:
            return False
