"""Targets whose control plane is reached by a port-forward: those whose pods are containers."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx2

from e2e.targets.base import KUBECTL, SYSTEM
from e2e.targets.charts import ChartTarget

FORWARD_S = 30.0
CHECK_S = 2.0
AGAIN = ("sh", "-c", 'while :; do "$@"; sleep 0.2; done', "again")
"""`kubectl` forwards no more once a connection was reset."""


class ForwardedTarget(ChartTarget):
    """A target with the platform in containers."""

    def __init__(self, folder: Path, image: str) -> None:
        super().__init__(folder, folder / "kubeconfig")
        self.image = image
        self._forward: _Forward | None = None
        self._token = ""

    def environment(self) -> Mapping[str, str]:
        """Address and token of the control plane, once it is installed."""
        if self._forward is None:
            return {}
        return {"PAVANE_API_URL": self._forward.url(), "PAVANE_API_TOKEN": self._token}

    @contextlib.contextmanager
    def naming(self, namespace: str, pods: Mapping[str, Sequence[str]], port: int) -> Iterator[Path]:
        """Forward the port of each pod, at an address of its own."""
        hosts = self.folder / f"{namespace}.hosts"
        addresses = {pod: f"127.0.77.{number}" for number, pod in enumerate(pods, start=1)}
        hosts.write_text("".join(f"{addresses[pod]} {' '.join(names)}\n" for pod, names in pods.items()))
        with contextlib.ExitStack() as stack:
            for pod, address in addresses.items():
                words = ["--namespace", namespace, "--address", address, f"pod/{pod}", f"{port}:{port}"]
                process = _forwarding(self.kubeconfig, *words, again=AGAIN)
                stack.callback(process.communicate)
                stack.callback(os.killpg, process.pid, signal.SIGKILL)
                assert _port(process.stdout) == port, f"the port of {pod} is not forwarded"
            yield hosts

    @contextlib.contextmanager
    def reachable(self) -> Iterator[None]:
        """Forward a port of this machine to the control plane, for an account that may do everything."""
        self._token = self.new_token()
        self._forward = _Forward(self.kubeconfig)
        try:
            yield
        finally:
            self._forward.stop()
            self._forward = None


@dataclass
class _Forward:
    """A `kubectl port-forward` to the control plane. It ends with the pod that it found, so it is begun again."""

    kubeconfig: Path
    process: "subprocess.Popen[str] | None" = None
    port: int = 0

    def url(self) -> str:
        """Address at which the control plane answers now."""
        deadline = time.monotonic() + FORWARD_S
        while not self._answers():
            assert time.monotonic() < deadline, "the control plane cannot be reached through a port-forward"
            self.stop()
            self._start()
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def _answers(self) -> bool:
        if self.process is None:
            return False
        with contextlib.suppress(httpx2.HTTPError):
            httpx2.get(f"http://127.0.0.1:{self.port}/", timeout=CHECK_S, trust_env=False)
            return True  # whatever the answer, it came from the control plane
        return False

    def _start(self) -> None:
        self.process = _forwarding(self.kubeconfig, "--namespace", SYSTEM, "service/pavane-api", ":8000")
        self.port = _port(self.process.stdout)


def _forwarding(kubeconfig: Path, *words: str, again: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    """Forward, in a process group of its own."""
    return subprocess.Popen(
        [*again, KUBECTL, "port-forward", *words],
        start_new_session=True,
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _port(said: IO[str] | None) -> int:
    """The port that the first line names; 0 when there is none, for it ended."""
    assert said is not None
    found = re.match(r"Forwarding from 127[\d.]+:(\d+)", said.readline())
    return int(found[1]) if found else 0
