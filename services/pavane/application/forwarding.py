"""Ports of pods on this machine, by ``kubectl port-forward``: no name of a pod resolves outside its cluster."""

import asyncio
import contextlib
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

Address = tuple[str, int]

START_S = 15.0  # for kubectl and the API server, until the port is there
RETRY_S = 1.0  # after a forward that failed: a client asks for a server that is gone again and again
LINE_BYTES_MAX = 1 << 16
LOCAL = "127.0.0.1"
# kubectl ends with the pipe to its shell's input, so with this process however that ends.
HELD = '"$@" & exec >/dev/null 2>&1; cat; kill $!; wait'
_PORT = re.compile(rf"Forwarding from {re.escape(LOCAL)}:(\d+) ->")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that kubectl reaches, and a namespace of it; an empty ``context`` is the kubeconfig's own."""

    kubeconfig: Path
    namespace: str
    context: str = ""


class Forwards:
    """Gives each server a port here. One whose kubectl has ended, as it does when its pod goes, is made anew."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._made: dict[Address, asyncio.Task[_Forward]] = {}
        self._failed: dict[Address, float] = {}

    async def __call__(self, address: Address) -> Address:
        """Return where the server is reached now. Raises ``OSError``, which says why not."""
        task = self._made.get(address)
        if task is None or self._is_over(address, task):
            task = self._made[address] = asyncio.create_task(self._open(address), name="pavane-forward")
            task.add_done_callback(lambda done: None if done.cancelled() else done.exception() and None)
        return LOCAL, (await asyncio.shield(task)).port

    async def close(self) -> None:
        """End all of them."""
        made, self._made = self._made, {}
        for task in made.values():
            task.cancel()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await (await task).close()

    def _is_over(self, address: Address, task: "asyncio.Task[_Forward]") -> bool:
        if not task.done():
            return False
        if task.exception() is None:
            return task.result().ended
        return asyncio.get_running_loop().time() - self._failed[address] > RETRY_S

    async def _open(self, address: Address) -> "_Forward":
        forward = _Forward()
        try:
            async with asyncio.timeout(START_S):
                await forward.start(*self._command(address))
        except BaseException as error:
            await forward.close()
            self._failed[address] = asyncio.get_running_loop().time()
            if isinstance(error, TimeoutError):
                raise OSError(f"kubectl port-forward was not ready within {START_S:g} s") from error
            raise
        return forward

    def _command(self, address: Address) -> list[str]:
        host, port = address
        within, _, _ = host.partition(".svc")
        name, *rest = within.split(".")
        namespace = rest[-1] if rest else self._cluster.namespace
        pod = len(rest) > 1  # POD.SERVICE.NAMESPACE.svc; else SERVICE.NAMESPACE.svc
        chosen = ["--context", self._cluster.context] if self._cluster.context else []
        place = ["--kubeconfig", str(self._cluster.kubeconfig), *chosen, "--namespace", namespace]
        what = f"{'pod' if pod else 'service'}/{name}"
        return ["kubectl", *place, "port-forward", "--address", LOCAL, what, f":{port}"]


class _Forward:
    """One kubectl; ``ended`` is set with it."""

    def __init__(self) -> None:
        self.port = 0
        self.ended = False
        self._said = ""
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def start(self, *command: str) -> None:
        """Return once the port is there. Raises ``OSError``."""
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *("sh", "-c", HELD, "sh", *command),
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT,
            limit=LINE_BYTES_MAX,
            start_new_session=True,  # Ctrl-C is for the application, which may still have something to write
        )
        self._reading = asyncio.create_task(self._read(self._process), name="pavane-forward-output")
        await self._ready.wait()
        if not self.port:
            raise OSError(self._said or "kubectl port-forward ended without a word")

    async def close(self) -> None:
        """End it, and wait for that."""
        process, self._process = self._process, None
        if process is None or process.stdin is None or self._reading is None:
            return
        if process.returncode is None:
            # A forked process may hold its input, and a plugin of kubectl what it prints: neither is waited for.
            # SIGTERM would be lost on a child of a shell with a trap that has not run yet.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.stdin.close()
        await self._reading
        await process.wait()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Read for as long as it runs: kubectl prints a line for each connection, and waits where nobody reads."""
        try:
            while process.stdout is not None and (line := await process.stdout.readline()):
                self._said = line.decode(errors="replace").strip() or self._said
                if found := _PORT.search(self._said):
                    self.port = int(found[1])
                    self._ready.set()
        finally:
            self.ended = True
            self._ready.set()
            if process.stdin is not None:
                process.stdin.close()  # the shell has nothing to wait for
