"""Child processes that never outlive the kubelet (docs/specs/operator.md 6.8.3, 6.8.9, 6.10). Linux only."""

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1  # prctl(2)
READ_BYTES = 64 * 1024
DRAIN_SECONDS = 1.0  # for output of a process that left the group and still holds the pipe
SCHEME = "process://"
RUN_ERROR = "RunContainerError"

_libc = ctypes.CDLL(None, use_errno=True)
_REFERENCE = re.compile(r"\$(\$|\(([-._A-Za-z0-9]+)\))")


class CannotStart(Exception):
    """A container cannot be started (yet); the text says why, `reason` is the word that Kubernetes has for it."""

    def __init__(self, message: str, reason: str = "CreateContainerConfigError") -> None:
        super().__init__(message)
        self.reason = reason


class Child:
    """A running container process, leader of its own session and process group."""

    def __init__(self, process: asyncio.subprocess.Process, output: asyncio.Task[None]) -> None:
        self.id = f"{SCHEME}{process.pid}/{_started(process.pid)}"
        self.exited = asyncio.create_task(self._wait(process, output), name=f"exit of {process.pid}")
        """Its exit code, or 128 + the signal that ended it."""
        self._group: int | None = process.pid

    async def _wait(self, process: asyncio.subprocess.Process, output: asyncio.Task[None]) -> int:
        code = await process.wait()
        self.signal(signal.SIGKILL)  # what it left in its group
        self._group = None  # from now on the number may belong to somebody else
        await asyncio.wait({output}, timeout=DRAIN_SECONDS)
        output.cancel()
        return code if code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """Send a signal to the process group; a group that is gone is fine."""
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, number)

    async def end(self, grace_seconds: float | None) -> None:
        """SIGTERM, SIGKILL after the grace period (None: never); returns when it has ended."""
        self.signal(signal.SIGTERM)
        await asyncio.wait({self.exited}, timeout=grace_seconds)
        self.signal(signal.SIGKILL)
        await asyncio.wait({self.exited})


async def spawn(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path, write: Callable[[bytes], None]
) -> Child:
    """Start a process in `folder`, looked up in PATH of its environment; `write` gets its output. Raises CannotStart.

    Call it from the main thread: the parent-death signal follows the thread.
    """
    parent, (reader, writer) = os.getpid(), os.pipe()
    output = asyncio.create_task(_forward(reader, write), name=f"output of {arguments[0]}")
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer,
            start_new_session=True, preexec_fn=lambda: _die_with(parent),
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise CannotStart(str(error), RUN_ERROR) from error
    finally:
        os.close(writer)  # the output ends with the last process that holds it
    return Child(process, output)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` of known variables; `$$` is one `$`, unknown names stay."""
    return _REFERENCE.sub(lambda match: "$" if match[1] == "$" else variables.get(match[2], match[0]), text)


def signal_container(container_id: str, number: int) -> bool:
    """Send a signal to the process group of a container by its id; False if that very process is gone."""
    pid, _, started = container_id.removeprefix(SCHEME).partition("/")
    if not started or _started(int(pid)) != started:
        return False
    try:
        os.killpg(int(pid), number)
    except ProcessLookupError:  # it ended meanwhile, perhaps because another container of its pod was killed
        return False
    return True


def kill_all_below(folder: Path) -> None:
    """Kill what runs in the root folder of any container below `folder`."""
    marker = f"\0PAVANE_ROOT={folder}/".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if marker in b"\0" + environment.read_bytes():
                os.kill(int(environment.parent.name), signal.SIGKILL)


def _started(pid: int) -> str:
    """When a process started, empty if there is none: with the pid it names a process for good."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _die_with(parent: int) -> None:
    """In the child: be killed when the parent dies, also when that happened since the fork."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


async def _forward(reader: int, write: Callable[[bytes], None]) -> None:
    stream, pipe = asyncio.StreamReader(), os.fdopen(reader, "rb", buffering=0)
    protocol = asyncio.StreamReaderProtocol(stream)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    try:
        while data := await stream.read(READ_BYTES):
            write(data)
    finally:
        transport.close()
